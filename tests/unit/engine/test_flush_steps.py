"""A flush of many marks goes on a step a call, while records come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine import partition
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._marks import Marks
from dedup_sdk._store import generations
from dedup_sdk._store.generations import RocksGenerations
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksPartition, RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreUnavailableError
from dedup_sdk.ids import RecordFields, key
from tests.support.marks import write_snapshot
from tests.support.records import DAY_MS, HOUR, engine, kinds, record
from tests.support.steps import finish, installing

MANY = 100


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "ADDED_AT_ONCE", 10)
    monkeypatch.setattr(partition, "FLUSH_AT", MANY)


@pytest.fixture
def deduplicator(tmp_path: Path) -> Iterator[Deduplicator]:
    """An engine with a store on the disk, and the first records completed: a flush has begun."""
    with engine(HOUR, store=RocksStore(tmp_path / "store"), tolerates_full_disk=True) as made:
        handle(made, range(MANY))
        yield made


def handle(deduplicator: Deduplicator, offsets: range) -> list[str]:
    """Admit and complete a batch; return the kinds of its verdicts."""
    records = [record(offset) for offset in offsets]
    found = kinds(deduplicator.admit(records))
    deduplicator.complete(records)
    return found


def only(deduplicator: Deduplicator) -> Partition:
    """Return the one partition."""
    (found,) = deduplicator.partitions.values()
    return found


def again(deduplicator: Deduplicator, at: int, offsets: range) -> list[str]:
    """Admit records from offset ``at`` on, with the IDs of some others."""
    return kinds(deduplicator.admit([record(at + offset, f"#{offset}") for offset in offsets]))


def refuse(*_: object) -> None:
    """Behave like a full disk."""
    raise StoreUnavailableError("the disk is full")


def flush_on_a_full_disk(
    deduplicator: Deduplicator, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """Go on with the flush that is under way, while this method finds no room."""
    with monkeypatch.context() as full:
        full.setattr(owner, name, refuse)
        only(deduplicator).writer.finish_flush()


def test_a_flush_takes_several_calls_and_every_id_is_known_at_each(deduplicator: Deduplicator) -> None:
    """Marks that are on their way to a file make duplicates."""
    at, calls = MANY, 0
    while only(deduplicator).writer.flushing is not None:
        assert len(only(deduplicator).store.find(*joined(range(MANY))).indexes) == MANY
        assert again(deduplicator, at, range(calls, calls + 3)) == ["duplicate"] * 3
        at, calls = at + MANY, calls + 1
    assert calls > MANY / 10 / 2
    assert only(deduplicator).store.stats().marks == MANY
    assert again(deduplicator, at, range(MANY)) == ["duplicate"] * MANY


def test_a_flush_that_falls_behind_takes_more_steps_a_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three where as many marks came meanwhile as begin one, all where they are twice as many."""
    steps = list[int]()
    step = Partition.flush_step

    def counted(flushed: Partition) -> None:
        steps[-1] += 1
        step(flushed)

    monkeypatch.setattr(Partition, "flush_step", counted)
    with engine(HOUR, store=RocksStore(tmp_path / "store", recent_marks=MANY)) as made:
        handled = 0
        for more in (MANY, 1, MANY - 2, 1, MANY):
            steps.append(0)
            handle(made, range(handled, handled + more))
            handled += more
        # A batch is two calls, one as it comes and one as it is completed; the first one finds nothing to flush.
        assert steps[:4] == [1, 1 + 1, 1 + 1, 1 + 3]
        assert steps[4] > 3 + 3


def test_what_is_completed_meanwhile_is_flushed_later(deduplicator: Deduplicator) -> None:
    """The journal keeps the steps that came after a flush began."""
    assert handle(deduplicator, range(MANY, MANY + 5)) == ["fresh"] * 5
    only(deduplicator).writer.finish_flush()
    stats = only(deduplicator).store.stats()
    assert (stats.marks, stats.recent) == (MANY, 5)


def test_what_is_completed_meanwhile_is_written_with_its_mark(tmp_path: Path) -> None:
    """A file that leaves the window after a flush is noted, and what was completed since the flush began with it."""
    early = [record(offset, timestamp_ms=DAY_MS // 2) for offset in range(MANY)]
    with engine(HOUR, store=RocksStore(tmp_path / "store", generation_marks=10)) as made:
        made.admit(early)
        made.complete(early)
        only(made).writer.finish_flush()
        made.admit([record(MANY, "in hand")])
        handle(made, range(MANY + 1, 2 * MANY + 1))
        only(made).complete([MANY])
        only(made).writer.finish_flush()
        assert only(made).store.stats().marks == MANY
        made.lose("t", 0)
        assert kinds(made.admit([record(MANY, "in hand"), record(3 * MANY, "in hand")])) == [
            "redelivered",
            "duplicate",
        ]


def test_a_flush_that_is_left_undone_loses_nothing(tmp_path: Path) -> None:
    """Whoever closes or dies in the middle finds all marks in the journal."""
    store = RocksStore(tmp_path / "store")
    first = engine(HOUR, store=store)
    handle(first, range(MANY))
    assert only(first).writer.flushing is not None
    first.lose("t", 0)
    with engine(HOUR, store=store) as second:
        second.open("t", 0)
        assert again(second, MANY, range(MANY)) == ["duplicate"] * MANY


def test_a_flush_that_a_full_disk_refuses_puts_its_marks_back(
    deduplicator: Deduplicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recent again, and flushed when there is room."""
    flush_on_a_full_disk(deduplicator, monkeypatch, RocksGenerations, "ingest")
    assert deduplicator.disk_full
    assert only(deduplicator).memory.recent_count == MANY
    assert again(deduplicator, MANY, range(MANY)) == ["duplicate"] * MANY
    assert deduplicator.write_again()
    only(deduplicator).flush()
    assert sum(marks.count for marks in only(deduplicator).store.scan()) == MANY
    assert again(deduplicator, 2 * MANY, range(MANY)) == ["duplicate"] * MANY


def test_an_id_in_flight_keeps_its_mark_when_a_flush_fails(
    deduplicator: Deduplicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came again beyond its window while its mark was on the way; a late copy inside the window is a duplicate."""
    long_after = record(MANY, "#7", DAY_MS + 2 * 3_600_000)
    assert kinds(deduplicator.admit([long_after])) == ["fresh"]
    flush_on_a_full_disk(deduplicator, monkeypatch, RocksGenerations, "ingest")
    assert deduplicator.write_again()
    only(deduplicator).flush()
    deduplicator.lose("t", 0)
    deduplicator.open("t", 0)
    late = record(MANY + 1, "#7", DAY_MS + 60_000)
    assert kinds(deduplicator.admit([late])) == ["duplicate"]


def test_a_disk_that_is_full_after_a_flush_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The marks are written; files that left the window go later."""
    early = [record(offset, timestamp_ms=DAY_MS // 2) for offset in range(MANY)]
    with engine(
        HOUR, store=RocksStore(tmp_path / "store", generation_marks=10), tolerates_full_disk=True
    ) as made:
        made.admit(early)
        made.complete(early)
        only(made).writer.finish_flush()
        handle(made, range(MANY, 2 * MANY))
        flush_on_a_full_disk(made, monkeypatch, RocksPartition, "expire")
        assert made.disk_full
        assert only(made).store.stats().marks == 2 * MANY
        assert made.write_again()
        only(made).flush()
        assert only(made).store.stats().marks == MANY


@pytest.mark.parametrize("way", ["refused", "doubted"])
def test_no_number_leaves_a_window_that_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The store counts fewer IDs than memory, because the steps since the flush began are not in it.

    A restart reads these records again, and its window reaches farther back.
    """
    doubts: list[int] = []
    store = RocksStore(tmp_path / "store", generation_marks=10)
    made = engine(Window(count=MANY), store=store, tolerates_full_disk=True)
    made.write_unless(lambda: bool(doubts))
    for first in (0, MANY):
        handle(made, range(first, first + MANY))
        if not first:
            only(made).writer.finish_flush()
    assert only(made).writer.flushing is not None
    if way == "doubted":
        doubts.append(1)
    else:
        monkeypatch.setattr(only(made).store, "append", refuse)
    for place in made.admit([record(offset) for offset in range(2 * MANY, 3 * MANY)]):
        assert place.deliver
    only(made).complete(range(2 * MANY, 3 * MANY))
    only(made).persist()
    only(made).writer.finish_flush()
    made.lose("t", 0)
    with engine(Window(count=MANY), store=store) as restarted:
        assert again(restarted, 2 * MANY, range(MANY, 2 * MANY)) == ["duplicate"] * MANY


def test_a_fenced_partition_goes_on_with_no_flush(deduplicator: Deduplicator) -> None:
    """Another owner may have the store: nothing more is written."""
    only(deduplicator).fence()
    assert only(deduplicator).writer.flushing is None
    deduplicator.trim()
    only(deduplicator).flush()
    assert only(deduplicator).store.stats().marks == 0


def test_marks_that_come_quicker_than_they_go_are_flushed_at_once(tmp_path: Path) -> None:
    """Memory is bounded by twice ``recent_marks``, however large a batch is."""
    with engine(HOUR, store=RocksStore(tmp_path / "store", recent_marks=30)) as deduplicator:
        for start in range(0, 1_000, 50):
            handle(deduplicator, range(start, start + 50))
            assert only(deduplicator).writer.recent <= 2 * 30 + 50


def test_a_fenced_partition_holds_up_no_other(
    deduplicator: Deduplicator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is flushed no more, however many marks it has; the next one is."""
    only(deduplicator).writer.finish_flush()
    handle(deduplicator, range(MANY, 2 * MANY - 1))
    only(deduplicator).fence()
    monkeypatch.setattr(partition, "FLUSH_AT", MANY // 2)
    records = [record(offset, f"other{offset}", partition=1) for offset in range(MANY)]
    deduplicator.admit(records)
    deduplicator.complete(records)
    assert deduplicator.partitions["t", 1].writer.flushing is not None


def test_marks_that_cannot_be_flushed_make_no_small_files_of_others(tmp_path: Path) -> None:
    """A partition that is fenced, or whose disk is full, keeps its marks; the others fill their own room first."""
    with engine(HOUR, store=RocksStore(tmp_path / "store", recent_marks=50)) as deduplicator:
        handle(deduplicator, range(40))
        only(deduplicator).fence()
        records = [record(offset, f"other{offset}", partition=1) for offset in range(15)]
        deduplicator.admit(records)
        deduplicator.complete(records)
        assert deduplicator.partitions["t", 1].store.stats().marks == 0


def test_many_partitions_are_flushed_in_one_call_if_memory_is_short(tmp_path: Path) -> None:
    """One after the other, until the marks in memory are few enough."""
    with engine(HOUR, store=RocksStore(tmp_path / "store", recent_marks=30)) as deduplicator:
        records = [
            record(offset, f"{number}-{offset}", partition=number)
            for number in range(4)
            for offset in range(60)
        ]
        deduplicator.admit(records)
        deduplicator.complete(records)
        assert sum(each.writer.recent for each in deduplicator.partitions.values()) <= 2 * 30


def test_a_partition_that_starts_anew_forgets_its_flush(deduplicator: Deduplicator) -> None:
    """Its marks are of a log that is gone: nothing of them may come back."""
    only(deduplicator).start(plan_start(None, committed=0, low=0))
    assert only(deduplicator).writer.flushing is None
    for _ in range(MANY):
        deduplicator.trim()
    assert list(only(deduplicator).store.scan()) == []
    assert set(handle(deduplicator, range(MANY))) == {"unverified"}


def test_a_flush_does_not_go_on_while_a_snapshot_is_installed(tmp_path: Path) -> None:
    """The snapshot has half of the marks; the other half is of records above its cut, which are gone."""
    identity = Identity(cluster="c", group="billing", topic="t", partition=0, id_spec="key")
    with engine(HOUR, store=RocksStore(tmp_path / "store"), cluster="c", group="billing") as deduplicator:
        handle(deduplicator, range(MANY))
        held = only(deduplicator)
        known = held.store.find(*joined(range(MANY // 2)))
        marks = Marks(joined(range(MANY // 2))[0], np.array(known.offsets), np.array(known.timestamps))
        write_snapshot(tmp_path / "snapshot", marks, identity=identity, high=MANY // 2, window="1h")
        plan = plan_start(None, committed=MANY // 2, low=0)
        for _ in installing(held, tmp_path / "snapshot", plan):
            for _ in range(5):
                deduplicator.trim()
        assert sum(each.count for each in held.store.scan()) == MANY // 2
        assert set(handle(deduplicator, range(MANY // 2, MANY))) == {"unverified"}


def test_a_crash_after_a_snapshot_takes_its_log_for_no_other_one(tmp_path: Path) -> None:
    """The maker of a snapshot leaves out marks for their age: a record without a mark proves nothing."""
    identity = Identity(cluster="c", group="billing", topic="t", partition=0, id_spec="key")
    store = RocksStore(tmp_path / "store")
    newest = record(MANY - 1)
    with engine(HOUR, store=store, cluster="c", group="billing") as deduplicator:
        held = deduplicator.attach("t", 0)
        marks = Marks(joined(range(MANY // 2))[0], np.arange(MANY // 2), np.full(MANY // 2, DAY_MS))
        write_snapshot(tmp_path / "snapshot", marks, identity=identity, high=MANY, window="1h")
        plan = plan_start(None, committed=MANY, low=0, complete=True)
        plan = replace(plan, progress=replace(plan.progress, high=MANY))
        finish(installing(held, tmp_path / "snapshot", plan))
        deduplicator.lose("t", 0)
        deduplicator.open("t", 0)
        found = only(deduplicator).another_log(
            [newest.offset], np.array([DAY_MS]), key().digests(RecordFields([newest])), lambda: [None]
        )
        assert found is None


def joined(offsets: range) -> tuple[bytes, int]:
    """Return the joined digests of records, and their number."""
    digests = RecordFields([record(offset) for offset in offsets])
    return b"".join(each or b"" for each in key().digests(digests).digests), len(offsets)
