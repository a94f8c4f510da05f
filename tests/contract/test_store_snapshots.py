"""The promises of every key store for snapshots."""

from __future__ import annotations

import dataclasses
from itertools import islice
from pathlib import Path

import pytest

from dedup_sdk._marks import NO_MARKS
from dedup_sdk._store.manifest import write_manifest
from dedup_sdk._store.protocol import KeyStore, PartitionStore
from dedup_sdk._store.rocks import RocksPartition
from dedup_sdk._window import Window
from dedup_sdk.errors import SnapshotError
from tests.support.finding import find
from tests.support.marks import IDENTITY, digest, marks, progress, random_marks, rows, write_snapshot
from tests.support.steps import finish, installing

WINDOW = Window(days=7)


def test_an_installed_snapshot_replaces_everything(
    key_store: KeyStore, store: PartitionStore, tmp_path: Path
) -> None:
    """Installing takes over the snapshot's marks, and drops the old ones.

    That holds after reopening and further flushes.
    """
    store.flush(progress(5), marks(("old", 4, 40)))
    store.append(progress(6), marks(("recent", 5, 50)))
    held = random_marks(1000, 7)
    write_snapshot(tmp_path / "snapshot", held, cuts=(300, 300, 900))
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert find(store, "old", "recent") == {}
    store.flush(progress(2001), marks(("new", 2000, 10**6)))
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    loaded = again.load()
    assert loaded is not None
    assert (loaded.progress.high, loaded.recent.count) == (2001, 0)
    assert again.find(held.digests, 1000).offsets == held.offsets.tolist()
    assert len(rows(again.scan())) == 1001


def test_the_manifest_that_was_planned_with_counts(store: PartitionStore, tmp_path: Path) -> None:
    """Another run publishes into the same folder meanwhile: what it left out is not what the progress claims."""
    held = random_marks(1000, 7)
    planned = write_snapshot(tmp_path / "snapshot", held, cuts=(300,))
    (entry,) = planned.partitions
    later = dataclasses.replace(
        planned, partitions=(dataclasses.replace(entry, marks=300, files=entry.files[:1]),)
    )
    write_manifest(tmp_path / "snapshot", later)
    finish(store.install_steps(str(tmp_path / "snapshot"), progress(1000), manifest=planned))
    assert len(rows(store.scan())) == 1000


def test_an_install_is_many_small_steps(store: PartitionStore, tmp_path: Path) -> None:
    """A megabyte of files at a time at most, so that a consumer goes on meanwhile."""
    held = random_marks(200_000, 7)
    write_snapshot(tmp_path / "snapshot", held)
    steps = sum(1 for _ in installing(store, tmp_path / "snapshot", progress(200_000)))
    megabytes = sum(path.stat().st_size for path in (tmp_path / "snapshot").rglob("*.*")) // 2**20
    assert megabytes >= 4
    assert steps >= (megabytes if isinstance(store, RocksPartition) else 2)
    assert store.find(held.digests, 200_000).offsets == held.offsets.tolist()


@pytest.mark.parametrize("taken", range(6))
def test_an_install_that_is_given_up_leaves_the_store_as_it_was(
    key_store: KeyStore, store: PartitionStore, tmp_path: Path, taken: int
) -> None:
    """After any step; marks dropped for want of room meanwhile take nothing from it, and it can be begun again."""
    store.flush(progress(5), marks(("old", 4, 40)))
    write_snapshot(tmp_path / "snapshot", random_marks(10_000, 7), cuts=(5_000,))
    steps = installing(store, tmp_path / "snapshot", progress(10_000))
    # The store in memory reads so few marks in one step.
    taken = taken if isinstance(store, RocksPartition) else min(taken, 1)
    assert len([find(store, "old") for _ in islice(steps, taken)]) == taken
    steps.close()  # type: ignore[attr-defined]
    assert find(store, "old") == {"old": (4, 40)}
    store.close()
    again = key_store.open(IDENTITY, WINDOW)
    loaded = again.load()
    assert loaded is not None
    assert loaded.progress.high == 5
    assert rows(again.scan()).keys() == {digest("old")}
    finish(installing(again, tmp_path / "snapshot", progress(10_000)))
    assert len(rows(again.scan())) == 10_000


def test_an_empty_snapshot_can_be_installed(store: PartitionStore, tmp_path: Path) -> None:
    """A snapshot of a partition without marks leaves an empty store with the given progress."""
    store.flush(progress(5), marks(("old", 4, 40)))
    write_snapshot(tmp_path / "snapshot", NO_MARKS)
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert find(store, "old") == {}
    assert store.load() is not None


def test_an_older_mark_does_not_cover_a_snapshots(store: PartitionStore, tmp_path: Path) -> None:
    """A mark flushed after an install with a lower offset than the snapshot's leaves the snapshot's in place."""
    write_snapshot(tmp_path / "snapshot", marks(("a", 500, 5000), ("b", 10, 100)))
    finish(installing(store, tmp_path / "snapshot", progress(1000)))
    store.flush(progress(1000), marks(("a", 400, 4000), ("b", 999, 9990)))
    assert find(store, "a", "b") == {"a": (500, 5000), "b": (999, 9990)}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"cluster": "c2"}, "cluster='c2', not 'c1'"),
        ({"topic_id": "t2"}, "topic_id='t2', not 't1'"),
        ({"id_spec": "key"}, "id_spec='key', not 'header:id'"),
        ({"isolation": "read_uncommitted"}, "isolation='read_uncommitted'"),
        ({"partition": 4}, "no partition 3"),
    ],
)
def test_a_snapshot_of_another_history_is_refused(
    store: PartitionStore, tmp_path: Path, changes: dict[str, object], told: str
) -> None:
    """A snapshot that does not fit is refused in one line with both values, and the store stays as it was."""
    other = dataclasses.replace(IDENTITY, **changes)  # type: ignore[arg-type]
    write_snapshot(tmp_path / "snapshot", marks(("a", 1, 10)), identity=other)
    store.flush(progress(5), marks(("old", 4, 40)))
    with pytest.raises(SnapshotError, match=told) as caught:
        finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert "\n" not in str(caught.value)
    assert find(store, "old", "a") == {"old": (4, 40)}


def test_a_snapshot_of_another_group_needs_to_be_vouched_for(store: PartitionStore, tmp_path: Path) -> None:
    """Marks that another group made count only when the snapshot's maker vouches for them."""
    write_snapshot(tmp_path / "theirs", marks(("a", 1, 10)), group="audit")
    with pytest.raises(SnapshotError, match="group='audit', not 'billing'"):
        finish(installing(store, tmp_path / "theirs", progress(1000)))
    write_snapshot(tmp_path / "vouched", marks(("a", 1, 10)), group=None, vouched=True)
    finish(installing(store, tmp_path / "vouched", progress(1000)))
    assert find(store, "a") == {"a": (1, 10)}


def test_a_snapshot_beyond_what_was_committed_is_refused(store: PartitionStore, tmp_path: Path) -> None:
    """A cut beyond the progress to begin with would hide records that nobody handled."""
    write_snapshot(tmp_path / "snapshot", marks(("a", 1, 10)), high=1000)
    with pytest.raises(SnapshotError, match="offset 1000 of partition 3, beyond 999"):
        finish(installing(store, tmp_path / "snapshot", progress(999)))
    assert store.load() is None


@pytest.mark.parametrize("suffix", ["sst", "filter"])
def test_a_damaged_snapshot_is_refused(store: PartitionStore, tmp_path: Path, suffix: str) -> None:
    """One changed byte in any file of a snapshot is found, the file is named, and the store stays as it was."""
    write_snapshot(tmp_path / "snapshot", random_marks(500, 3))
    (path,) = (tmp_path / "snapshot" / "3").glob(f"*.{suffix}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    store.flush(progress(5), marks(("old", 4, 40)))
    with pytest.raises(SnapshotError, match=path.name):
        finish(installing(store, tmp_path / "snapshot", progress(1000)))
    assert find(store, "old") == {"old": (4, 40)}


def test_a_snapshot_without_numbers_does_not_serve_a_count_window(
    key_store: KeyStore, tmp_path: Path
) -> None:
    """A count window needs acceptance numbers in the snapshot too."""
    store = key_store.open(IDENTITY, Window(count=10))
    write_snapshot(tmp_path / "plain", marks(("a", 1, 10)))
    with pytest.raises(SnapshotError, match="acceptance numbers"):
        finish(installing(store, tmp_path / "plain", progress(1000)))
    write_snapshot(tmp_path / "numbered", marks(("a", 1, 10, 1)), window="10n")
    finish(installing(store, tmp_path / "numbered", progress(1000)))
    assert store.find(digest("a"), 1).numbers == [1]
