"""Checks of a snapshot folder against its manifest."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

from dedup_sdk.errors import SnapshotError
from dedup_sdk.store.manifest import Manifest, read_manifest
from dedup_sdk.store.sorted_file import FILTER_SUFFIX, SORTED_SUFFIX, SortedFile

_CHUNK_BYTES = 2**20


def verify_snapshot(folder: str | Path, partition: int | None = None) -> Manifest:
    """Read the manifest and check size and SHA-256 of every file it names (of one partition, if given).

    Raises `SnapshotError` naming the file and what differs.
    """
    manifest = read_manifest(folder)
    if partition is not None and manifest.partition(partition) is None:
        message = f"{folder} has no partition {partition}; it has {[entry.partition for entry in manifest.partitions]}"
        raise SnapshotError(message)
    for entry in manifest.partitions:
        if partition is None or entry.partition == partition:
            for file in entry.files:
                read_file(Path(folder) / str(entry.partition), file, None)
    return manifest


def read_file(folder: Path, file: SortedFile, copy_to: Path | None) -> None:
    """Check one file and its filter and, on the way, copy both into the folder ``copy_to``: what was checked is what is used."""
    for _ in reading_file(folder, file, copy_to):
        pass


def reading_file(folder: Path, file: SortedFile, copy_to: Path | None) -> Iterator[None]:
    """Do as `read_file`, a megabyte a step."""
    expected = ((SORTED_SUFFIX, file.bytes, file.sha256), (FILTER_SUFFIX, None, file.filter_sha256))
    for suffix, size, sha256 in expected:
        path = folder / f"{file.name}{suffix}"
        try:
            with _open(path) as source:
                found = os.fstat(source.fileno()).st_size
                if size is not None and found != size:
                    message = (
                        f"{path} has {found} bytes, its manifest says {size}; copy or make the snapshot again"
                    )
                    raise SnapshotError(message)
                digest = yield from _digest(source, None if copy_to is None else copy_to / path.name)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}; copy or make the snapshot again"
            raise SnapshotError(message) from error
        if digest != sha256:
            message = (
                f"{path} has SHA-256 {digest}, its manifest says {sha256}; copy or make the snapshot again"
            )
            raise SnapshotError(message)


def _open(path: Path) -> BinaryIO:
    # A link or a pipe in a snapshot would make the reader open what its maker chose, or wait for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"{path} is not a regular file; copy or make the snapshot again"
        raise SnapshotError(message)
    return os.fdopen(descriptor, "rb")


def _digest(source: BinaryIO, copy_to: Path | None) -> Generator[None, None, str]:
    digest = hashlib.sha256()
    target = None if copy_to is None else _writing(copy_to)
    try:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
            if target is not None:
                target.send(chunk)
            yield
    finally:
        if target is not None:
            target.close()
    return digest.hexdigest()


def _writing(path: Path) -> Generator[None, bytes, None]:
    """Return what takes a file's chunks by ``send``; what goes wrong is then the target's fault, not the snapshot's."""

    def write() -> Generator[None, bytes, None]:
        try:
            with path.open("wb") as target:
                while True:
                    target.write((yield))
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}; make room there"
            raise SnapshotError(message) from error

    writing = write()
    next(writing)
    return writing
