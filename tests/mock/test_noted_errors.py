"""An exception of a handler names its message, by a note that tracebacks show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from tests.support.consuming import poll_some, run_all

if TYPE_CHECKING:
    from tests.mock.conftest import Make, Send

POISON = ValueError("poison")
"""One object, as a module may have it: no note of an earlier message may stay at it."""


def fails(message: Any) -> None:
    """A handler of poisonous messages."""
    if message.value() == b"poison":
        raise POISON


@pytest.mark.parametrize(("on_error", "attempt"), [("raise", 1), ("retry", 3)])
def test_a_run_that_ends_names_the_message(make: Make, send: Send, on_error: str, attempt: int) -> None:
    """With its topic, partition and offset, and the number of the attempt."""
    send("a", "poison")
    with pytest.raises(ValueError, match="poison") as caught:
        run_all(
            make("orders"), fails, on_error=on_error, attempts=5 if attempt == 1 else 3, wait_initial=0.01
        )
    assert caught.value.__notes__ == [f"while handling orders[0]@1, attempt {attempt}"]


def test_the_error_of_a_dead_letter_names_the_message(make: Make, send: Send, letters: str) -> None:
    """The last one that failed; an object that is raised for each of them has one note."""
    send("poison", "a")
    send("b", "poison", topic="pairs")
    run_all(make("orders", "pairs"), fails, on_error="dead-letter", dead_letters=letters, attempts=1)
    assert len(POISON.__notes__) == 1
    assert POISON.__notes__[0] in {
        f"while handling {place}, attempt 1" for place in ("orders[0]@0", "pairs[0]@1")
    }


def test_a_block_of_once_that_raises_names_the_message(make: Make, send: Send) -> None:
    """Also at the next attempt, when the released message has come again."""
    send("a")
    consumer = make("orders", completion="explicit")
    for attempt in (1, 2):
        [message] = poll_some(consumer, 1)
        with pytest.raises(KeyError) as caught, consumer.once(message):
            raise KeyError("no such customer")
        assert caught.value.__notes__ == [f"while handling orders[0]@0, attempt {attempt}"]


@pytest.mark.parametrize(
    "message", [Message(), Message(topic="orders"), Message(topic="orders", partition=0)]
)
def test_a_message_without_an_offset_is_met_as_by_the_plain_client(make: Make, message: Message) -> None:
    """It names nothing to commit, and nothing to store."""
    consumer = make("orders")
    assert consumer.commit(message=message) is None
    with pytest.raises(KafkaException) as caught:
        consumer.commit(message=message, asynchronous=False)
    assert caught.value.args[0].code() == KafkaError._NO_OFFSET
    with pytest.raises(KafkaException, match="no offset: give one that poll") as caught:
        consumer.store_offsets(message)
    assert caught.value.args[0].code() == KafkaError._INVALID_ARG
