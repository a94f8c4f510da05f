"""The time in which a unit is to become whole: only that counts in which there was nothing more to read."""

from __future__ import annotations

from dedup_sdk import MemoryStore, Unit
from tests.support.unit_records import engine, record


def test_time_in_which_there_is_more_to_read_does_not_count() -> None:
    """Neither before a unit is begun nor after; the time while there was not counts on."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "a", "U")])
    now[0] += 3_600
    assert dedup.settle_units(at_end=False) == []
    now[0] += 3_600
    # Nobody says when in between it came to be so.
    assert dedup.settle_units() == []
    now[0] += 9
    assert dedup.settle_units() == []
    now[0] += 3_600
    assert dedup.settle_units(at_end=False) == []
    now[0] += 3_600
    dedup.admit([record(1, "b", "V")])
    assert dedup.settle_units() == []
    now[0] += 2
    assert [each.record.offset for each in dedup.settle_units()] == [0]
    now[0] += 9
    assert [each.record.offset for each in dedup.settle_units()] == [1]


def test_one_that_failed_is_known_as_such_while_there_is_more_to_read() -> None:
    """The rest of it may lie there: by itself it would pass for a unit."""
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "a", "U")])
    now[0] += 11
    assert len(dedup.settle_units()) == 1
    now[0] += 3_600
    assert dedup.settle_units(at_end=False) == []
    assert [verdict.reason for verdict in dedup.admit([record(1, "b", "U", end=True)])] == ["unit-unfinished"]


def test_one_that_failed_before_a_crash_is_not_waited_for_again() -> None:
    """That one of its records was completed by itself tells it.

    Its earlier and its later records are delivered at once.
    """
    now, store = [1_000.0], MemoryStore()
    first = engine(unit=Unit(timeout=10), store=store, clock=lambda: now[0])
    records = [record(0, "a", "U"), record(1, "b", "U"), record(2, "c", "U")]
    first.admit(records)
    now[0] += 11
    assert len(first.settle_units()) == 3
    first.complete(records[1:2])
    first.shut()
    again = engine(unit=Unit(timeout=10), store=store, clock=lambda: now[0])
    told = [(verdict.kind.value, verdict.reason) for verdict in again.admit(records)]
    assert told == [("unverified", "unit-unfinished"), ("redelivered", ""), ("unverified", "unit-unfinished")]
    again.complete([records[0], records[2]])
    assert again.next_offset("t", 0) == 3


def test_units_begun_around_a_clock_that_is_set_back_have_the_same_time() -> None:
    """Neither waits for when the clock is there again, nor has less.

    So with failed units of which records came meanwhile.
    """
    now = [1_000.0]
    dedup = engine(unit=Unit(timeout=10), clock=lambda: now[0])
    dedup.admit([record(0, "a", "F"), record(1, "b", "G")])
    now[0] += 11
    assert len(dedup.settle_units()) == 2
    now[0] += 3_600
    dedup.admit([record(2, "c", "U"), record(3, "d", "F")])
    now[0] -= 3_600
    dedup.admit([record(4, "e", "V")])
    assert dedup.settle_units() == []
    now[0] += 9
    assert dedup.settle_units() == []
    assert [each.reason for each in dedup.admit([record(5, "f", "F"), record(6, "g", "G")])] == [
        "unit-unfinished"
    ] * 2
    now[0] += 2
    assert [each.record.offset for each in dedup.settle_units()] == [2, 4]
