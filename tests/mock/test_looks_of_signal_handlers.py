"""A signal's handler that only looks runs between two lines of `poll`, and changes nothing."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._kafka import early, loop
from tests.support.consuming import poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from dedup_sdk import DedupConsumer
    from tests.mock.conftest import Make, Send

LOOKS: dict[str, Callable[[DedupConsumer], object]] = {
    "health": lambda consumer: consumer.health(),
    "metrics": lambda consumer: consumer.metrics(),
    "statuses": lambda consumer: consumer.partition_statuses,
    "counters": lambda consumer: consumer.counters.as_dict(),
    "window": lambda consumer: consumer.effective_window_ms,
}
FILES = frozenset(str(Path(module.__file__ or "")) for module in (early, loop))


class Looking:
    """Looks at a consumer once, before the n-th line of early delivery and of the loop that this thread runs."""

    def __init__(self, consumer: DedupConsumer, look: Callable[[DedupConsumer], object], line: int) -> None:
        self._consumer, self._look, self._left = consumer, look, line

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
                self._look(self._consumer)
        return self._trace


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_between_two_lines_loses_no_message(make: Make, send: Send, look: str) -> None:
    """Each message leaves its mark: sent again, all are duplicates, and a message in hand is not committed."""
    consumer = make("orders")
    send("first")
    poll_some(consumer, 1)
    got = list[str]()
    for line in range(1, 120):
        send(f"message {line}")
        with Looking(consumer, LOOKS[look], line):
            message = consumer.poll(5)
        assert message is not None
        got += values([message])
    assert got == [f"message {line}" for line in range(1, 120)]
    assert consumer.counters.verdicts["fresh"] == 120
    send(*got, "last")
    assert values(poll_some(consumer, 1)) == ["last"]
    assert consumer.counters.verdicts["duplicate"] == 119
