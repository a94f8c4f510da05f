"""How partitions open and close, and the knowledge about them."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dedup_sdk import Deduplicator, Record
from dedup_sdk._core.reach import plan_start
from dedup_sdk._marks import Coverage, Marks, Progress
from dedup_sdk._store.memory import MemoryPartition, MemoryStore
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, StoreLockedError
from tests.support.disks import keeping
from tests.support.records import DAY_MS, engine, kinds, record

FUTURE_MS = 10**15


@pytest.fixture(params=["memory", "rocks"])
def key_store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    """Each of the stores, empty."""
    return MemoryStore() if request.param == "memory" else RocksStore(tmp_path / "store", generation_marks=1)


def handled(store: KeyStore, *records: Record, **settings: Any) -> Deduplicator:
    """Return an engine that has completed these records, and closed their partition."""
    found = engine(store=store, **settings)
    found.admit(records)
    found.complete(records)
    found.close("t", 0)
    return found


def test_a_new_group_begins_with_its_first_record() -> None:
    """Until that comes there is nothing to commit, and nothing before it is ever taken for completed."""
    deduplicator = engine()
    assert deduplicator.open("t", 0) == Coverage(low=0, high=0, since_ms=None, complete=True)
    assert deduplicator.next_offset("t", 0) is None
    deduplicator.admit([record(1000)])
    assert deduplicator.next_offset("t", 0) == 1000
    deduplicator.complete([record(1000)])
    deduplicator.close("t", 0)
    assert deduplicator.open("t", 0) == Coverage(low=1000, high=1001, since_ms=None, complete=True)


def test_a_beginning_that_never_came_is_forgotten() -> None:
    """A group that opened a partition and handled nothing is as new as before."""
    store = MemoryStore()
    with_nothing = engine(store=store)
    with_nothing.open("t", 0)
    with_nothing.close("t", 0)
    deduplicator = engine(store=store)
    assert kinds(deduplicator.admit([record(50)])) == ["fresh"]
    assert deduplicator.open("t", 1).complete
    assert deduplicator.next_offset("t", 0) == 50


@pytest.mark.parametrize("cut_back", [False, True])
def test_a_store_that_says_the_same_is_not_written_to(
    monkeypatch: pytest.MonkeyPatch, *, cut_back: bool
) -> None:
    """An opening that begins with the stored state writes nothing.

    One that was cut back to a part of it does, before anything comes.
    """
    store = MemoryStore()
    handled(store, record(0, "a"), record(1, "b"))
    opened = engine(store=store).attach("t", 0)
    assert opened.loaded is not None
    kept = opened.loaded.progress
    if cut_back:
        kept = replace(kept, high=1)
        opened.loaded = replace(opened.loaded, progress=kept)
    written: list[Progress] = []
    append = MemoryPartition.append

    def noted(partition: MemoryPartition, progress: Progress, marks: Marks) -> None:
        written.append(progress)
        append(partition, progress, marks)

    monkeypatch.setattr(MemoryPartition, "append", noted)
    plan = plan_start(kept, committed=kept.high, low=0, complete=True)
    opened.start(replace(plan, progress=kept))
    assert [each.high for each in written] == ([1] if cut_back else [])


def test_a_commit_that_the_store_does_not_know_of_is_uncovered() -> None:
    """Its history is there, its marks are not: records are delivered in doubt until the window has filled."""
    deduplicator = engine(Window(milliseconds=100))
    coverage = deduplicator.open("t", 0, low=0, committed=10)
    assert (coverage.low, coverage.high, coverage.complete) == (0, 10, False)
    assert kinds(deduplicator.admit([record(10, "a", 1000)])) == ["unverified"]
    assert kinds(deduplicator.admit([record(11, "b", 1099), record(12, "c", 1100)])) == [
        "unverified",
        "fresh",
    ]


def test_a_record_from_the_future_begins_coverage_now() -> None:
    """Otherwise everything would be in doubt until that future has come."""
    deduplicator = engine(Window(milliseconds=100))
    deduplicator.open("t", 0, low=0, committed=10)
    deduplicator.admit([record(10, "a", FUTURE_MS)])
    assert kinds(deduplicator.admit([record(11, "b", DAY_MS + 99)])) == ["unverified"]
    assert kinds(deduplicator.admit([record(12, "c", DAY_MS + 100)])) == ["fresh"]


@pytest.mark.parametrize("again", [False, True])
def test_a_late_record_begins_no_coverage_before_what_was_forgotten(*, again: bool) -> None:
    """Forgotten records may be as new as the newest record below.

    A record that was late does not begin before that.
    """
    store = MemoryStore()
    deduplicator = engine(Window(milliseconds=100), store=store)
    batch = [record(0, "a", 1000), record(1, "b", 2000)]
    deduplicator.admit(batch)
    deduplicator.complete(batch)
    deduplicator.partitions["t", 0].skip_to(5)
    if again:
        deduplicator.close("t", 0)
        deduplicator = engine(Window(milliseconds=100), store=store)
    assert kinds(deduplicator.admit([record(5, "late", 500)])) == ["unverified"]
    assert kinds(deduplicator.admit([record(6, "c", 2000), record(7, "d", 2100)])) == ["unverified", "fresh"]


def test_a_record_without_a_timestamp_begins_no_coverage() -> None:
    """It cannot say from when on sightings are known."""
    deduplicator = engine(Window(milliseconds=100))
    deduplicator.open("t", 0, low=0, committed=10)
    assert kinds(deduplicator.admit([record(10, "a", -1), record(11, "b", 1000)])) == [
        "unverified",
        "unverified",
    ]
    assert kinds(deduplicator.admit([record(12, "c", 1050), record(13, "d", 1100)])) == [
        "unverified",
        "fresh",
    ]


def test_a_count_window_is_covered_when_enough_were_accepted() -> None:
    """Then whatever came before the beginning has left it."""
    deduplicator = engine(Window(count=2))
    deduplicator.open("t", 0, low=0, committed=10)
    for offset, kind in enumerate(["unverified", "unverified", "fresh"], start=10):
        assert kinds(deduplicator.admit([record(offset)])) == [kind]
        deduplicator.complete([record(offset)])


def test_a_commit_behind_the_store_is_recognised() -> None:
    """Records completed but not committed come again, and are known."""
    store = MemoryStore()
    handled(store, record(0), record(1))
    second = engine(store=store)
    assert second.open("t", 0, low=0, committed=1) == Coverage(low=0, high=2, since_ms=None, complete=True)
    assert kinds(second.admit([record(1), record(2)])) == ["redelivered", "fresh"]


def test_a_commit_that_nobody_told_of_is_not_made_up() -> None:
    """Opening without one does not turn the next true commit into a rewind."""
    store = MemoryStore()
    first = handled(store, record(0), record(1))
    engine(store=store).open("t", 0)
    first.lose("t", 0)
    store.close()
    assert engine(store=store).open("t", 0, low=0, committed=1).high == 2


def test_a_rewind_is_processed_again() -> None:
    """A start below the last known commit is a reset: the records behind it are delivered again."""
    store = MemoryStore()
    handled(store, record(0), record(1))
    second = engine(store=store)
    second.open("t", 0, low=0, committed=2)
    second.close("t", 0)
    second.open("t", 0, low=0, committed=1)
    assert [verdict.deliver for verdict in second.admit([record(1)])] == [True]


def test_a_partition_is_opened_once() -> None:
    """By one engine, and by one engine of all that share a store."""
    store = MemoryStore()
    deduplicator = engine(store=store)
    deduplicator.open("t", 0)
    with pytest.raises(ConfigurationError, match=r"t\[0\] is open already; close it first"):
        deduplicator.open("t", 0)
    with pytest.raises(StoreLockedError):
        engine(store=store).open("t", 0)
    deduplicator.close("t", 0)
    deduplicator.close("t", 0)
    engine(store=store).open("t", 0)


@pytest.mark.parametrize("given_", [{"low": -1}, {"committed": -5}, {"low": -1, "committed": 3}])
def test_negative_offsets_are_refused(given_: dict[str, int]) -> None:
    """In one line that names them, and nothing stays open."""
    deduplicator = engine()
    with pytest.raises(
        ConfigurationError,
        match="an offset is a whole number, and not negative; leave it out if it is unknown",
    ):
        deduplicator.open("t", 0, **given_)
    deduplicator.open("t", 0)


def test_leaving_the_engine_writes_and_closes_everything() -> None:
    """With the block the partitions are closed, and the store too."""
    store = MemoryStore()
    with engine(store=store) as deduplicator:
        deduplicator.admit([record(0), record(0, partition=1)])
        deduplicator.complete([record(0), record(0, partition=1)])
    assert kinds(engine(store=store).admit([record(0), record(0, partition=1)])) == ["redelivered"] * 2


def test_a_record_from_the_future_makes_nothing_look_old() -> None:
    """Neither while the engine lives nor after it was opened again: its timestamp counts as now."""
    store = MemoryStore()
    handled(keeping(1, store), record(0, "a", DAY_MS), record(1, "b", FUTURE_MS))
    second = engine(store=keeping(1, store))
    second.admit([record(2, "c", DAY_MS)])
    second.complete([record(2, "c", DAY_MS)])
    assert kinds(second.admit([record(3, "a", DAY_MS), record(4, "d", DAY_MS)])) == ["duplicate", "fresh"]


def test_what_is_forgotten_by_age_is_doubted_whatever_its_number() -> None:
    """With both windows a record that comes late is in doubt, even if few were accepted since."""
    deduplicator = engine(Window(milliseconds=160, count=100), store=keeping(2))
    batch = [record(0, "a", 1000), record(1, "b", 2000), record(2, "c", 2000)]
    deduplicator.admit(batch)
    deduplicator.complete(batch)
    assert kinds(deduplicator.admit([record(3, "a", 1000)])) == ["unverified"]
    assert kinds(deduplicator.admit([record(4, "d", 2000)])) == ["fresh"]


def test_a_store_whose_owner_deletes_a_log_is_locked_and_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opens it looks at its logs before it is told that another one has it.

    One that is gone by then is no damage.
    """
    store = RocksStore(tmp_path)
    first, second = engine(store=store), engine(store=store)
    first.admit([record(0)])
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path.suffix == ".log":
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(StoreLockedError, match="is open"):
        second.admit([record(0, "b")])
    first.close("t", 0)


def test_an_engine_closes_what_it_has_opened_and_no_more(key_store: KeyStore) -> None:
    """Two engines over one store: each partition belongs to the one that opened it, until that one lets it go."""
    first, second = engine(store=key_store), engine(store=key_store)
    first.admit([record(0)])
    with pytest.raises(StoreLockedError, match="is open in another consumer"):
        second.admit([record(0, "b")])
    second.admit([record(5, partition=1)])
    with first:
        first.complete([record(0)])
    second.complete([record(5, partition=1)])
    assert kinds(second.admit([record(5, partition=1), record(0), record(1, "#0")])) == [
        "redelivered",
        "redelivered",
        "duplicate",
    ]
    second.shut()


@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.parametrize(
    ("shorter", "longer", "doubted"),
    [
        (Window(count=4), Window(count=8), 8 - 4),
        (Window(count=4), Window(count=4, hours=1), 0),
        (Window(count=4, hours=1), Window(count=8, hours=1), 8 - 4),
        (Window(count=4, hours=1), Window(count=8), 8 - 4),
        (Window(count=4, hours=1), Window(hours=1), 10),
        (Window(seconds=4), Window(seconds=8), 3),
    ],
    ids=str,
)
def test_a_longer_window_knows_less_than_a_new_one(
    key_store: KeyStore,
    shorter: Window,
    longer: Window,
    doubted: int,
    in_files: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    """IDs that the shorter one dropped, for their number or age, are in doubt until the longer one has filled."""
    now = (DAY_MS + 60_000) / 1_000
    first = engine(shorter, store=keeping(1 if in_files else 100, key_store), clock=lambda: now)
    for offset in range(12):
        each = record(offset, f"id-{offset}", DAY_MS + 1_000 * offset)
        first.admit([each])
        first.complete([each])
    first.partitions["t", 0].flush()
    first.close("t", 0)

    second = engine(longer, store=key_store, clock=lambda: now)
    told = []
    for offset in range(12, 22):
        each = record(offset, f"id-{offset}", DAY_MS + 1_000 * offset)
        told += kinds(second.admit([each]))
        second.complete([each])
    assert told == ["unverified"] * doubted + ["fresh"] * (10 - doubted)
    second.close("t", 0)


def test_the_folder_of_the_store_is_known(tmp_path: Path) -> None:
    """Snapshots from elsewhere are fetched to its disk; a store in memory has none."""
    assert engine(store=RocksStore(tmp_path)).store_folder == tmp_path
    assert engine().store_folder is None
