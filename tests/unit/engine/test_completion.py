"""How records end: completed, released, dead-lettered; and the commit allowed meanwhile."""

from __future__ import annotations

from dedup_sdk._record import VerdictKind
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._window import Window
from tests.support.disks import keeping
from tests.support.records import engine, kinds, offsets, record


def test_the_offset_to_commit_never_passes_what_is_not_over() -> None:
    """Completion comes in any order; the watermark moves over the contiguous prefix only."""
    deduplicator = engine()
    batch = [record(offset) for offset in range(10, 15)]
    assert deduplicator.next_offset("t", 0) is None
    deduplicator.admit(batch)
    for ended, next_offset in [(3, 10), (1, 10), (0, 12), (4, 12), (2, 15)]:
        deduplicator.complete([batch[ended]])
        assert deduplicator.next_offset("t", 0) == next_offset


def test_a_parked_record_holds_the_offset_back() -> None:
    """A twin is over only when it has its verdict."""
    deduplicator = engine()
    batch = [record(0, "a"), record(1, "b"), record(2, "a")]
    deduplicator.admit(batch)
    deduplicator.complete([batch[1]])
    assert deduplicator.next_offset("t", 0) == 0
    assert kinds(deduplicator.complete([batch[0]])) == ["duplicate"]
    assert deduplicator.next_offset("t", 0) == 3


def test_a_twin_is_told_what_it_was() -> None:
    """Parked records that are judged now are returned, in order; a duplicate is not to be delivered."""
    deduplicator = engine()
    batch = [record(0, "a"), record(1, "a"), record(2, "a")]
    assert kinds(deduplicator.admit(batch)) == ["fresh", "parked", "parked"]
    settled = deduplicator.complete([batch[0]])
    assert [
        (one.record, one.verdict.kind, one.verdict.deliver, one.verdict.seen_offset) for one in settled
    ] == [
        (batch[1], VerdictKind.DUPLICATE, False, 0),
        (batch[2], VerdictKind.DUPLICATE, False, 1),
    ]


def test_a_twin_outside_the_window_is_delivered_after_the_first() -> None:
    """It waits all the same, and the next one waits for it."""
    deduplicator = engine(Window(milliseconds=10))
    batch = [record(0, "a", 1000), record(1, "a", 2000), record(2, "a", 2005)]
    assert kinds(deduplicator.admit(batch)) == ["fresh", "parked", "parked"]
    [settled] = deduplicator.complete([batch[0]])
    assert (settled.record, settled.verdict.kind, settled.verdict.deliver) == (
        batch[1],
        VerdictKind.FRESH,
        True,
    )
    assert kinds(deduplicator.complete([batch[1]])) == ["duplicate"]


def test_completing_a_parked_record_changes_nothing() -> None:
    """The application never had it, so that it cannot be done with it."""
    deduplicator = engine()
    batch = [record(0, "a"), record(1, "a")]
    deduplicator.admit(batch)
    assert deduplicator.complete([batch[1]]) == []
    assert deduplicator.dead_letter([batch[1]]) == []
    assert deduplicator.release([batch[1]]) == []
    assert deduplicator.next_offset("t", 0) == 0
    assert kinds(deduplicator.complete([batch[0]])) == ["duplicate"]
    assert deduplicator.counters.dead_lettered == 0


def test_a_released_record_comes_again_and_its_twins_wait() -> None:
    """Promoting a twin would double the message: the record itself is offered, attempt by attempt."""
    deduplicator = engine()
    batch = [record(0, "a"), record(1, "a")]
    deduplicator.admit(batch)
    for attempt in (2, 3):
        [again] = deduplicator.release([batch[0]])
        assert (again.record, again.verdict.attempt, again.verdict.deliver) == (batch[0], attempt, True)
    assert kinds(deduplicator.complete([batch[0]])) == ["duplicate"]
    assert deduplicator.counters.released == 2
    assert deduplicator.counters.verdicts["fresh"] == 1


def test_duplicates_of_a_dead_lettered_record_are_duplicates() -> None:
    """The dead letter stands for the message: its repeats are hidden, whether it waited or comes later."""
    deduplicator = engine()
    batch = [record(0, "a"), record(1, "a"), record(2, "a")]
    deduplicator.admit(batch)
    assert kinds(deduplicator.dead_letter([batch[0]])) == ["duplicate"] * 2
    assert deduplicator.next_offset("t", 0) == 3
    assert deduplicator.counters.dead_lettered == 1


def test_a_dead_lettered_record_is_over() -> None:
    """It holds nothing back, does not come again, and a later record with its ID is a duplicate."""
    deduplicator = engine()
    deduplicator.admit([record(0, "a")])
    deduplicator.dead_letter([record(0, "a")])
    assert deduplicator.next_offset("t", 0) == 1
    assert kinds(deduplicator.admit([record(0, "a"), record(1, "a")])) == ["redelivered", "duplicate"]


def test_stale_completions_are_counted_and_change_nothing() -> None:
    """For a partition that is closed or lost, a record that never came, or one that is over."""
    deduplicator = engine()
    deduplicator.complete([record(0)])
    assert deduplicator.counters.stale == 1
    deduplicator.admit([record(0), record(1)])
    deduplicator.complete([record(0)])
    deduplicator.complete([record(0)])
    deduplicator.complete([record(7)])
    deduplicator.dead_letter([record(0)])
    deduplicator.release([record(0)])
    assert deduplicator.counters.stale == 5
    deduplicator.close("t", 0)
    assert deduplicator.complete([record(1)]) == []
    assert deduplicator.counters.stale == 6
    assert deduplicator.next_offset("t", 0) is None


def test_a_lost_partition_writes_nothing() -> None:
    """Its completions belong to the past; the next owner on this disk sees the record again."""
    store = MemoryStore()
    deduplicator = engine(store=store)
    deduplicator.admit([record(0), record(1)])
    deduplicator.complete([record(0)])
    deduplicator.lose("t", 0)
    deduplicator.complete([record(1)])
    assert deduplicator.counters.stale == 1
    assert kinds(engine(store=store).admit([record(0), record(1)])) == ["redelivered", "fresh"]


def test_what_complete_was_told_is_in_the_store_when_it_returns() -> None:
    """Out of order too: an engine that comes after a crash does not deliver it again."""
    store = MemoryStore()
    deduplicator = engine(store=store)
    deduplicator.admit([record(offset, "same" if offset == 3 else None) for offset in range(4)])
    deduplicator.complete([record(1), record(3, "same")])
    deduplicator.lose("t", 0)
    after = engine(store=store)
    verdicts = after.admit([*(record(offset) for offset in range(3)), record(3, "same"), record(4, "same")])
    assert kinds(verdicts) == ["fresh", "redelivered", "fresh", "redelivered", "duplicate"]


def test_duplicates_are_in_the_store_before_they_can_be_committed() -> None:
    """They complete by themselves, and the offset to commit passes them."""
    store = MemoryStore()
    deduplicator = engine(store=store)
    deduplicator.admit([record(0, "a")])
    deduplicator.complete([record(0, "a")])
    deduplicator.admit([record(1, "a"), record(2, "a")])
    assert deduplicator.next_offset("t", 0) == 3
    deduplicator.lose("t", 0)
    assert kinds(engine(store=store).admit([record(2, "a"), record(3, "a")])) == ["redelivered", "duplicate"]


def test_only_duplicates_are_trimmed_too() -> None:
    """A log of nothing but duplicates does not fill the memory, although nobody completes anything."""
    deduplicator = engine(Window(count=1000), store=keeping(10))
    names = [f"n{number}" for number in range(50)]
    deduplicator.admit([record(offset, name) for offset, name in enumerate(names)])
    deduplicator.complete([record(offset, name) for offset, name in enumerate(names)])
    for begin in range(50, 1000, 50):
        assert (
            kinds(deduplicator.admit([record(begin + at, name) for at, name in enumerate(names)]))
            == ["duplicate"] * 50
        )
        assert deduplicator.partitions["t", 0].writer.recent <= 10


def test_records_of_several_partitions_end_together() -> None:
    """One call completes records of many partitions."""
    deduplicator = engine()
    batch = [record(0, "a"), record(0, "a", partition=1), record(1, "a"), record(1, "a", partition=1)]
    assert kinds(deduplicator.admit(batch)) == ["fresh", "fresh", "parked", "parked"]
    settled = deduplicator.complete(batch[:2])
    assert [one.record.partition for one in settled] == [0, 1]
    assert offsets(settled) == [1, 1]
    assert (deduplicator.next_offset("t", 0), deduplicator.next_offset("t", 1)) == (2, 2)
