"""Sources of which records are missing: passed by a recovery that was cut short, or jumped over."""

from __future__ import annotations

import pytest

from dedup_sdk import Deduplicator, LastId, Record, Window, header, orders
from dedup_sdk._core.reach import plan_start
from dedup_sdk._store.memory import MemoryStore

WINDOW_MS = 1_000
DEPTH = 3
KNOWN_AGAIN = 3 * DEPTH + 1


class Lived:
    """An engine that has handled the IDs 0 to 9 of a source, at offsets and times of the same number."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.open()
        for number in range(10):
            assert self.said(number, number) == "fresh"

    def open(self) -> None:
        """Open the engine, again perhaps."""
        strategy = LastId(
            id=header("seq"),
            order=orders.integer(),
            reorder_depth=DEPTH,
            window=Window(milliseconds=WINDOW_MS),
        )
        self.engine = Deduplicator(strategy, store=self.store, clock=lambda: 10**6)

    def said(self, offset: int, number: int, timestamp_ms: int | None = None) -> str:
        """Let a record come and be handled; return why it is in doubt, else its verdict."""
        at_ms = offset if timestamp_ms is None else timestamp_ms
        record = Record("t", 0, offset, at_ms, headers=[("seq", b"%d" % number)])
        [told] = self.engine.admit([record])
        self.engine.complete([record] if told.deliver else [])
        return told.reason or told.kind.value

    def is_in_doubt_for_long(self, offset: int) -> None:
        """See that a window does not make it known that 10 to 19 were completed; enough that is new does."""
        assert self.said(offset, 20) == "uncovered"
        # By now every sighting inside a window is known; the source never fell silent, and does not know which it
        # missed.
        for step in range(1, KNOWN_AGAIN):
            at_ms = offset + step * WINDOW_MS
            assert self.said(offset + step, 20 + 2 * step, at_ms) == "uncovered"
        last = KNOWN_AGAIN
        assert self.said(offset + last, 20 + 2 * last - 3, offset + last * WINDOW_MS) == "fresh"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_source_of_a_recovery_that_was_cut_short_is_in_doubt(*, again: bool, flushed: bool) -> None:
    """Whether it is in memory, in the journal or in a file."""
    lived = Lived()
    held = lived.engine.partitions["t", 0]
    if flushed:
        held.flush()
    held.skip_to(20)
    if again:
        lived.engine.shut()
        lived.open()
    lived.is_in_doubt_for_long(20)


def test_a_source_of_a_group_that_jumped_is_in_doubt() -> None:
    """Nobody knows who handled the records between, if anybody did."""
    lived = Lived()
    lived.engine.shut()
    lived.open()
    held = lived.engine.attach("t", 0)
    assert held.loaded is not None
    held.start(plan_start(held.loaded.progress, committed=20, low=20))
    lived.is_in_doubt_for_long(20)


def test_a_source_that_comes_after_is_known() -> None:
    """Had it had records in the missing part, it would have been silent for a window."""
    lived = Lived()
    lived.engine.partitions["t", 0].skip_to(20)
    assert lived.said(20, 20) == "uncovered"
    assert lived.said(21, 5, 20 + 2 * WINDOW_MS) == "fresh"
