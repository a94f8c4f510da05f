"""Copying a snapshot from folder or URL to folder or URL: every file is checked on the way, the manifest comes last.

Behind a URL the files of each attempt have names of their own. So two attempts never touch each other's files, and the manifest alone decides
which one is the snapshot.
"""

from __future__ import annotations

import inspect
import logging
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import MANIFEST_NAME, SortedFile, read_manifest, write_manifest
from dedup_sdk.store.paths import new_snapshot
from dedup_sdk.store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk.store.snapshot_source import Source, Task, in_parallel, is_url, require_driver, shown, told

logger = logging.getLogger("dedup_sdk")

_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})


def publish_snapshot(folder: str | Path, target: str) -> None:
    """Copy a snapshot's folder to a URL or another folder, which is a snapshot once all of it is there; see `copy_snapshot`."""
    copy_snapshot(Source(place=str(folder), manifest=read_manifest(folder)), target)


def copy_snapshot(source: Source, target: str) -> None:
    """Copy a snapshot to a folder or a URL where there is none, several files at once; what is no part of it stays behind.

    Raises:
        ConfigurationError: no driver for the URL, or no path.
        SnapshotError: there is a snapshot already (or, in a folder, anything); a file does not check, or cannot be written.
            A folder is then as it was; at a URL no manifest of this copy is left, and none of its files that can be removed.
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
    target = UrlTarget(url)
    try:
        yield from target.upload(source)
        target.finish(source)
    except BaseException:
        target.take_back()
        raise
    yield


class UrlTarget:
    """A place behind a URL where there is no snapshot yet; ``place`` is how messages name it.

    Raises:
        ConfigurationError: no driver for the URL.
        SnapshotError: there is a snapshot, or nobody can tell.
    """

    def __init__(self, url: str) -> None:
        require_driver(url)
        from fsspec.core import url_to_fs

        self._url, self.place = url, shown(url).rstrip("/")
        self._attempt = secrets.token_hex(8)
        self._uploaded: list[str] = []
        self._manifest = b""
        try:
            filesystem, path = url_to_fs(url)
            filesystem.invalidate_cache()
            self._filesystem, self._path = filesystem, path.rstrip("/")
            there = filesystem.exists(f"{self._path}/{MANIFEST_NAME}")
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(f"{self.place} cannot be looked at: {told(error, url)}") from None
        if there:
            raise SnapshotError(
                f"{self.place} holds a snapshot: one is never overwritten, choose another place"
            )

    def try_out(self) -> None:
        """Put an empty file there and take it away again, so that what cannot be written is known in time.

        Raises:
            SnapshotError: it cannot be written.
        """
        self._make_folder(self._path)
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
            empty = Path(scratch) / f".writable-{self._attempt}"
            empty.touch()
            self.put(empty)
        # Who may not remove what he wrote may still publish.
        with suppress(Exception):
            self._filesystem.rm_file(f"{self._path}/{empty.name}")

    def upload(self, source: Source) -> Iterator[None]:
        """Put a snapshot's files there, several at once and each checked on the way, in steps of 20 ms at most; no manifest.

        They have names that no other attempt has.
        """
        for entry in source.manifest.partitions:
            self._make_folder(f"{self._path}/{entry.partition}")

        def upload(partition: int, file: SortedFile, name: str, stop: Event) -> None:
            with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
                if stop.is_set():
                    return
                folder = source.verified(partition, file, Path(scratch))
                for suffix in (SORTED_SUFFIX, FILTER_SUFFIX):
                    remote = f"{partition}/{name}{suffix}"
                    self._uploaded.append(f"{self._path}/{remote}")
                    self.put(folder / f"{file.name}{suffix}", remote)

        tasks: Iterator[Task] = (
            partial(upload, entry.partition, file, self._name(number))
            for entry in source.manifest.partitions
            for number, file in enumerate(entry.files)
        )
        yield from in_parallel(tasks)

    def _name(self, number: int) -> str:
        return f"{number:04}-{self._attempt}"

    def finish(self, source: Source) -> None:
        """Put the manifest there: from now on it is a snapshot.

        Raises:
            SnapshotError: another one is there by now, which stays as it is, or the manifest cannot be written.
        """
        entries = tuple(
            replace(
                entry,
                files=tuple(
                    replace(file, name=self._name(number)) for number, file in enumerate(entry.files)
                ),
            )
            for entry in source.manifest.partitions
        )
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
            write_manifest(scratch, replace(source.manifest, partitions=entries))
            self._manifest = (Path(scratch) / MANIFEST_NAME).read_bytes()
        place = f"{self._path}/{MANIFEST_NAME}"
        try:
            self._write_manifest(place)
            found = self._found_manifest()
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(
                f"{self.place}/{MANIFEST_NAME} cannot be written: {told(error, self._url)}"
            ) from None
        if found != self._manifest:
            raise SnapshotError(
                f"{self.place} holds a snapshot that was published meanwhile: one is never overwritten, choose another place"
            )

    def _write_manifest(self, place: str) -> None:
        """Write the manifest unless there is one; drivers that cannot do so in one step look first."""
        if _creates(self._filesystem):
            try:
                self._filesystem.pipe_file(place, self._manifest, mode="create")
            except (
                Exception
            ):  # a server may not know this way of writing, and each driver says so in its own way
                logger.debug("%s: no exclusive write of %s", self.place, MANIFEST_NAME, exc_info=True)
            else:
                return
        if self._found_manifest() is None:
            self._filesystem.pipe_file(place, self._manifest)

    def _found_manifest(self) -> bytes | None:
        self._filesystem.invalidate_cache()
        try:
            found: bytes = self._filesystem.cat_file(f"{self._path}/{MANIFEST_NAME}")
        except FileNotFoundError:
            return None
        return found

    def take_back(self) -> bool:
        """Remove the manifest if it is this attempt's, and its files. False when nobody knows whether the manifest is gone.

        The snapshot of another attempt stays as it is.
        """
        try:
            if self._manifest and self._found_manifest() == self._manifest:
                with suppress(Exception):
                    self._filesystem.rm_file(f"{self._path}/{MANIFEST_NAME}")
                if self._found_manifest() == self._manifest:
                    return False
        except Exception:  # noqa: BLE001 (whatever the file system's driver raises)
            return False
        for place in self._uploaded:
            with suppress(Exception):
                self._filesystem.rm_file(place)
        return True

    def put(self, local: Path, name: str = "") -> None:
        """Put one file there as ``name``, a path below the place, or under its own name.

        Raises:
            SnapshotError: it cannot be written, or arrives with another size.
        """
        name = name or local.name
        remote, shown_as = f"{self._path}/{name}", f"{self.place}/{name}"
        try:
            self._filesystem.put_file(str(local), remote)
            size = self._filesystem.info(remote)["size"]
        except Exception as error:  # noqa: BLE001 (as above)
            raise SnapshotError(f"{shown_as} cannot be written: {told(error, self._url)}") from None
        expected = local.stat().st_size
        if size != expected:
            raise SnapshotError(f"{shown_as} has {size} bytes there, {expected} were written; copy it again")

    def _make_folder(self, path: str) -> None:
        if _WITHOUT_FOLDERS & set(_protocols(self._filesystem)):
            return
        try:
            self._filesystem.makedirs(path, exist_ok=True)
        except Exception as error:  # noqa: BLE001 (as above)
            raise SnapshotError(f"{self.place} cannot be written: {told(error, self._url)}") from None


def _creates(filesystem: Any) -> bool:
    """Whether a driver knows how to write a file only where there is none."""
    writes = getattr(filesystem, "_pipe_file", None) or filesystem.pipe_file
    return "mode" in inspect.signature(writes).parameters


def _protocols(filesystem: Any) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)
