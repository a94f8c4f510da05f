from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._marks import Known, Marks, Progress, cut_marks
from dedup_sdk._store.backup import checkpoint, restore_snapshot, snapshot_store
from dedup_sdk._store.manifest import MANIFEST_NAME, Manifest, read_manifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._store.snapshot import read_snapshot
from dedup_sdk._store.snapshot_check import check_snapshot
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk._window import Window
from dedup_sdk.errors import ConfigurationError, SnapshotError, StoreCorruptError, StoreLockedError
from tests.support.marks import IDENTITY, digest, marks, payloads, progress, random_marks, rows

WINDOW = Window(days=7)
STEP = 500


def taken(store: Path, output: Path) -> tuple[Manifest, dict[bytes, tuple[int, int]]]:
    """Make a snapshot of all partitions; return its manifest and the marks of its only one."""
    manifest = snapshot_store(list_partitions(store), store, output)
    (entry,) = manifest.partitions
    return manifest, rows(read_snapshot(output, entry))


def test_flushed_and_recent_marks_are_in_it(tmp_path: Path) -> None:
    """While the store is open: all marks, the progress beside them, and whose they are."""
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, WINDOW)
    opened.flush(progress(5), marks(("flushed", 1, 10), ("again", 2, 20)))
    last = Progress(low=1, high=9, committed=7, era="5f0c9a", known=Known(since_ms=3, newest_ms=80))
    opened.append(last, marks(("again", 8, 80)))
    manifest, found = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    assert found == {digest("flushed"): (1, 10), digest("again"): (8, 80)}
    assert (manifest.group, manifest.vouched, manifest.window) == ("billing", False, "7d")
    (entry,) = manifest.partitions
    assert (entry.low, entry.high, entry.committed, entry.era) == (1, 9, 7, "5f0c9a")
    assert (entry.known.since_ms, entry.known.newest_ms) == (3, 80)
    assert read_manifest(tmp_path / "snapshot") == manifest
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith((".", "store."))] == []


def test_payloads_are_in_it_and_in_what_is_made_of_it(tmp_path: Path) -> None:
    """Flushed and recent ones, beside marks without.

    A store that is restored finds them, and so does the next snapshot.
    """
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, WINDOW)
    flushed = marks(("flushed", 1, 10), ("again", 2, 20), ("plain", 3, 30), ("above", 4, 40))
    opened.flush(progress(5), replace(flushed, payloads=[b"f" * 2**16, b"a, before", b"", b"below cut"]))
    recent = replace(
        marks(("again", 8, 80), ("above", 12, 120)), payloads=[b"a, newest" * 9, b"above the cut"]
    )
    opened.append(Progress(low=0, high=9, done=((12, 13),)), recent)
    manifest, found = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    assert found[digest("again")] == (8, 80)
    expected = {
        digest("flushed"): b"f" * 2**16,
        digest("again"): b"a, newest" * 9,
        digest("plain"): b"",
        digest("above"): b"below cut",
    }
    assert [file.payloads for entry in manifest.partitions for file in entry.files] == [3]
    assert payloads(read_snapshot(tmp_path / "snapshot", manifest.partitions[0])) == expected
    restore_snapshot(tmp_path / "snapshot", tmp_path / "restored")
    again = snapshot_store(list_partitions(tmp_path / "restored"), tmp_path / "restored", tmp_path / "second")
    assert again.fingerprint == manifest.fingerprint
    assert payloads(read_snapshot(tmp_path / "second", again.partitions[0])) == expected


def test_what_was_completed_above_the_cut_is_not_in_it(tmp_path: Path) -> None:
    """A mark above the watermark is left out, and an older one of its ID takes its place."""
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, WINDOW)
    opened.flush(progress(10), marks(("twin", 3, 30), ("flushed", 4, 40)))
    opened.append(Progress(low=0, high=10, done=((12, 14),)), marks(("twin", 12, 120), ("early", 13, 130)))
    _, found = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    assert found == {digest("twin"): (3, 30), digest("flushed"): (4, 40)}


@pytest.mark.slow
def test_a_store_that_is_written_to_gives_one_moment(tmp_path: Path) -> None:
    """Whenever it is made, the marks are those of exactly the offsets below the cut.

    And a restored store continues them.
    """
    log = random_marks(200_000, 3)
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, WINDOW)
    opened.append(progress(1), cut_marks(log, 0, 1))
    ended = threading.Event()

    def live() -> None:
        begin, flushed = 1, 0
        while not ended.is_set() and begin < log.count:
            end = min(begin + STEP, log.count)
            opened.append(progress(end, committed=begin), cut_marks(log, begin, end))
            if (end // STEP) % 7 == 0:
                opened.flush(progress(end, committed=begin), cut_marks(log, flushed, end))
                flushed = end
            begin = end

    writer = threading.Thread(target=live)
    writer.start()
    try:
        made = [taken(tmp_path / "store", tmp_path / f"snapshot{number}") for number in range(8)]
    finally:
        ended.set()
        writer.join()
        store.close()
    cuts = []
    for manifest, found in made:
        (entry,) = manifest.partitions
        assert found == rows([cut_marks(log, 0, entry.high)])
        cuts.append(entry.high)
    assert cuts == sorted(cuts)
    assert cuts[-1] > cuts[0]
    restore_snapshot(tmp_path / "snapshot7", tmp_path / "restored")
    (only,) = list_partitions(tmp_path / "restored")
    with read_partition(only.path) as again:
        assert again.progress is not None
        assert (again.progress.high, again.progress.committed) == (
            cuts[-1],
            made[-1][0].partitions[0].committed,
        )
        assert rows(again.scan_all()) == made[-1][1]


def test_a_large_one_is_cut_into_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have a bounded size, do not overlap, and check."""
    monkeypatch.setattr("dedup_sdk._store.backup.MARKS_PER_FILE", 60_000)
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, WINDOW)
    opened.flush(progress(250_000), random_marks(250_000, 1))
    manifest, found = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    assert len(found) == 250_000
    assert 2 <= len(manifest.partitions[0].files) <= 4
    source = SnapshotSource(place=str(tmp_path / "snapshot"), manifest=manifest)
    assert [line for checked in check_snapshot(source) for line in checked.problems] == []


def test_acceptance_numbers_are_kept(tmp_path: Path) -> None:
    """The snapshot of a partition with a count window serves such a partition."""
    store = RocksStore(tmp_path / "store")
    window = Window(count=10)
    opened = store.open(IDENTITY, window)
    opened.append(
        replace(progress(3), known=replace(progress(3).known, accepted=2, since_number=0)),
        marks(("a", 0, 10, 1), ("b", 2, 30, 2)),
    )
    manifest, _ = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    restore_snapshot(tmp_path / "snapshot", tmp_path / "restored")
    again = RocksStore(tmp_path / "restored")
    assert again.open(IDENTITY, window).find(digest("b"), 1).numbers == [2]
    again.close()
    assert (manifest.partitions[0].known.accepted, manifest.partitions[0].known.since_number) == (2, 0)


def test_what_left_a_count_window_is_told_to_a_longer_one(tmp_path: Path) -> None:
    """The snapshot says where its numbers begin, and so does the store that is made of it."""
    store = RocksStore(tmp_path / "store")
    opened = store.open(IDENTITY, Window(count=2))
    opened.append(
        replace(progress(9), known=replace(progress(9).known, accepted=9, floor_number=7)),
        marks(("a", 7, 10, 8), ("b", 8, 30, 9)),
    )
    manifest, _ = taken(tmp_path / "store", tmp_path / "snapshot")
    store.close()
    assert manifest.partitions[0].known.since_number == 7
    restore_snapshot(tmp_path / "snapshot", tmp_path / "restored")
    again = RocksStore(tmp_path / "restored")
    loaded = again.open(IDENTITY, Window(count=2)).load()
    again.close()
    assert loaded is not None
    assert (loaded.progress.known.floor_number, loaded.progress.known.since_number) == (7, 7)


def test_nothing_is_left_where_it_cannot_be_made(tmp_path: Path) -> None:
    """A place that is taken, partitions of two ID specs, a store that never completed anything.

    One line, and no folder.
    """
    store = RocksStore(tmp_path / "store")
    store.open(IDENTITY, WINDOW).append(progress(3), marks(("a", 0, 10)))
    store.open(replace(IDENTITY, partition=4, id_spec="key"), WINDOW).append(
        progress(3), Marks(b"", *NO_ROWS)
    )
    store.open(replace(IDENTITY, partition=5), WINDOW)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    found = list_partitions(tmp_path / "store")
    with pytest.raises(SnapshotError, match="is not empty"):
        snapshot_store(found, tmp_path / "store", tmp_path / "taken")
    with pytest.raises(ConfigurationError, match="id_spec='header:id' and 'key'"):
        snapshot_store(found, tmp_path / "store", tmp_path / "new")
    with pytest.raises(SnapshotError, match=r"no partition of .* has completed anything yet"):
        snapshot_store(found[2:], tmp_path / "store", tmp_path / "new")
    store.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "taken"]
    assert not list((tmp_path / "store").rglob(MANIFEST_NAME))


@pytest.mark.parametrize("names", [b"\xff\n", b"/etc/passwd\n", b"../../x\n", b""])
def test_a_damaged_head_is_told_and_followed_nowhere(tmp_path: Path, names: bytes) -> None:
    """``CURRENT`` names RocksDB's list of files: any other text there is damage, and no path."""
    store = RocksStore(tmp_path / "store")
    store.open(IDENTITY, WINDOW).append(progress(3), marks(("a", 0, 10)))
    [found] = list_partitions(tmp_path / "store")
    (found.path / "CURRENT").write_bytes(names)
    with pytest.raises(StoreCorruptError, match="CURRENT names"):
        checkpoint(found.path, tmp_path / "frozen")


NO_ROWS = (np.empty(0, np.int64), np.empty(0, np.int64))


def test_a_database_that_never_stands_still_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried again while files come and go, and given up after so many attempts, with nothing left behind."""
    monkeypatch.setattr("dedup_sdk._store.backup.ATTEMPTS", 3)
    monkeypatch.setattr("dedup_sdk._store.backup.PAUSE_S", 0.0)
    database = tmp_path / "db"
    database.mkdir()
    (database / "CURRENT").write_text("MANIFEST-1\n")
    (database / "MANIFEST-1").write_bytes(b"")
    (database / "2.log").write_bytes(b"")

    def copied_late(_source: Path, _target: Path) -> None:
        """Copy a log while RocksDB's list of files grows."""
        with (database / "MANIFEST-1").open("ab") as manifest:
            manifest.write(b"x")

    monkeypatch.setattr("dedup_sdk._store.backup.shutil.copyfile", copied_late)
    with pytest.raises(StoreLockedError, match="changed at each of 3 attempts"):
        checkpoint(database, tmp_path / "copy")
    assert (database / "MANIFEST-1").read_bytes() == b"xxx"
    assert not (tmp_path / "copy").exists()
