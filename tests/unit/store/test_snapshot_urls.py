"""Snapshots behind URLs, by the protocol of S3."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import s3fs
from fsspec.core import url_to_fs

from dedup_sdk._store.backup import restore_snapshot
from dedup_sdk._store.manifest import read_manifest
from dedup_sdk._store.output_folder import OutputFolder
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.snapshot_check import check_snapshot, diff_snapshots
from dedup_sdk._store.snapshot_copy import UrlTarget, copy_snapshot, copying_snapshot, publish_snapshot
from dedup_sdk._store.snapshot_source import (
    find_snapshots,
    removable_snapshots,
    remove_snapshot,
    snapshots_of_one_group,
)
from dedup_sdk.errors import SnapshotError
from tests.support.marks import random_marks, rows, write_snapshot

HELD = random_marks(20_000, 1)


def without_attempts(names: list[str]) -> list[str]:
    """Names of files without the addition of each attempt."""
    return sorted(re.sub(r"-[0-9a-f]{16}(?=\.)", "", name) for name in names)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A snapshot of 20,000 marks in four files on this disk."""
    write_snapshot(tmp_path / "snapshot", HELD, cuts=(3_000, 9_000, 15_000), high=20_000)
    return tmp_path / "snapshot"


def test_what_is_published_is_restored(bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path) -> None:
    """There and back again: the bucket has the files of the manifest, and the store that is made of it every mark."""
    publish_snapshot(folder, "s3://snapshots/orders/today")
    assert without_attempts(bucket.find("snapshots")) == [
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
    assert there.manifest.fingerprint == here.manifest.fingerprint
    assert [checked.problems for checked in check_snapshot(there)] == [()] * 4
    assert not any(found.differs for found in diff_snapshots(there, here))
    copy_snapshot(there, "s3://snapshots/b")
    copy_snapshot(there, str(tmp_path / "back"))
    assert read_manifest(tmp_path / "back") == there.manifest
    assert len(bucket.find("snapshots/b")) == 9


@pytest.mark.parametrize("name", ["3/0002.sst", "3/0001.filter"])
def test_a_damaged_object_is_told_and_nothing_is_left(
    bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path, name: str
) -> None:
    """An object that differs from the manifest is named by its URL; there is neither a store nor a part of one."""
    publish_snapshot(folder, "s3://snapshots/a")
    number, _, suffix = name.partition(".")
    [name] = [
        each.removeprefix("snapshots/a/")
        for each in bucket.find("snapshots/a")
        if each.startswith(f"snapshots/a/{number}-") and each.endswith(suffix)
    ]
    data = bytearray(bucket.cat_file(f"snapshots/a/{name}"))
    data[len(data) // 2] ^= 1
    bucket.pipe_file(f"snapshots/a/{name}", bytes(data))
    with pytest.raises(SnapshotError, match=f"s3://snapshots/a/{name} has SHA-256"):
        restore_snapshot("s3://snapshots/a", tmp_path / "store")
    assert [path.name for path in tmp_path.iterdir()] == ["snapshot"]
    ((there,), _) = find_snapshots(["s3://snapshots/a"])
    with pytest.raises(SnapshotError, match=f"{name} has SHA-256"):
        copy_snapshot(there, "s3://snapshots/b")
    assert bucket.find("snapshots/b") == []


@pytest.mark.parametrize("place", ["s3://snapshots/a", "memory://snapshots/a"])
@pytest.mark.parametrize("first_ends_first", [False, True])
def test_of_two_publications_at_once_one_is_refused(
    bucket: s3fs.S3FileSystem, folder: Path, tmp_path: Path, place: str, *, first_ends_first: bool
) -> None:
    """A published snapshot is whole as soon as it is there, and stays so; of the other one nothing is left."""
    assert bucket.find("snapshots") == []
    filesystem, path = url_to_fs(place)
    write_snapshot(tmp_path / "other", random_marks(20_000, 2), cuts=(3_000, 9_000, 15_000), high=20_000)
    ((one,), _), ((other,), _) = find_snapshots([str(folder)]), find_snapshots([str(tmp_path / "other")])
    first, second = UrlTarget(place), UrlTarget(place)
    for target, source in ((first, one), (second, other)):
        for _ in target.upload(source):
            pass
    ends = [(first, one), (second, other)]
    (winner, published), (loser, refused) = ends if first_ends_first else ends[::-1]
    try:
        winner.finish(published)
        ((there,), _) = find_snapshots([place])
        assert [checked.problems for checked in check_snapshot(there)] == [()] * 4
        with pytest.raises(SnapshotError, match="has a snapshot that was published meanwhile"):
            loser.finish(refused)
        assert loser.take_back()
        ((there,), _) = find_snapshots([place])
        assert there.manifest.fingerprint == published.manifest.fingerprint
        assert [checked.problems for checked in check_snapshot(there)] == [()] * 4
        assert len(filesystem.find(path)) == 9
    finally:
        filesystem.rm(path, recursive=True)


def test_copies_at_once_leave_one_snapshot(folder: Path, tmp_path: Path) -> None:
    """Two copies in step: one of them is refused, and the other one can be restored."""
    write_snapshot(tmp_path / "other", random_marks(20_000, 2), cuts=(3_000, 9_000, 15_000), high=20_000)
    ((one,), _), ((other,), _) = find_snapshots([str(folder)]), find_snapshots([str(tmp_path / "other")])
    for number in range(5):
        url = f"memory://race/{number}"
        copies = [copying_snapshot(each, url) for each in (one, other)]
        refused = 0
        while copies:
            for copy in list(copies):
                try:
                    next(copy)
                except StopIteration:
                    copies.remove(copy)
                except SnapshotError:
                    copies.remove(copy)
                    refused += 1
        assert refused == 1
        ((there,), _) = find_snapshots([url])
        assert [checked.problems for checked in check_snapshot(there)] == [()] * 4


def test_nothing_is_half_published(bucket: s3fs.S3FileSystem, folder: Path) -> None:
    """Of a snapshot that lacks a file no manifest goes up; once it is whole, copying again makes it one."""
    missing = folder / "3" / "0003.sst"
    shutil.move(missing, folder / "kept")
    with pytest.raises(SnapshotError, match=r"0003\.sst cannot be read"):
        publish_snapshot(folder, "s3://snapshots/a")
    assert bucket.find("snapshots") == []
    shutil.move(folder / "kept", missing)
    publish_snapshot(folder, "s3://snapshots/a")
    with pytest.raises(SnapshotError, match="has a snapshot already, which is never overwritten"):
        publish_snapshot(folder, "s3://snapshots/a")
    with pytest.raises(SnapshotError, match=r"s3://nowhere/a/.* cannot be written"):
        publish_snapshot(folder, "s3://nowhere/a")


def test_a_manifest_that_may_yet_arrive_keeps_its_files(
    bucket: s3fs.S3FileSystem, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request was given up, and the server applies it afterwards."""
    given: list[Any] = []

    def given_up(*arguments: Any) -> None:
        given.extend(arguments)
        raise SnapshotError("read timeout")

    with monkeypatch.context() as patched:
        patched.setattr(OutputFolder, "create_manifest", given_up)
        with pytest.raises(
            SnapshotError, match="read timeout; the snapshot may be there: look before you copy again"
        ):
            publish_snapshot(folder, "s3://snapshots/a")
    assert OutputFolder.create_manifest(*given)
    ((there,), _) = find_snapshots(["s3://snapshots/a"])
    assert not any(checked.problems for checked in check_snapshot(there))
    assert len(bucket.find("snapshots/a")) == 10


def test_old_ones_are_removed_and_new_ones_are_seen(bucket: s3fs.S3FileSystem, folder: Path) -> None:
    """A snapshot that came since the last look is found; one that goes leaves only files that no manifest names."""
    publish_snapshot(folder, "s3://snapshots/a")
    assert len(find_snapshots(["s3://snapshots"])[0]) == 1
    publish_snapshot(folder, "s3://snapshots/b")
    bucket.pipe_file("snapshots/b/notes.txt", b"mine")
    (going,) = removable_snapshots(snapshots_of_one_group(find_snapshots(["s3://snapshots"])[0]), 1)
    assert going.place == "s3://snapshots/b"
    remove_snapshot(going)
    assert bucket.find("snapshots/b") == ["snapshots/b/notes.txt"]
    assert len(find_snapshots(["s3://snapshots"])[0]) == 1
