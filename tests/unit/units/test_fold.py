"""A fold of units that does not know all earlier records takes nothing for handled that was hidden."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dedup_sdk import Deduplicator, Lookup, Window, header
from dedup_sdk._core.reach import plan_start
from dedup_sdk._units import memory as unit_memory
from dedup_sdk.ids import RecordFields, digest_one
from tests.support.known_marks import newest_marks
from tests.support.naive_units import Entry
from tests.support.unit_world import record_of

LOOKUP = Lookup(id=header("dedup-id"), window=Window(milliseconds=15), unit=header("dedup-unit"))


def folded(log: list[Entry]) -> Any:
    """Return the marks of a fold of a group's log of which the beginning is gone."""
    engine = Deduplicator(LOOKUP, clock=lambda: 1_000.0)
    held = engine.attach("t", 0)
    end = log[-1].offset + 1
    held.start(plan_start(None, committed=end, low=log[0].offset, complete=False))
    keys = LOOKUP.keys.digests(RecordFields([record_of(entry) for entry in log])).digests
    times = np.asarray([entry.timestamp_ms for entry in log], np.int64)
    held.fold([entry.offset for entry in log], times, list(keys), end)
    held.flush()
    return newest_marks(held.store.scan())


def test_a_rejected_unit_may_have_moved_marks_that_a_fold_does_not_know() -> None:
    """Its ID x may have been known as well, from before the fold.

    Then the next unit with x was rejected, and its z was never handled.
    """
    log = [
        Entry(5, 20, "y"),
        Entry(6, 21, "x", "u"),
        Entry(7, 22, "y", "u", is_end=True),
        Entry(8, 35, "x", "v"),
        Entry(9, 36, "z", "v", is_end=True),
        Entry(10, 37, "a"),
    ]
    marks = folded(log)
    assert digest_one(b"z") not in marks
    assert {digest_one(ident) for ident in (b"y", b"a")} <= marks.keys()


@pytest.mark.parametrize("mode", ["all-or-nothing", "members"])
def test_a_unit_that_never_ends_does_not_keep_what_comes_after_it_in_memory(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log of days would not fit. Its later records are not remembered, and the rest is."""
    monkeypatch.setattr(unit_memory, "MOST_OPEN", 10)
    strategy = replace(LOOKUP, window=Window(hours=1), unit_mode=mode)
    log = [Entry(offset, offset, f"i{offset}", "u" if offset in (0, 3, 70) else None) for offset in range(90)]
    log.append(Entry(90, 90, "last", "u", is_end=True))
    engine = Deduplicator(strategy, clock=lambda: 1_000.0)
    held = engine.attach("t", 0)
    held.start(plan_start(None, committed=91, low=0, complete=True))
    kept = 0
    for at in range(0, len(log), 5):
        piece = log[at : at + 5]
        keys = strategy.keys.digests(RecordFields([record_of(entry) for entry in piece])).digests
        times = np.asarray([entry.timestamp_ms for entry in piece], np.int64)
        held.fold([entry.offset for entry in piece], times, list(keys), piece[-1].offset + 1)
        kept = max(kept, held.flight.kept)
    assert kept <= 20
    assert held.flight.high == 91
    held.flush()
    known = {digest_one(f"i{offset}".encode()) for offset in range(90) if offset not in (0, 3, 70)}
    assert newest_marks(held.store.scan()).keys() == known
    # So much of it is in doubt.
    assert (held.state.progress.known.since_ms is None) == (mode == "members")
