"""A signal's handler that calls the consumer runs between two lines of `poll`, and costs no message."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition

from dedup_sdk._kafka import early, loop
from tests.support.consuming import poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send


def pause_and_resume(consumer: DedupConsumer) -> None:
    """Pause its partition, and resume it at once."""
    consumer.pause([TopicPartition("orders", 0)])
    consumer.resume([TopicPartition("orders", 0)])


CALLS: dict[str, Callable[[DedupConsumer], object]] = {
    "health": lambda consumer: consumer.health(),
    "metrics": lambda consumer: consumer.metrics(),
    "statuses": lambda consumer: consumer.partition_statuses,
    "counters": lambda consumer: consumer.counters.as_dict(),
    "window": lambda consumer: consumer.effective_window_ms,
    "commit": lambda consumer: consumer.commit(),
    "position": lambda consumer: consumer.position([TopicPartition("orders", 0)]),
    "pause": pause_and_resume,
}
FILES = frozenset(str(Path(module.__file__ or "")) for module in (early, loop))


class Calling:
    """Calls a consumer once, before the n-th line of early delivery and of the loop that this thread runs."""

    def __init__(self, consumer: DedupConsumer, call: Callable[[DedupConsumer], object], line: int) -> None:
        self._consumer, self._call, self._left = consumer, call, line

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                self._call(self._consumer)
        return self._trace


@pytest.mark.parametrize("call", CALLS)
def test_a_call_between_two_lines_loses_no_message(make: Make, send: Send, call: str) -> None:
    """Each message leaves its mark: sent again, all are duplicates, and a message in hand is not committed."""
    consumer = make("orders")
    send("first")
    poll_some(consumer, 1)
    got = list[str]()
    for line in range(1, 120):
        send(f"message {line}")
        with Calling(consumer, CALLS[call], line):
            message = consumer.poll(5)
        assert message is not None
        got += values([message])
    assert got == [f"message {line}" for line in range(1, 120)]
    assert consumer.counters.verdicts["fresh"] == 120
    send(*got, "last")
    assert values(poll_some(consumer, 1)) == ["last"]
    assert consumer.counters.verdicts["duplicate"] == 119


@pytest.mark.parametrize("call", ["health", "position"])
def test_a_message_that_failed_is_not_committed(make: Make, send: Send, call: str) -> None:
    """Its handler raised; a call had come between two lines while it was delivered. It comes again."""
    for line in range(30, 90, 3):
        consumer = make("orders")
        send(f"good {line}")
        poll_some(consumer, 1)
        send(f"bad {line}")
        with Calling(consumer, CALLS[call], line):
            message = consumer.poll(5)
        assert message is not None
        assert values([message]) == [f"bad {line}"]
        with suppress(ValueError), consumer:
            raise ValueError
        again = make("orders")
        assert values(poll_some(again, 1)) == [f"bad {line}"]
        with again:
            pass
