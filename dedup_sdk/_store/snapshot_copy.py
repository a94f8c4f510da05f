"""Copies a snapshot between folders and URLs: every file is checked on the way, and the manifest is written last.

Behind a URL, every attempt uses its own file names. So two attempts never touch each other's files, and the
manifest alone decides which of them is the snapshot.
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

from dedup_sdk._store.manifest import MANIFEST_NAME, SortedFile, read_manifest, write_manifest
from dedup_sdk._store.paths import new_snapshot
from dedup_sdk._store.snapshot import FILTER_SUFFIX, SORTED_SUFFIX
from dedup_sdk._store.snapshot_source import (
    Source,
    Task,
    driver_message,
    in_parallel,
    is_url,
    redacted_url,
    require_driver,
)
from dedup_sdk.errors import SnapshotError

logger = logging.getLogger("dedup_sdk")

_WITHOUT_FOLDERS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "memory"})


def publish_snapshot(folder: str | Path, target: str) -> None:
    """Copy a snapshot's folder to a URL or another folder, where it appears when complete; see `copy_snapshot`."""
    copy_snapshot(Source(place=str(folder), manifest=read_manifest(folder)), target)


def copy_snapshot(source: Source, target: str) -> None:
    """Copy a snapshot to a new folder or URL, several files at once; other files are not copied.

    Raises:
        ConfigurationError: there is no driver for the URL, or the path is invalid.
        SnapshotError: there is a snapshot already (or, in a folder, anything); a file fails its check, or cannot be
            written. A folder is then as it was; at a URL no manifest of this copy is left, and its files are removed
            where possible.
    """
    for _ in copying_snapshot(source, target):
        pass


def copying_snapshot(source: Source, target: str) -> Iterator[None]:
    """Like `copy_snapshot`, in steps of at most 20 ms."""
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
    """A URL without a snapshot, to copy one to; ``place`` names it in messages.

    Raises:
        ConfigurationError: there is no driver for the URL.
        SnapshotError: there is a snapshot already, or the URL cannot be read.
    """

    def __init__(self, url: str) -> None:
        require_driver(url)
        from fsspec.core import url_to_fs

        self._url, self.place = url, redacted_url(url).rstrip("/")
        self._attempt = secrets.token_hex(8)
        self._uploaded: list[str] = []
        self._manifest = b""
        try:
            filesystem, path = url_to_fs(url)
            filesystem.invalidate_cache()
            self._filesystem, self._path = filesystem, path.rstrip("/")
            there = filesystem.exists(f"{self._path}/{MANIFEST_NAME}")
        except Exception as error:  # noqa: BLE001 (each driver raises errors of its own)
            raise SnapshotError(f"{self.place} cannot be read: {driver_message(error, url)}") from None
        if there:
            raise SnapshotError(
                f"{self.place} has a snapshot already, which is never overwritten; choose another path"
            )

    def try_out(self) -> None:
        """Write an empty file and delete it again, to detect missing write access early.

        Raises:
            SnapshotError: it cannot be written.
        """
        self._make_folder(self._path)
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-") as scratch:
            empty = Path(scratch) / f".writable-{self._attempt}"
            empty.touch()
            self.put(empty)
        # Write access without delete access is enough to publish.
        with suppress(Exception):
            self._filesystem.rm_file(f"{self._path}/{empty.name}")

    def upload(self, source: Source) -> Iterator[None]:
        """Upload a snapshot's files, without its manifest, several at once and each checked, in steps of at most 20 ms.

        Their names are unique to this attempt.
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
        """Write the manifest, which makes it a snapshot.

        Raises:
            SnapshotError: another snapshot was published meanwhile, which stays as it is; or the manifest cannot be
                written.
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
                f"{self.place}/{MANIFEST_NAME} cannot be written: {driver_message(error, self._url)}"
            ) from None
        if found != self._manifest:
            raise SnapshotError(
                f"{self.place} has a snapshot that was published meanwhile, which is never overwritten; "
                "choose another path"
            )

    def _write_manifest(self, place: str) -> None:
        """Write the manifest if there is none; drivers without an exclusive write check first."""
        if _creates(self._filesystem):
            try:
                self._filesystem.pipe_file(place, self._manifest, mode="create")
            # A server may not support it, and each driver raises errors of its own.
            except Exception as error:  # noqa: BLE001
                # No traceback: the driver's texts in it may contain a secret of the URL.
                logger.debug(
                    "%s: no exclusive write of %s: %s",
                    self.place,
                    MANIFEST_NAME,
                    driver_message(error, self._url),
                )
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
        """Remove this attempt's manifest and files. False when the manifest may still be there.

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
        """Upload one file as ``name``, a path below the URL, or under its own name.

        Raises:
            SnapshotError: it cannot be written, or arrives with another size.
        """
        name = name or local.name
        remote, shown_as = f"{self._path}/{name}", f"{self.place}/{name}"
        try:
            self._filesystem.put_file(str(local), remote)
            size = self._filesystem.info(remote)["size"]
        except Exception as error:  # noqa: BLE001 (as above)
            raise SnapshotError(f"{shown_as} cannot be written: {driver_message(error, self._url)}") from None
        expected = local.stat().st_size
        if size != expected:
            raise SnapshotError(
                f"{shown_as} has {size} bytes there, but {expected} were written; copy it again"
            )

    def _make_folder(self, path: str) -> None:
        if _WITHOUT_FOLDERS & set(_protocols(self._filesystem)):
            return
        try:
            self._filesystem.makedirs(path, exist_ok=True)
        except Exception as error:  # noqa: BLE001 (as above)
            raise SnapshotError(
                f"{self.place} cannot be written: {driver_message(error, self._url)}"
            ) from None


def _creates(filesystem: Any) -> bool:
    """Whether a driver has an exclusive write, which fails if the file exists."""
    writes = getattr(filesystem, "_pipe_file", None) or filesystem.pipe_file
    return "mode" in inspect.signature(writes).parameters


def _protocols(filesystem: Any) -> tuple[str, ...]:
    named = filesystem.protocol
    return (named,) if isinstance(named, str) else tuple(named)
