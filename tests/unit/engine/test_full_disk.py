"""The engine when its store has no room."""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dedup_sdk import Deduplicator, Lookup, MemoryStore, Record, RocksStore, Window
from dedup_sdk._core.reach import plan_start
from dedup_sdk._marks import NO_MARKS
from dedup_sdk._store.paths import list_partitions
from dedup_sdk.errors import StoreUnavailableError
from dedup_sdk.ids import Ids, digest_one, key
from tests.support.disks import FullStore, keeping

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from dedup_sdk._store.protocol import KeyStore

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def engine(store: KeyStore, **settings: object) -> Deduplicator:
    """An engine with a window of a day, whose clock stands where the records are."""
    strategy = Lookup(id=key(), window=Window(hours=24))
    return Deduplicator(
        strategy,
        store,
        clock=lambda: (START_MS + 1_000 * HOUR_MS) / 1000,
        **settings,  # type: ignore[arg-type]
    )


def records(begin: int, end: int, *, partition: int = 0, ids: int = 0, step_ms: int = 1) -> list[Record]:
    """Records with IDs of their own, counted from ``ids`` on."""
    return [
        Record("t", partition, offset, START_MS + offset * step_ms, key=b"%d" % (ids + offset))
        for offset in range(begin, end)
    ]


def kinds(deduplicator: Deduplicator, batch: list[Record]) -> set[str]:
    """Admit and complete a batch; return the verdicts there were."""
    verdicts = deduplicator.admit(batch)
    deduplicator.complete([one for one, verdict in zip(batch, verdicts, strict=True) if verdict.deliver])
    return {verdict.kind.value for verdict in verdicts}


def test_a_full_disk_is_an_error_and_nothing_is_forgotten() -> None:
    """By default `complete` raises; the completion is written with the next step that finds room."""
    store = FullStore()
    deduplicator = engine(store)
    assert kinds(deduplicator, records(0, 10)) == {"fresh"}
    store.full = True
    with pytest.raises(StoreUnavailableError, match="there is no room"):
        kinds(deduplicator, records(10, 20))
    store.full = False
    assert kinds(deduplicator, records(20, 30)) == {"fresh"}
    deduplicator.shut()
    assert kinds(engine(store), records(30, 60, ids=-30)) == {"duplicate"}


def test_one_that_bears_it_goes_on_and_writes_later() -> None:
    """While there is no room everything is judged as ever; once there is, all of it outlives the engine."""
    store = FullStore()
    deduplicator = engine(keeping(30, store), tolerates_full_disk=True)
    kinds(deduplicator, records(0, 10))
    store.full = True
    assert kinds(deduplicator, records(10, 50)) == {"fresh"}
    assert kinds(deduplicator, records(50, 100, ids=-50)) == {"duplicate"}
    assert deduplicator.disk_full
    assert deduplicator.next_offset("t", 0) == 100
    assert not deduplicator.write_again()
    store.full = False
    assert deduplicator.write_again()
    deduplicator.lose("t", 0)
    again = engine(store)
    coverage = again.open("t", 0)
    assert (coverage.high, coverage.complete) == (100, True)
    assert kinds(again, records(100, 150, ids=-100)) == {"duplicate"}


def test_a_kill_while_there_is_no_room_forgets_what_was_not_written() -> None:
    """The store is then as it was before, whole: nothing in it claims unwritten marks."""
    store = FullStore()
    deduplicator = engine(store, tolerates_full_disk=True)
    kinds(deduplicator, records(0, 10))
    store.full = True
    kinds(deduplicator, records(10, 50))
    deduplicator.lose("t", 0)
    store.full = False
    again = engine(store)
    assert again.open("t", 0).high == 10
    assert kinds(again, records(10, 50)) == {"fresh"}


def test_what_becomes_too_much_is_given_up_and_said_to_be() -> None:
    """Memory is bounded: more than four times the recent marks are forgotten, and their IDs are unverified."""
    store = FullStore()
    deduplicator = engine(keeping(10, store), tolerates_full_disk=True)
    kinds(deduplicator, records(0, 10))
    store.full = True
    assert kinds(deduplicator, records(10, 60)) == {"fresh"}
    held = deduplicator.partitions["t", 0]
    assert held.writer.unwritten == 0
    assert kinds(deduplicator, records(60, 70)) == {"unverified"}
    assert kinds(deduplicator, records(70, 110, ids=-60)) == {"unverified"}
    store.full = False
    assert deduplicator.write_again()
    deduplicator.shut()
    assert not engine(store).open("t", 0).complete


def test_a_record_whose_mark_was_given_up_is_no_sign_of_another_log() -> None:
    """Also if the next one, with which coverage begins anew, has the same timestamp."""
    store = FullStore()
    deduplicator = engine(keeping(10, store), tolerates_full_disk=True)
    store.full = True
    kinds(deduplicator, records(0, 60, step_ms=0))
    store.full = False
    assert deduplicator.write_again()
    kinds(deduplicator, records(60, 61, step_ms=0))
    deduplicator.lose("t", 0)
    again = engine(store)
    assert again.open("t", 0).high == 61
    given_up = Ids([digest_one(b"59")], {})
    found = again.partitions["t", 0].another_log([59], np.array([START_MS]), given_up, lambda: [None])
    assert found is None


def test_an_owner_that_waits_for_room_forgets_nothing() -> None:
    """With ``forgets_unwritten=False`` even far more marks than may be in memory are known.

    They are written when there is room.
    """
    store = FullStore()
    deduplicator = engine(keeping(10, store), tolerates_full_disk=True, forgets_unwritten=False)
    kinds(deduplicator, records(0, 10))
    store.full = True
    kinds(deduplicator, records(10, 110))
    assert deduplicator.partitions["t", 0].writer.unwritten == 100
    store.full = False
    assert deduplicator.write_again()
    deduplicator.shut()
    assert kinds(engine(store), records(110, 220, ids=-110)) == {"duplicate"}


def test_a_disk_that_stays_full_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """`write_again` writes all that can be written, although it is not everything."""
    store = FullStore()
    deduplicator = engine(store, tolerates_full_disk=True)
    for number in (0, 1):
        kinds(deduplicator, records(0, 10, partition=number))
    store.full = True
    for number in (0, 1):
        kinds(deduplicator, records(10, 20, partition=number))
    store.full = False
    first, second = deduplicator.partitions["t", 0], deduplicator.partitions["t", 1]
    monkeypatch.setattr(first.store, "reopen", lambda: False)
    assert not deduplicator.write_again()
    assert (first.writer.disk_full, second.writer.disk_full) == (True, False)


LATE_MS = START_MS + 12 * HOUR_MS


def drops_next(deduplicator: Deduplicator, way: str) -> Callable[[], object]:
    """Complete 20 records, which are in a file of their own; the call that is returned has the marks dropped.

    By age the marks are dropped behind a flush, because a record has come that is 26 hours newer.
    """
    kinds(deduplicator, records(0, 20))
    partition = deduplicator.partitions["t", 0]
    partition.flush()
    if way == "evict":
        return partition.writer.evict
    kinds(deduplicator, [Record("t", 0, 20, START_MS + 26 * HOUR_MS, key=b"newest")])
    return partition.flush


def late_copies() -> list[Record]:
    """Copies of the 20 records whose time is 12 hours later: inside the window of a day."""
    return [replace(each, offset=40 + each.offset, timestamp_ms=LATE_MS) for each in records(0, 20)]


DROPS = pytest.mark.parametrize("way", ["evict", "expire"])


@DROPS
def test_a_crash_as_marks_are_dropped_leaves_no_coverage_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The store says first that it does not know them any more."""
    deduplicator = engine(RocksStore(tmp_path, generation_marks=1))
    drop = drops_next(deduplicator, way)
    partition = deduplicator.partitions["t", 0]
    dropped = getattr(partition.store, way)

    def crash(*given: object) -> None:
        assert dropped(*given) is not None
        raise KeyboardInterrupt

    monkeypatch.setattr(partition.store, way, crash)
    with pytest.raises(KeyboardInterrupt):
        drop()
    partition.abandon()
    again = engine(RocksStore(tmp_path))
    assert kinds(again, late_copies()) == {"unverified"}
    again.shut()


@DROPS
def test_marks_whose_end_is_not_written_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The disk refuses the progress that tells of the drop, as a full one may refuse any write."""
    deduplicator = engine(RocksStore(tmp_path, generation_marks=1), tolerates_full_disk=True)
    drop = drops_next(deduplicator, way)
    monkeypatch.setattr(deduplicator.partitions["t", 0].store, "append", refuse)
    drop()
    assert deduplicator.disk_full
    deduplicator.lose("t", 0)
    assert kinds(engine(RocksStore(tmp_path)), late_copies()) == {"duplicate"}


def refuse(*_: object) -> None:
    """Behave like a full disk."""
    raise StoreUnavailableError("there is no room")


@DROPS
def test_a_full_disk_that_refuses_a_drop_raises_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The progress is written: it claims less than the store has, until the disk has room and the marks are dropped."""
    store = RocksStore(tmp_path, generation_marks=1)
    deduplicator = engine(store, tolerates_full_disk=True)
    drop = drops_next(deduplicator, way)
    partition = deduplicator.partitions["t", 0]
    with monkeypatch.context() as full:
        full.setattr(partition.store, way, refuse)
        assert not drop()
    assert deduplicator.disk_full
    assert deduplicator.counters.generations_shed == 0
    assert partition.state.progress.known.since_ms == START_MS + 20
    assert partition.store.oldest_ms == START_MS + 9
    assert deduplicator.write_again()
    drop()
    assert partition.store.oldest_ms != START_MS + 9
    deduplicator.shut()


@DROPS
def test_a_full_disk_that_refuses_a_drop_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """For an engine that does not tolerate it."""
    deduplicator = engine(RocksStore(tmp_path, generation_marks=1))
    drop = drops_next(deduplicator, way)
    monkeypatch.setattr(deduplicator.partitions["t", 0].store, way, refuse)
    with pytest.raises(StoreUnavailableError, match="there is no room"):
        drop()
    deduplicator.lose("t", 0)


@pytest.mark.parametrize("way", ["persist", "append", "flush", "evict"])
def test_in_doubt_nothing_is_written(tmp_path: Path, way: str) -> None:
    """Whatever writes: the store has the progress, and the marks, of before."""
    doubts: list[int] = []
    deduplicator = engine(RocksStore(tmp_path))
    deduplicator.write_unless(lambda: bool(doubts))
    kinds(deduplicator, records(0, 10))
    partition = deduplicator.partitions["t", 0]
    partition.flush()
    since_ms = partition.state.progress.known.since_ms
    doubts.append(1)
    kinds(deduplicator, records(10, 20))
    writer = partition.writer
    ways = {"append": lambda: writer.append(partition.state.progress, NO_MARKS)}
    ways.get(way, getattr(writer, way))()
    partition.abandon()
    again = engine(RocksStore(tmp_path))
    loaded = again.attach("t", 0).loaded
    assert loaded is not None
    assert (loaded.progress.high, loaded.progress.known.since_ms) == (10, since_ms)
    again.lose("t", 0)
    copies = [replace(each, offset=20 + each.offset) for each in records(0, 10)]
    assert kinds(engine(RocksStore(tmp_path)), copies) == {"duplicate"}


def test_in_doubt_no_mark_leaves_the_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doubt came while marks were flushed: the progress that tells of the drop is not written."""
    doubts: list[int] = []
    deduplicator = engine(RocksStore(tmp_path, generation_marks=1))
    deduplicator.write_unless(lambda: bool(doubts))
    drop = drops_next(deduplicator, "expire")
    partition = deduplicator.partitions["t", 0]
    flush_steps = partition.store.flush_steps

    def doubtful(*given: Any) -> Iterator[None]:
        yield from flush_steps(*given)
        doubts.append(1)

    monkeypatch.setattr(partition.store, "flush_steps", doubtful)
    drop()
    assert doubts
    deduplicator.lose("t", 0)
    assert kinds(engine(RocksStore(tmp_path)), late_copies()) == {"duplicate"}


@pytest.mark.slow
def test_above_max_disk_the_oldest_marks_go_first(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store stays below its limit, and says from when on it knows IDs.

    It forgets the oldest marks, in whichever partition.
    """
    limit = 3_000_000
    store = RocksStore(tmp_path, max_disk=limit, generation_marks=5_000)
    deduplicator = engine(keeping(5_000, store))

    def go_on(begin: int, end: int) -> None:
        for number in (0, 1):
            # Partition 1 is half a window younger than partition 0.
            batch = [
                Record(
                    "t", number, offset, START_MS + offset * 1_000 + number * 12 * HOUR_MS, key=b"%d" % offset
                )
                for offset in range(begin, end)
            ]
            kinds(deduplicator, batch)

    top = 80_000
    for begin in range(0, top, 10_000):
        go_on(begin, begin + 10_000)
    assert deduplicator.counters.generations_shed > 0
    assert store.excess_bytes() == 0
    while _bytes_on_disk(tmp_path) > limit * 1.2:
        # RocksDB unlinks dropped files a little later: at once, or with a flush to come.
        assert top < 300_000, f"{_bytes_on_disk(tmp_path)} bytes on disk"
        time.sleep(0.2)
        go_on(top, top + 5_000)
        top += 5_000
    assert re.search(
        r"dropped its oldest marks; the effective window is \d+ (h|min)( \d+ \w+)? \(window='1d'\)",
        caplog.text,
    )
    windows_ms = [deduplicator.partitions["t", number].writer.effective_window_ms or 0 for number in (0, 1)]
    assert max(windows_ms) - min(windows_ms) < 6 * HOUR_MS
    window_ms = deduplicator.effective_window_ms
    assert window_ms is not None
    assert 0 < window_ms < 24 * HOUR_MS
    newest = [
        Record("t", 0, top + n, START_MS + top * 1_000, key=b"%d" % (top - 1_000 + n)) for n in range(1_000)
    ]
    assert kinds(deduplicator, newest) == {"duplicate"}
    oldest = [Record("t", 0, top + 1_000 + n, START_MS + 80_000_000, key=b"%d" % n) for n in range(1_000)]
    assert kinds(deduplicator, oldest) == {"unverified"}
    deduplicator.shut()
    assert len(list_partitions(tmp_path)) == 2


def _bytes_on_disk(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.suffix in {".sst", ".log", ".filter"} else 0
    return total


def test_without_a_limit_nothing_is_shed(tmp_path: Path) -> None:
    """The window alone decides where no limit was given."""
    deduplicator = engine(RocksStore(tmp_path, recent_marks=100, generation_marks=100))
    for part in range(10):
        kinds(deduplicator, records(100 * part, 100 * part + 100, step_ms=HOUR_MS // 100))
    assert deduplicator.counters.generations_shed == 0
    assert deduplicator.effective_window_ms == 24 * HOUR_MS
    assert int(np.int64(deduplicator.partitions["t", 0].store.stats().marks)) >= 900
    deduplicator.shut()


def test_what_an_earlier_beginning_owed_is_not_written_beside_a_later_one() -> None:
    """A recovery that begins again, for the log was cut under it, does not remember the marks of its first round."""
    deduplicator = Deduplicator(
        Lookup(id=key(), window=Window(hours=1)), store=MemoryStore(), tolerates_full_disk=True
    )
    held = deduplicator.attach("t", 0)
    held.start(plan_start(None, committed=10, low=0, complete=True))
    append = held.store.append

    def full(*_: object) -> None:
        raise StoreUnavailableError("no room")

    held.store.append = full  # type: ignore[assignment, method-assign]
    held.fold([0], np.array([5], np.int64), [digest_one(b"unhandled")], 10)
    held.store.append = append  # type: ignore[method-assign]
    held.loaded = None
    held.start(plan_start(None, committed=0, low=0, complete=True))
    assert held.writer.write_again()
    loaded = held.store.load()
    assert loaded is not None
    assert (loaded.recent.count, loaded.progress.high) == (0, 0)
