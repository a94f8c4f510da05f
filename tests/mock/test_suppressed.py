"""A group that is set back with ``on_rewind="suppress"``: what it handled stays hidden, what it gave up does not."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from dedup_sdk import MemoryStore, Window
from dedup_sdk.kafka.metadata import CommitMetadata
from tests.support.consuming import lookup, poll_quiet, run_all, values

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

A_NEW_ERA = str(CommitMetadata(low=0, era="back"))


def give_up(consumer: DedupConsumer, *bad: str) -> None:
    """Handle what is there; some of it becomes dead letters."""

    def handle(message: Any) -> None:
        if message.value().decode() in bad:
            raise ValueError("no")

    before = consumer.counters.dead_lettered
    run_all(consumer, handle, on_error="dead-letter", attempts=1)
    assert consumer.counters.dead_lettered == before + len(bad)


def set_back(consumer: DedupConsumer, metadata: str = A_NEW_ERA) -> None:
    """Commit the beginning past the consumer, which does not know: as a tool does, but while the mock cluster has a member to take it from."""
    with suppress(KafkaException):  # that may be done already
        consumer.commit(asynchronous=False)
    Consumer.commit(consumer, offsets=[TopicPartition("orders", 0, 0, metadata)], asynchronous=False)


@pytest.mark.parametrize("window", [Window(days=7), Window(count=100)], ids=str)
@pytest.mark.parametrize("metadata", ["", A_NEW_ERA], ids=["a reset tool", "dedup rewind"])
def test_what_was_given_up_is_handed_out_again(make: Make, send: Send, metadata: str, window: Window) -> None:
    """Nothing else is; when it is handled it is remembered as everything, also by the next start in the middle of it."""
    options: dict[str, Any] = {
        "dedup": lookup(window=window),
        "on_rewind": "suppress",
    }
    send(*"abcde")
    with make("orders", **options) as consumer:
        give_up(consumer, "b", "d")
        set_back(consumer, metadata)

    with make("orders", completion="explicit", **options) as consumer:
        got = poll_quiet(consumer)
        assert values(got) == ["b", "d"]
        consumer.complete(got[0])

    with make("orders", **options) as consumer:
        assert values(poll_quiet(consumer)) == ["d"]
    send("b", "d", "a", "f")
    assert values(poll_quiet(make("orders", **options))) == ["f"]


def test_a_seek_back_hands_out_what_was_given_up(make: Make, send: Send) -> None:
    """Its dead letter was sent a moment ago, by the same consumer."""
    send(*"abc")
    consumer = make("orders", on_rewind="suppress")
    give_up(consumer, "b")

    consumer.seek(TopicPartition("orders", 0, OFFSET_BEGINNING))
    assert values(poll_quiet(consumer)) == ["b"]


@pytest.mark.parametrize("window", [Window(days=7), Window(count=100)], ids=str)
def test_what_is_hidden_stays_so_when_marks_are_flushed(make: Make, send: Send, window: Window) -> None:
    """While the first that was given up is in hand, the store is written anew."""
    options: dict[str, Any] = {
        "dedup": lookup(window=window),
        "on_rewind": "suppress",
    }
    send(*"abcd")
    with make("orders", **options) as consumer:
        give_up(consumer, "b")
        set_back(consumer)
    with make("orders", completion="explicit", recent_marks=1, **options) as consumer:
        assert values(poll_quiet(consumer)) == ["b"]

    assert values(poll_quiet(make("orders", **options))) == ["b"]


@pytest.mark.parametrize("flushed", [False, True])
def test_what_was_sent_again_and_handled_stays_hidden(make: Make, send: Send, *, flushed: bool) -> None:
    """The message was handled, by another record: whether its mark is in the journal or in a sorted file."""
    options: dict[str, Any] = {
        "on_rewind": "suppress",
        "recent_marks": 1 if flushed else 9,
    }
    send("a", "b")
    with make("orders", **options) as consumer:
        give_up(consumer, "a", "b")
    send("b", "c")
    with make("orders", **options) as consumer:
        give_up(consumer)
        set_back(consumer)

    assert values(poll_quiet(make("orders", **options))) == ["a"]


def test_where_nobody_knows_what_was_given_up_nothing_before_it_is_hidden(
    make: Make, send: Send, caplog: pytest.LogCaptureFixture
) -> None:
    """The dead-letter topic is another one now: everything before the last that was given up comes again, and one line says so."""
    send(*"abcd")
    with make("orders") as consumer:
        give_up(consumer, "b")
        set_back(consumer)

    consumer = make("orders", on_rewind="suppress", dead_letters="elsewhere")
    assert values(poll_quiet(consumer)) == ["a", "b"]
    assert "which of the offsets 0 to 2 were given up: all of them are handed out again" in caplog.text


def test_a_machine_that_only_heard_of_it_hands_it_out_too(make: Make, send: Send) -> None:
    """Another one gave it up; this one replayed the tail around it."""
    send("a")
    with make("orders") as consumer:
        give_up(consumer)
    send("b", "c")
    with make("orders", store=MemoryStore()) as consumer:
        give_up(consumer, "b")
    with make("orders") as consumer:
        assert poll_quiet(consumer) == []
        set_back(consumer)

    assert values(poll_quiet(make("orders", on_rewind="suppress"))) == ["b"]
