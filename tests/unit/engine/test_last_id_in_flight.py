"""What is in flight where IDs are compared with the last one."""

from __future__ import annotations

from dedup_sdk import Deduplicator, LastId, Record, Window, header, orders
from tests.support.records import kinds, offsets

WINDOW_MS = 1_000


def numbered(offset: int, number: int, timestamp_ms: int) -> Record:
    """A record whose ID is a number."""
    return Record("t", 0, offset, timestamp_ms, headers=[("seq", b"%d" % number)])


def engine() -> Deduplicator:
    """An engine that remembers a lane for a second."""
    window = Window(milliseconds=WINDOW_MS)
    return Deduplicator(LastId(id=header("seq"), order=orders.integer(), window=window))


def test_who_repeats_what_flies_longer_than_a_window_waits_for_it() -> None:
    """Others kept the lane alive: it knows the ID, whose record may yet be given up."""
    deduplicator = engine()
    first, other, again = numbered(0, 1, 0), numbered(1, 2, WINDOW_MS), numbered(2, 1, WINDOW_MS + 1)
    assert kinds(deduplicator.admit([first, other, again])) == ["fresh", "fresh", "parked"]
    assert deduplicator.complete([other]) == []
    settled = deduplicator.dead_letter([first])
    assert (kinds(settled), offsets(settled)) == (["fresh"], [2])


def test_who_repeats_what_flies_longer_than_a_window_is_a_duplicate_of_it() -> None:
    """Once it is completed."""
    deduplicator = engine()
    first, other, again = numbered(0, 1, 0), numbered(1, 2, WINDOW_MS), numbered(2, 1, WINDOW_MS + 1)
    deduplicator.admit([first, other, again])
    assert deduplicator.complete([other]) == []
    settled = deduplicator.complete([first])
    assert (kinds(settled), offsets(settled)) == (["duplicate"], [2])


def test_giving_up_costs_no_pass_over_what_is_in_flight() -> None:
    """A batch of which every record fails is over after work that grows with it, not with its square."""
    asked = 0

    def compare(last: bytes, new: bytes) -> int:
        nonlocal asked
        asked += 1
        return (int(new) > int(last)) - (int(new) < int(last))

    deduplicator = Deduplicator(LastId(id=header("seq"), order=compare))
    records = [numbered(offset, offset, offset) for offset in range(200)]
    deduplicator.admit(records)
    asked = 0
    deduplicator.dead_letter(records[1:])
    assert kinds(deduplicator.admit([numbered(200, 7, 200), numbered(201, 0, 201)])) == ["fresh", "parked"]
    assert asked < 5 * len(records)
