"""Copying a snapshot from folder or URL to folder or URL: every file is checked on the way, the manifest comes last."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import MANIFEST_NAME, read_manifest, write_manifest
from dedup_sdk.store.parallel import Task, in_parallel
from dedup_sdk.store.remote_snapshot import is_url, require_driver, shown, told
from dedup_sdk.store.snapshot_folder import new_snapshot
from dedup_sdk.store.snapshot_source import Source
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX, SortedFile

_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})


def publish_snapshot(folder: str | Path, target: str) -> None:
    """Copy a snapshot's folder to a URL or another folder, which is a snapshot once all of it is there; see `copy_snapshot`."""
    copy_snapshot(Source(place=str(folder), manifest=read_manifest(folder)), target)


def copy_snapshot(source: Source, target: str) -> None:
    """Copy a snapshot to a folder or a URL where there is none, several files at once; what is no part of it stays behind.

    Raises:
        ConfigurationError: no driver for the URL, or no path.
        SnapshotError: there is a snapshot already (or, in a folder, anything); a file does not check, or cannot be written.
            A folder is then as it was; at a URL files may be left, but no manifest, and copying again takes their place.
    """
    for _ in copying_snapshot(source, target):
        pass


def copying_snapshot(source: Source, target: str) -> Iterator[None]:
    """Do as `copy_snapshot`, in steps of 20 ms at most."""
    if is_url(target):
        require_driver(target)
        return _to_url(source, target)
    return _to_folder(source, Path(target))


def _to_folder(source: Source, target: Path) -> Iterator[None]:
    with new_snapshot(target) as folder:
        for entry in source.manifest.partitions:
            (folder / str(entry.partition)).mkdir(mode=0o700)
        yield from in_parallel(
            partial(_copy, source, entry.partition, file, folder / str(entry.partition))
            for entry in source.manifest.partitions
            for file in entry.files
        )
        write_manifest(folder, source.manifest)


def _copy(source: Source, partition: int, file: SortedFile, folder: Path, stop: Event) -> None:
    if not stop.is_set():
        source.copy(partition, file, folder)


def _to_url(source: Source, url: str) -> Iterator[None]:
    from fsspec.core import url_to_fs

    place = shown(url).rstrip("/")
    try:
        filesystem, path = url_to_fs(url)
        path = path.rstrip("/")
        filesystem.invalidate_cache()
        there = filesystem.exists(f"{path}/{MANIFEST_NAME}")
        if not _WITHOUT_FOLDERS & set(_protocols(filesystem)):
            for entry in source.manifest.partitions:
                filesystem.makedirs(f"{path}/{entry.partition}", exist_ok=True)
    except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
        raise SnapshotError(f"{place} cannot be looked at: {told(error, url)}") from None
    if there:
        raise SnapshotError(f"{place} holds a snapshot: one is never overwritten, choose another place")

    def upload(partition: int, file: SortedFile, stop: Event) -> None:
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
            if stop.is_set():
                return
            folder = source.verified(partition, file, Path(scratch))
            for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                name = f"{file.name}{suffix}"
                _put(
                    filesystem,
                    folder / name,
                    f"{path}/{partition}/{name}",
                    f"{place}/{partition}/{name}",
                    url,
                )

    tasks: Iterator[Task] = (
        partial(upload, entry.partition, file) for entry in source.manifest.partitions for file in entry.files
    )
    yield from in_parallel(tasks)
    with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
        write_manifest(scratch, source.manifest)
        _put(
            filesystem,
            Path(scratch) / MANIFEST_NAME,
            f"{path}/{MANIFEST_NAME}",
            f"{place}/{MANIFEST_NAME}",
            url,
        )
    yield


def _put(filesystem: Any, local: Path, remote: str, shown_as: str, url: str) -> None:
    try:
        filesystem.put_file(str(local), remote)
        size = filesystem.info(remote)["size"]
    except Exception as error:  # noqa: BLE001 (as above)
        raise SnapshotError(f"{shown_as} cannot be written: {told(error, url)}") from None
    expected = local.stat().st_size
    if size != expected:
        raise SnapshotError(f"{shown_as} has {size} bytes there, {expected} were written; copy it again")


def _protocols(filesystem: Any) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)
