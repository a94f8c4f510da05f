"""Calls that end messages, and are interrupted before their step begins: the message comes again."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.deliver.in_hand import InHand
from tests.support import inside
from tests.support.consuming import PATIENCE_S, poll_some, values
from tests.support.interrupting import Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS = TopicPartition("orders", 0)
CALLS: dict[str, Callable[[DedupConsumer], object]] = {
    "consume(0)": lambda consumer: consumer.consume(0),
    "pause": lambda consumer: consumer.pause([ORDERS]),
    "commit": lambda consumer: consumer.commit(),
    "poll": lambda consumer: consumer.poll(0),
}


class AsItBegins:
    """Raises `Interrupted` as a signal's handler does, in the first call for which ``is_it`` is true."""

    def __init__(self, is_it: Callable[[FrameType], bool]) -> None:
        self._is_it = is_it

    def __enter__(self) -> Self:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _argument: Any) -> None:
        if self._is_it(frame):
            sys.settrace(None)
            raise Interrupted


@pytest.mark.parametrize("call", CALLS)
def test_a_noted_release_that_is_interrupted_is_not_lost(make: Make, send: Send, call: str) -> None:
    """Whichever call does it: else the next one for messages would complete the message whose handler failed."""
    send("a")
    consumer = make("orders")
    [failed] = poll_some(consumer, 1)
    with inside.lock_of(consumer).lock:
        # As a signal's handler in the middle of a step.
        consumer.release(failed)
    with pytest.raises(Interrupted), AsItBegins(inside.begins_release):
        CALLS[call](consumer)
    consumer.resume([ORDERS])
    assert values(poll_some(consumer, 1)) == ["a"]


def use(consumer: DedupConsumer) -> None:
    """Use a consumer in a block, at whose end a noted call is interrupted."""
    with consumer:
        [failed] = poll_some(consumer, 1)
        with inside.lock_of(consumer).lock:
            consumer.release(failed)
        AsItBegins(inside.begins_release).__enter__()


def test_a_block_whose_noted_call_is_interrupted_is_closed(make: Make, send: Send) -> None:
    """The interruption is raised behind that."""
    send("a")
    consumer = make("orders")
    with pytest.raises(Interrupted):
        use(consumer)
    with pytest.raises(RuntimeError):
        consumer.poll(0)


@pytest.mark.parametrize("call", ["release", "transaction_aborted"])
def test_a_message_that_was_to_come_again_does(make: Make, send: Send, call: str) -> None:
    """Also where it must be completed one by one."""
    send("a")
    consumer = make("orders", completion="explicit")
    [failed] = poll_some(consumer, 1)
    code = getattr(InHand, call).__code__
    with pytest.raises(Interrupted), AsItBegins(lambda frame: frame.f_code is code):
        consumer.release(failed) if call == "release" else consumer.transaction_aborted([failed])
    assert values(poll_some(consumer, 1)) == ["a"]


def committed_records(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    """The values that a reader of committed records sees."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "readers",
            "isolation.level": "read_committed",
        }
    )
    reader.assign([TopicPartition(topic, 0, 0)])
    found = [message for _ in range(count) if (message := reader.poll(PATIENCE_S)) is not None]
    reader.close()
    return [message.value() for message in found]


@pytest.mark.parametrize("way", ["complete", "once"])
def test_a_handler_in_a_transaction_ends_no_message_by_itself(
    make: Make, send: Send, kafka: MockKafka, way: str
) -> None:
    """Its records would be dropped with the message, which counted as handled."""
    send("a", "b")
    consumer = make("orders", store=MemoryStore(), idle_timeout=1)

    def handle(message: Message, produce: Callable[..., None]) -> None:
        produce("pairs", message.value(), partition=0)
        if way == "complete":
            consumer.complete(message)
        else:
            with consumer.once(message):
                pass

    consumer.run(handle, transactions=consumer.transactions(seconds=0.05))
    assert committed_records(kafka.bootstrap, "pairs", 2) == [b"a", b"b"]
    assert consumer.counters.stale == 2


def threads() -> int:
    """How many threads this process has, those of clients included."""
    return len(list(Path("/proc/self/task").iterdir()))


def test_a_block_that_cannot_begin_leaves_no_client(make: Make) -> None:
    """Each client has some threads: a loop that tries again would pile them up until a garbage collection."""
    consumer = make("orders")
    gc.disable()
    try:
        with consumer.transactions():
            before = threads()
            for _ in range(5):
                with pytest.raises(RuntimeError), consumer.transactions():
                    pass
            assert threads() <= before + 2
    finally:
        gc.enable()


def test_a_message_comes_again_if_a_block_of_transactions_is_interrupted_as_it_begins(
    make: Make, send: Send
) -> None:
    """The block completes the message before, as a call for more does; half completed, it would be nobody's."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    with (
        pytest.raises(Interrupted),
        AsItBegins(lambda frame: frame.f_code.co_qualname == "Partition.complete_chunk"),
        consumer.transactions(),
    ):
        pass
    assert values(poll_some(consumer, 1)) == ["a"]
