"""Units by the engine over plain records: cases that the worlds of the property tests do not have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dedup_sdk import (
    Deduplicator,
    MemoryStore,
    MissingIdError,
    Record,
    RocksStore,
    Unit,
    Window,
    Windows,
)
from dedup_sdk._core.flight import Chunk
from dedup_sdk._marks import Found
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._units.memory import UnitMemory
from tests.support.unit_records import DAY, engine, record


def remembered(dedup: Deduplicator) -> int:
    """How many IDs are in memory."""
    memory = dedup.partitions["t", 0].memory
    assert isinstance(memory, UnitMemory)
    return memory.recent_count


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_where_the_window_is_off_there_are_no_units(kind: str, tmp_path: Path) -> None:
    """Everything is delivered as it comes, whatever becomes of it."""
    store: KeyStore = MemoryStore() if kind == "memory" else RocksStore(tmp_path)
    dedup = engine(store=store, window=Windows(default=DAY, topics={"off": Window.off()}))
    records = [
        record(0, "a", "U", topic="off"),
        record(1, "a", "U", topic="off"),
        record(2, "", "U", topic="off"),
    ]
    assert [(verdict.deliver, verdict.reason) for verdict in dedup.admit(records)] == [(True, "off")] * 3
    dedup.dead_letter(records[:1])
    dedup.complete(records[1:])
    assert dedup.next_offset("off", 0) == 3
    dedup.shut()


def test_a_unit_without_any_id() -> None:
    """Is unkeyed, all of it, and the policy for that holds."""
    records = [record(0, "", "U"), record(1, "", "U", end=True)]
    for policy, deliver in (("process", True), ("discard", False)):
        dedup = engine(on_missing_id=policy)
        verdicts = dedup.admit(records)
        assert [(verdict.kind.value, verdict.deliver) for verdict in verdicts] == [("unkeyed", deliver)] * 2
        dedup.complete(records if deliver else [])
        assert dedup.next_offset("t", 0) == 2
    with pytest.raises(MissingIdError, match=r"t\[0\]@1 has no ID"):
        engine(on_missing_id="fail").admit([record(0, "a", "U"), records[1]])


def test_time_begins_with_the_first_record_of_a_unit() -> None:
    """And a name that failed is free again after as long."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "a", "U")])
    now[0] += 9
    dedup.admit([record(1, "b", "U")])
    assert dedup.settle_units() == []
    now[0] += 2
    assert [each.record.offset for each in dedup.settle_units()] == [0, 1]
    assert [verdict.reason for verdict in dedup.admit([record(2, "c", "U")])] == ["unit-unfinished"]
    now[0] += 11
    assert dedup.settle_units() == []
    assert [verdict.reason for verdict in dedup.admit([record(3, "d", "U")])] == ["unit"]


def test_what_comes_of_a_failed_unit_leaves_no_mark_however_often_it_was_asked() -> None:
    """Else its end, late, would be a unit of its own, and hide the same unit when it comes again whole.

    The ID y would be lost.
    """
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "x", "U")])
    now[0] += 11
    assert [each.record.offset for each in dedup.settle_units()] == [0]
    for _ in range(3):
        now[0] += 3
        assert dedup.settle_units() == []
    last = record(1, "z", "U", end=True)
    assert [verdict.reason for verdict in dedup.admit([last])] == ["unit-unfinished"]
    dedup.complete([record(0, "x", "U"), last])
    again = [record(2, "x", "V"), record(3, "y", "V"), record(4, "z", "V", end=True)]
    assert [verdict.kind.value for verdict in dedup.admit(again)] == ["fresh"] * 3


def test_a_clock_that_is_set_back_holds_no_unit() -> None:
    """It is waited for as long as ever from then on, not until the clock is there again.

    Failed units are forgotten likewise.
    """
    now = [10_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "a", "U")])
    now[0] -= 3_600
    assert dedup.settle_units() == []
    now[0] += 11
    assert [each.record.offset for each in dedup.settle_units()] == [0]
    now[0] -= 3_600
    assert dedup.settle_units() == []
    now[0] += 11
    dedup.settle_units()
    assert [verdict.reason for verdict in dedup.admit([record(1, "b", "U")])] == ["unit"]


def test_a_long_queue_of_units_behind_one_record() -> None:
    """Each ends the next one with it: that is no recursion."""
    dedup = engine(unit_mode="members")
    records = [record(0, "a"), *(record(offset, "a", f"u{offset}", end=True) for offset in range(1, 1_001))]
    dedup.admit(records)
    settled = dedup.complete(records[:1])
    assert [each.verdict.kind.value for each in settled] == ["duplicate"] * 1_000
    assert dedup.next_offset("t", 0) == 1_001


def test_the_store_is_asked_of_a_unit_when_it_may_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of all its records with each that comes: one of ten thousand would take minutes."""
    asked: list[int] = []
    dedup = engine()
    dedup.admit([record(0, "first")])
    store = dedup.partitions["t", 0].store
    find = store.find

    def counting(joined: bytes, count: int) -> Found:
        asked.append(count)
        return find(joined, count)

    monkeypatch.setattr(store, "find", counting)
    for offset in range(1, 301):
        dedup.admit([record(offset, f"i{offset}", "U", end=offset == 300)])
    assert sum(asked) < 3 * 300


def test_what_a_window_by_count_writes_late_is_not_looked_through_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind a unit that is open for a while there are thousands of them."""
    looked = [0]
    unsaved = Chunk.unsaved

    def counting(chunk: Chunk) -> Any:
        looked[0] += 1
        return unsaved(chunk)

    monkeypatch.setattr(Chunk, "unsaved", counting)
    dedup = engine(window=Window(count=10))
    dedup.admit([record(0, "z", "U")])
    for offset in range(1, 301):
        single = record(offset, f"i{offset}")
        dedup.admit([single])
        dedup.complete([single])
    assert looked[0] < 5 * 300


def test_units_without_ids_leave_nothing_in_memory() -> None:
    """Nothing of them is remembered, so that no flush is due; other marks stay so, with their time."""
    dedup = engine()
    known = record(0, "a")
    dedup.admit([known])
    dedup.complete([known])
    waits = record(1, "b", "W")
    dedup.admit([waits])
    for offset in range(2, 400, 2):
        pair = [record(offset, "", f"U{offset}"), record(offset + 1, "", f"U{offset}", end=True)]
        dedup.admit(pair)
        dedup.complete(pair)
    end = record(1_000, "", "W", end=True)
    dedup.admit([end])
    dedup.complete([waits, end])
    assert remembered(dedup) == 2
    again = [
        (each.kind.value, each.seen_offset, each.age_ms)
        for each in dedup.admit([record(3_000, "a"), record(3_001, "b")])
    ]
    assert again == [("duplicate", 0, 3_000), ("duplicate", 1_000, 2_001)]


def test_a_released_member_comes_again_by_itself() -> None:
    """Its unit is not over before it is."""
    dedup = engine()
    records = [record(0, "a", "U"), record(1, "b", "U", end=True)]
    dedup.admit(records)
    dedup.complete(records[1:])
    [again] = dedup.release(records[:1])
    assert (again.record.offset, again.verdict.attempt) == (0, 2)
    assert dedup.release(records[1:]) == []
    assert dedup.next_offset("t", 0) == 0
    dedup.complete(records[:1])
    assert dedup.next_offset("t", 0) == 2


def test_commits_tell_no_beginning_inside_a_unit() -> None:
    """A unit that the log does not tell ends inside another one.

    Its last record would pass for all of it, although it was rejected.
    """
    dedup = engine()
    bad = record(1, "x", "W")
    bad = Record("t", 0, 1, 1_001, headers=[*bad.headers, ("dedup-unit-size", b"none")])
    records = [record(0, "a", "V"), bad, record(2, "b", "V", end=True)]
    dedup.admit(records)
    dedup.complete(records)
    held = dedup.partitions["t", 0]
    assert (held.flight.high, held.memory.exact_from, held.memory.committed_low) == (3, 2, 3)
