"""The engine's verdicts on records: same length, same order, whatever comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._engine.partition import AnotherLog
from dedup_sdk._observe import VerdictEvent
from dedup_sdk._record import Record, Verdict, VerdictKind
from dedup_sdk.errors import MissingIdError
from tests.support.records import DAY_MS, engine, kinds, record


def test_what_was_read_does_not_come_for_the_first_time_again() -> None:
    """Of records that repeat others only the first of each counts; one of a later epoch is another record."""
    deduplicator = engine()
    deduplicator.admit([record(5), record(6)])
    partition = deduplicator.partitions["t", 0]
    partition.flight.note_epoch(3)

    assert partition.is_next([7, 9])
    assert not partition.is_next([6, 7])
    assert not partition.is_next([7, 7])
    assert not partition.is_next([8, 7])
    assert partition.first_reads([6, 7, 7, 5, 9, 8], [3, 3, 3, 1, None, 3]) == ([1, 4], None)
    assert partition.first_reads([7, 8, 8], [3, 4, 4]) == ([0, 1], None)
    rows, other = partition.first_reads([7, 6], [3, 4])
    assert (rows, other) == ([0], AnotherLog(None))


def test_nothing_gives_nothing() -> None:
    """An empty batch is no special case."""
    assert engine().admit([]) == []


def test_verdicts_come_in_the_order_of_the_records() -> None:
    """Records of several partitions and topics, in any order, get their own verdicts at their own places."""
    batch = [
        record(9, "a"),
        record(3, "b", partition=1),
        record(4, "a"),
        record(1, "b", partition=1),
        record(7, "a", topic="u"),
    ]
    assert kinds(engine().admit(batch)) == ["parked", "parked", "fresh", "fresh", "fresh"]


def test_a_record_twice_in_a_batch_is_delivered_once() -> None:
    """Of a record that is repeated in one batch only the first is delivered; the other ends with it."""
    deduplicator = engine()
    same = record(5, "a")
    assert kinds(deduplicator.admit([same, same, same])) == ["fresh", "parked", "parked"]
    assert deduplicator.complete([same]) == []
    assert kinds(deduplicator.admit([same])) == ["redelivered"]


def test_a_record_in_flight_that_comes_again_is_not_delivered_again() -> None:
    """While it is in flight it is parked, once it is completed it is redelivered."""
    deduplicator = engine()
    deduplicator.admit([record(5), record(6)])
    assert kinds(deduplicator.admit([record(5), record(6), record(7)])) == ["parked", "parked", "fresh"]
    deduplicator.complete([record(6)])
    assert kinds(deduplicator.admit([record(5), record(6)])) == ["parked", "redelivered"]


def test_a_record_before_the_history_is_delivered_in_doubt() -> None:
    """The history begins with the first record; records before it nobody has completed."""
    deduplicator = engine()
    deduplicator.admit([record(100)])
    deduplicator.complete([record(100)])
    [verdict] = deduplicator.admit([record(40)])
    assert (verdict.kind, verdict.deliver, verdict.reason) == (VerdictKind.UNVERIFIED, True, "out-of-order")
    assert deduplicator.next_offset("t", 0) == 101


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 12), st.sampled_from(["a", "b", ""])), max_size=30)
)
@settings(deadline=None)
def test_any_batch_gets_as_many_verdicts(rows: list[tuple[int, int, str]]) -> None:
    """Unordered, repeated, of several partitions: one verdict a record, and each is delivered once."""
    deduplicator = engine()
    batch = [record(offset, ident, partition=partition) for partition, offset, ident in rows]
    verdicts = deduplicator.admit(batch)
    assert len(verdicts) == len(batch)
    delivered = [
        (one.partition, one.offset) for one, verdict in zip(batch, verdicts, strict=True) if verdict.deliver
    ]
    assert len(delivered) == len(set(delivered))
    again = deduplicator.admit(batch)
    assert not any(verdict.deliver for verdict in again)


def test_a_duplicate_tells_what_it_repeats() -> None:
    """Offset of the last sighting and how much older that is, which a duplicate refreshes."""
    deduplicator = engine()
    deduplicator.admit([record(1, "a", DAY_MS)])
    deduplicator.complete([record(1, "a", DAY_MS)])
    later = [record(2, "a", DAY_MS + 50), record(3, "a", DAY_MS + 40)]
    assert deduplicator.admit(later) == [
        Verdict(VerdictKind.DUPLICATE, deliver=False, seen_offset=1, age_ms=50),
        Verdict(VerdictKind.DUPLICATE, deliver=False, seen_offset=2, age_ms=-10),
    ]


def test_a_sighting_keeps_an_id_alive() -> None:
    """The window is measured from the last sighting, so that an ID that keeps coming is never fresh again."""
    deduplicator, step_ms = engine(), 3_600_000
    deduplicator.admit([record(0, "a", 0)])
    deduplicator.complete([record(0, "a", 0)])
    verdicts = deduplicator.admit([record(offset, "a", offset * step_ms) for offset in range(1, 6)])
    assert kinds(verdicts) == ["duplicate"] * 5
    assert kinds(deduplicator.admit([record(6, "a", 6 * step_ms + 1)])) == ["fresh"]


def test_without_an_id_the_policy_decides() -> None:
    """By default such a record is delivered and counted; ``discard`` counts it and completes it."""
    assert engine().admit([record(0, "")]) == [Verdict(VerdictKind.UNKEYED, deliver=True, reason="absent")]
    discarding = engine(on_missing_id="discard")
    assert discarding.admit([record(0, ""), record(1, "")])[1].deliver is False
    assert discarding.next_offset("t", 0) == 2
    assert discarding.counters.as_dict()["unkeyed.absent"] == 2


def test_records_without_an_id_are_no_twins() -> None:
    """Two of them have nothing in common, and both hold the watermark back."""
    deduplicator = engine()
    assert kinds(deduplicator.admit([record(0, ""), record(1, "")])) == ["unkeyed", "unkeyed"]
    deduplicator.complete([record(1, "")])
    assert deduplicator.next_offset("t", 0) == 0
    deduplicator.complete([record(0, "")])
    assert deduplicator.next_offset("t", 0) == 2
    assert kinds(deduplicator.admit([record(0, ""), record(1, "")])) == ["redelivered", "redelivered"]


def test_a_missing_id_that_is_a_failure_admits_nothing() -> None:
    """Not even the records before it, or those of another partition; they can be admitted afterwards."""
    deduplicator = engine(on_missing_id="fail")
    good = [record(0, "a"), record(0, "b", partition=1)]
    with pytest.raises(MissingIdError, match=r"t\[0\]@1 has no ID \(absent\) by key; "):
        deduplicator.admit([*good, record(1, "")])
    assert deduplicator.counters.verdicts["fresh"] == 0
    assert kinds(deduplicator.admit(good)) == ["fresh", "fresh"]


def test_an_oversized_id_is_no_id() -> None:
    """It is delivered and counted under its reason."""
    deduplicator = engine()
    [verdict] = deduplicator.admit([replace(record(0), key=b"x" * 70_000)])
    assert (verdict.kind, verdict.deliver, verdict.reason) == (VerdictKind.UNKEYED, True, "oversized")


def test_observers_get_every_final_verdict_once() -> None:
    """Parked is not final, and not counted; the later verdict is."""
    events: list[VerdictEvent] = []
    deduplicator = engine(observers=[events.append])
    batch = [record(0, "a"), record(1, "a"), record(2, "")]
    deduplicator.admit(batch)
    assert [(event.offset, event.verdict.kind.value) for event in events] == [(0, "fresh"), (2, "unkeyed")]
    deduplicator.complete(batch)
    assert [(event.offset, event.verdict.kind.value) for event in events[2:]] == [(1, "duplicate")]
    assert deduplicator.counters.verdicts == {
        "fresh": 1, "duplicate": 1, "redelivered": 0, "unverified": 0, "unkeyed": 1,
    }  # fmt: skip


def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and counted, the others are called, and the verdicts come."""
    events: list[VerdictEvent] = []

    def broken(event: VerdictEvent) -> None:
        raise RuntimeError(str(event.offset))

    deduplicator = engine(observers=[broken, events.append])
    assert kinds(deduplicator.admit([record(0), record(1)])) == ["fresh", "fresh"]
    assert len(events) == 2
    assert deduplicator.counters.observer_errors == 2
    assert "an observer failed at t[0]@0" in caplog.text


def test_verdicts_are_delivered_by_their_kind() -> None:
    """Fresh, unverified and unkeyed records are delivered; no other is."""
    deduplicator = engine()
    deduplicator.open("t", 0, committed=5, low=0)
    [verdict] = deduplicator.admit([record(5)])
    assert (verdict.kind, verdict.deliver, verdict.reason) == (VerdictKind.UNVERIFIED, True, "uncovered")
    [verdict] = deduplicator.admit([record(2)])
    assert (verdict.kind, verdict.deliver) == (VerdictKind.REDELIVERED, False)


def test_a_record_is_a_plain_value() -> None:
    """The returned record equals the one given."""
    given_ = Record("t", 0, 1, 2, b"k", b"v", [("h", None)])
    deduplicator = engine()
    deduplicator.admit([given_])
    [again] = deduplicator.release([given_])
    assert again.record is given_
