"""Snapshots behind URLs, by the protocol of S3."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import s3fs

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import MANIFEST_NAME, read_manifest
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.read_only import read_partition
from dedup_sdk.store.restore import restore_snapshot
from dedup_sdk.store.snapshot_check import check_snapshot
from dedup_sdk.store.snapshot_copy import copy_snapshot, publish_snapshot
from dedup_sdk.store.snapshot_diff import diff_snapshots
from dedup_sdk.store.snapshot_family import one_family, remove_snapshot, superfluous
from dedup_sdk.store.snapshot_source import find_snapshots
from tests.support.marks import random_marks, rows, write_snapshot

HELD = random_marks(20_000, 1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot of 20,000 marks in four files on this disk."""
    write_snapshot(tmp_path / "snapshot", HELD, cuts=(3_000, 9_000, 15_000), high=20_000)
    return tmp_path / "snapshot"


def test_what_is_published_is_restored(bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path) -> None:
    """There and back again: the bucket has what the manifest names, and the store that is made of it every mark."""
    publish_snapshot(folder, "s3://snapshots/orders/today")
    assert sorted(bucket.find("snapshots")) == [
        *[f"snapshots/orders/today/3/{n:04}.{suffix}" for n in range(4) for suffix in ("filter", "sst")],
        "snapshots/orders/today/manifest.json",
    ]
    restore_snapshot("s3://snapshots/orders", tmp_path / "store")
    (only,) = list_partitions(tmp_path / "store")
    with read_partition(only.path) as opened:
        assert rows(opened.scan_all()) == rows([HELD])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["snapshot", "store"]


def test_it_is_verified_compared_and_copied_like_a_folder(
    bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path
) -> None:
    """A URL may stand wherever a folder does."""
    publish_snapshot(folder, "s3://snapshots/a")
    ((there,), _), ((here,), _) = find_snapshots(["s3://snapshots/a"]), find_snapshots([str(folder)])
    assert there.manifest == here.manifest
    assert [checked.problems for checked in check_snapshot(there)] == [()] * 4
    assert not any(found.differs for found in diff_snapshots(there, here))
    copy_snapshot(there, "s3://snapshots/b")
    copy_snapshot(there, str(tmp_path / "back"))
    assert read_manifest(tmp_path / "back") == here.manifest
    assert len(bucket.find("snapshots/b")) == 9


@pytest.mark.parametrize("name", ["3/0002.sst", "3/0001.filter"])
def test_a_damaged_object_is_told_and_nothing_is_left(
    bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path, name: str
) -> None:
    """An object that is not what the manifest says is named by its URL; there is neither a store nor a part of one."""
    publish_snapshot(folder, "s3://snapshots/a")
    data = bytearray(bucket.cat_file(f"snapshots/a/{name}"))
    data[len(data) // 2] ^= 1
    bucket.pipe_file(f"snapshots/a/{name}", bytes(data))
    with pytest.raises(SnapshotError, match=f"s3://snapshots/a/{name} has SHA-256"):
        restore_snapshot("s3://snapshots/a", tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]
    ((there,), _) = find_snapshots(["s3://snapshots/a"])
    with pytest.raises(SnapshotError, match=f"{name} has SHA-256"):
        copy_snapshot(there, "s3://snapshots/b")
    assert not bucket.exists(f"snapshots/b/{MANIFEST_NAME}")


def test_nothing_is_half_published(bucket: s3fs.S3FileSystem, folder: Path) -> None:
    """Of a snapshot that lacks a file no manifest goes up; once it is whole, copying again makes it one."""
    missing = folder / "3" / "0003.sst"
    shutil.move(missing, folder / "kept")
    with pytest.raises(SnapshotError, match=r"0003\.sst cannot be read"):
        publish_snapshot(folder, "s3://snapshots/a")
    assert not bucket.exists(f"snapshots/a/{MANIFEST_NAME}")
    with pytest.raises(SnapshotError, match="is no snapshot, nor a folder of some"):
        find_snapshots(["s3://snapshots/a"])
    shutil.move(folder / "kept", missing)
    publish_snapshot(folder, "s3://snapshots/a")
    with pytest.raises(SnapshotError, match="holds a snapshot: one is never overwritten"):
        publish_snapshot(folder, "s3://snapshots/a")
    with pytest.raises(SnapshotError, match=r"s3://nowhere/a/.* cannot be written"):
        publish_snapshot(folder, "s3://nowhere/a")


def test_old_ones_are_removed_and_new_ones_are_seen(bucket: s3fs.S3FileSystem, folder: Path) -> None:
    """A snapshot that came since the last look is found; one that goes leaves only what no manifest names."""
    publish_snapshot(folder, "s3://snapshots/a")
    assert len(find_snapshots(["s3://snapshots"])[0]) == 1
    publish_snapshot(folder, "s3://snapshots/b")
    bucket.pipe_file("snapshots/b/notes.txt", b"mine")
    (going,) = superfluous(one_family(find_snapshots(["s3://snapshots"])[0]), 1)
    assert going.place == "s3://snapshots/b"
    remove_snapshot(going)
    assert bucket.find("snapshots/b") == ["snapshots/b/notes.txt"]
    assert len(find_snapshots(["s3://snapshots"])[0]) == 1
