"""The files of a snapshot: writing, checking and reading sorted files.

A *sorted file* has marks, as pages in the format that RocksDB ingests: ``NAME.sst`` has `pages`,
``NAME.filter`` their filter words. The live store, the backfill and snapshots all use RocksDB's own writer
and one format, so that a snapshot is installed without being rewritten. A reader copies at most one file at
a time.

Files of a flush are uncompressed until RocksDB merges them, unless they have payloads: most of a page is
digests, which do not compress. Snapshots are copied over networks, and are written compressed.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import BinaryIO, Self, cast

import numpy as np
from rocksdict import IngestExternalFileOptions, Rdict, SstFileWriter

from dedup_sdk._interruptions import is_interruption
from dedup_sdk._marks import DIGEST_BYTES, NO_MARKS, Marks, cut_marks, join_marks
from dedup_sdk._masking import shown
from dedup_sdk._store.database import PART_BYTES, PART_MARKS, database_options, sorted_file_options
from dedup_sdk._store.filter_words import FilterWords, encode_words, filter_words
from dedup_sdk._store.fingerprint import NO_FINGERPRINT, fingerprint, sum_fingerprints
from dedup_sdk._store.manifest import Manifest, PartitionManifest, SortedFile, read_manifest
from dedup_sdk._store.pages import (
    Page,
    decode_items,
    digest_words,
    encode_pages,
    marks_in_page,
    merge_pages,
    page_key,
)
from dedup_sdk.errors import SnapshotError, StoreCorruptError, StoreError

SORTED_SUFFIX = ".sst"
FILTER_SUFFIX = ".filter"


class SortedFileWriter:
    """Writes one sorted file in parts; a context manager that removes the file unless it was finished.

        with SortedFileWriter(folder / "0001.sst") as writer:
            for marks in parts:         # ascending by digest, each digest once, also across parts
                writer.add(marks)
            file = writer.finish()

    The first part decides whether marks have acceptance numbers. Raises `StoreError` naming the file when
    digests do not ascend, nothing was added, or it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if self._path.suffix != SORTED_SUFFIX:
            message = f"sorted file {shown(path)} must end in {SORTED_SUFFIX}: RocksDB ingests no other names"
            raise StoreError(message)
        self._filter_path = self._path.with_suffix(FILTER_SUFFIX)
        self._writer = SstFileWriter(sorted_file_options(compressed=True))
        self._call(lambda: self._writer.open(str(self._path)))
        self._filter = self._filter_path.open("wb")
        self._open_page = NO_MARKS
        self._marks = 0
        self._smallest = self._largest = b""
        self._oldest_ms = self._newest_ms = 0
        self._newest_number: int | None = None
        self._numbered = False
        self._payloads = 0
        self._fingerprint = NO_FINGERPRINT
        self._finished = False

    def add(self, marks: Marks) -> None:
        """Append marks, ascending by digest and above all marks added before."""
        if not marks.count:
            return
        first = marks.digests[:DIGEST_BYTES]
        self._check(marks)
        # Keep the last page open: the next marks may belong to it.
        held = join_marks([self._open_page, marks]) if self._open_page.count else marks
        pages = encode_pages(held)
        whole = held.count - pages[-1].marks
        self._put(pages[:-1], cut_marks(held, 0, whole))
        self._open_page = cut_marks(held, whole, held.count)
        oldest_ms, newest_ms = int(marks.timestamps.min()), int(marks.timestamps.max())
        if not self._marks:
            self._smallest, self._oldest_ms, self._newest_ms = first, oldest_ms, newest_ms
        self._largest = marks.digests[-DIGEST_BYTES:]
        self._oldest_ms, self._newest_ms = min(self._oldest_ms, oldest_ms), max(self._newest_ms, newest_ms)
        if marks.numbers is not None:
            self._newest_number = max(self._newest_number or 0, int(marks.numbers.max()))
        self._fingerprint = sum_fingerprints((self._fingerprint, fingerprint((marks,))))
        self._marks += marks.count
        self._payloads += sum(map(bool, marks.payloads or ()))

    def finish(self) -> SortedFile:
        """Complete both files, flush them to the disk, and return their manifest entry."""
        if not self._marks:
            message = f"sorted file {self._path} has no marks; write no empty file"
            raise StoreError(message)
        self._put(encode_pages(self._open_page), self._open_page)
        self._call(self._writer.finish)
        self._filter.flush()
        os.fsync(self._filter.fileno())
        self._filter.close()
        self._finished = True
        return SortedFile(
            name=self._path.stem,
            marks=self._marks,
            bytes=self._path.stat().st_size,
            smallest=self._smallest.hex(),
            largest=self._largest.hex(),
            oldest_ms=self._oldest_ms,
            newest_ms=self._newest_ms,
            newest_number=self._newest_number,
            fingerprint=self._fingerprint,
            sha256=file_sha256(self._path),
            filter_bytes=self._filter_path.stat().st_size,
            filter_sha256=file_sha256(self._filter_path),
            payloads=self._payloads,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            self._filter.close()
            del self._writer  # it keeps its file open
            self._path.unlink(missing_ok=True)
            self._filter_path.unlink(missing_ok=True)

    def _check(self, marks: Marks) -> None:
        high, low = digest_words(marks.digests)
        ascends = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
        first = marks.digests[:DIGEST_BYTES]
        if first <= self._largest or not ascends.all():
            wrong = (
                first
                if first <= self._largest
                else marks.digests[DIGEST_BYTES * (int(np.argmin(ascends)) + 1) :]
            )
            message = (
                f"sorted file {self._path}: digest {wrong[:DIGEST_BYTES].hex()} does not ascend; "
                "sort the marks first"
            )
            raise StoreError(message)
        numbered = marks.numbers is not None
        if self._marks and numbered != self._numbered:
            message = (
                f"sorted file {self._path}: marks with and without acceptance numbers; write only one kind"
            )
            raise StoreError(message)
        self._numbered = numbered

    def _put(self, pages: list[Page], marks: Marks) -> None:
        self._call(lambda: _put_pages(self._writer, pages, 0))
        self._filter.write(encode_words(filter_words(marks.digests, [page.rank for page in pages])))

    def _call(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            if is_interruption(error):
                raise
            message = f"sorted file {self._path} cannot be written: {error}"
            raise StoreError(message) from error


class ExtentWriter:
    """Writes an extent of a generation from marks that ascend by digest over all calls of `add`.

    RocksDB's exceptions pass through. The caller removes an unfinished file.
    """

    def __init__(self, path: Path, number: int, *, compressed: bool = False) -> None:
        self._number = number
        self._writer = SstFileWriter(sorted_file_options(compressed=compressed))
        self._writer.open(str(path))

    def add(self, marks: Marks) -> FilterWords:
        """Append marks (at least one), and return their filter words; never split marks of one rank over calls."""
        pages = encode_pages(marks)
        _put_pages(self._writer, pages, self._number)
        return filter_words(marks.digests, [page.rank for page in pages])

    def finish(self) -> None:
        """Complete the file, which must not be empty, and flush it to the disk."""
        self._writer.finish()


def _put_pages(writer: SstFileWriter, pages: list[Page], extent: int) -> None:
    for page in pages:
        writer[page_key(extent, page.rank)] = page.value


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_CHUNK_BYTES = 2**20


def verify_snapshot(folder: str | Path, partition: int | None = None) -> Manifest:
    """Read the manifest, and check size and SHA-256 of every file it names (of one partition, if given).

    Raises `SnapshotError` naming the file and the difference.
    """
    manifest = read_manifest(folder)
    if partition is not None and manifest.partition(partition) is None:
        message = (
            f"{folder} has no partition {partition}; "
            f"it has {[entry.partition for entry in manifest.partitions]}"
        )
        raise SnapshotError(message)
    for entry in manifest.partitions:
        if partition is None or entry.partition == partition:
            for file in entry.files:
                read_file(Path(folder) / str(entry.partition), file, None)
    return manifest


def read_file(
    folder: Path,
    file: SortedFile,
    copy_to: Path | None,
    stop: Event | None = None,
    took: Callable[[int], object] | None = None,
) -> None:
    """Check one file and its filter; with ``copy_to``, copy both into that folder in the same pass.

    So the checked bytes are the bytes used. ``stop`` ends it early, with neither checked. ``took``: see `reading_file`.
    """
    for _ in reading_file(folder, file, copy_to, took):
        if stop is not None and stop.is_set():
            return


def reading_file(
    folder: Path, file: SortedFile, copy_to: Path | None, took: Callable[[int], object] | None = None
) -> Iterator[None]:
    """Like `read_file`, a megabyte a step; ``took`` is called with the bytes of each."""
    for suffix, size, sha256 in files_of(file):
        path = folder / f"{file.name}{suffix}"
        try:
            with _open(path) as source:
                check_size(str(path), os.fstat(source.fileno()).st_size, size)
                target = None if copy_to is None else copy_to / path.name
                digest = yield from _digest(source, target, str(path), size, took)
        except OSError as error:
            message = f"{path} cannot be read: {error.strerror}; copy or make the snapshot again"
            raise SnapshotError(message) from error
        if digest != sha256:
            message = (
                f"{path} has SHA-256 {digest}, its manifest says {sha256}; copy or make the snapshot again"
            )
            raise SnapshotError(message)


def _open(path: Path) -> BinaryIO:
    # Refuse links and pipes: a link would make the reader open any file its creator chose, a pipe would block it.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        message = f"{path} is not a regular file; copy or make the snapshot again"
        raise SnapshotError(message)
    return os.fdopen(descriptor, "rb")


def files_of(file: SortedFile) -> tuple[tuple[str, int, str], tuple[str, int, str]]:
    """Return suffix, bytes and SHA-256 of a sorted file and of its filter words, as the manifest declares them."""
    return (
        (SORTED_SUFFIX, file.bytes, file.sha256),
        (FILTER_SUFFIX, file.filter_bytes, file.filter_sha256),
    )


def check_size(place: str, found: int, declared: int) -> None:
    """Raise `SnapshotError` if a file has another size than its manifest declares; messages name it ``place``."""
    if found != declared:
        raise SnapshotError(
            f"{place} has {found} bytes, its manifest says {declared}; copy or make the snapshot again"
        )


def _digest(
    source: BinaryIO, copy_to: Path | None, place: str, size: int, took: Callable[[int], object] | None
) -> Generator[None, None, str]:
    digest = hashlib.sha256()
    target = None if copy_to is None else _writing(copy_to)
    left = size
    try:
        # One byte more than declared: a file that grows meanwhile must not be read to an end that may never come.
        while left >= 0 and (chunk := source.read(min(_CHUNK_BYTES, left + 1))):
            left -= len(chunk)
            digest.update(chunk)
            if target is not None:
                target.send(chunk)
            if took is not None:
                took(len(chunk))
            yield
    finally:
        if target is not None:
            target.close()
    check_size(place, size - left, size)
    return digest.hexdigest()


def _writing(path: Path) -> Generator[None, bytes, None]:
    """Return a generator that writes the chunks passed to ``send``.

    Its errors name the target file, so that the snapshot is not blamed.
    """

    def write() -> Generator[None, bytes, None]:
        try:
            with path.open("wb") as target:
                while True:
                    target.write((yield))
        except OSError as error:
            message = f"{path} cannot be written: {error.strerror}; free space there"
            raise SnapshotError(message) from error

    writing = write()
    # `send` needs a generator that stands at its `yield`.
    next(writing)
    return writing


Copy = Callable[[SortedFile, Path], object]
"""Checks a file of a snapshot by size and SHA-256, and puts it and its filter words into a folder."""


def read_snapshot(folder: str | Path, entry: PartitionManifest) -> Iterator[Marks]:
    """Yield the marks of one partition of a snapshot in pages, ascending, each ID once.

    Needs room for the largest file of each layer in the temporary folder. Raises `SnapshotError` when a file fails a
    check, or has other marks than its manifest says.
    """
    source = Path(folder) / str(entry.partition)
    return read_layers(
        entry, lambda file, target: read_file(source, file, target), place=str(source), temp_dir=None
    )


def read_layers(
    entry: PartitionManifest, copy: Copy, *, place: str, temp_dir: Path | None
) -> Generator[Marks, None, None]:
    """Yield the marks of one partition in pages, ascending, each ID once; the arguments are those of `read_files`."""
    return merge_pages([read_files(files, copy, place=place, temp_dir=temp_dir) for files in entry.layers])


def read_files(
    files: Iterable[SortedFile], copy: Copy, *, place: str, temp_dir: Path | None
) -> Generator[Marks, None, None]:
    """Yield the marks of files of one layer in pages, ascending over all files.

    ``copy`` puts each file into a folder created in ``temp_dir``. ``place`` names the partition in messages.
    Raises `SnapshotError` as `read_snapshot` does.
    """
    # By digest: a merge of layers takes for granted that pages ascend over all files of one.
    for file in sorted(files, key=lambda file: file.smallest):
        with tempfile.TemporaryDirectory(prefix="dedup-snapshot-", dir=temp_dir) as scratch:
            copy(file, Path(scratch))
            count, payloads, first, last = 0, 0, "", ""
            for page in read_sorted_file(Path(scratch), file, f"{place}/{file.name}{SORTED_SUFFIX}"):
                count += page.count
                payloads += sum(map(bool, page.payloads or ()))
                first, last = (
                    first or page.digests[:DIGEST_BYTES].hex(),
                    page.digests[-DIGEST_BYTES:].hex(),
                )
                yield page
        found = count, payloads, first, last
        expected = file.marks, file.payloads, file.smallest, file.largest
        if found != expected:
            message = (
                f"{place}/{file.name}{SORTED_SUFFIX} has (marks, payloads, smallest, largest) = {found}, "
                f"the manifest says {expected}; make the snapshot again"
            )
            raise SnapshotError(message)


def read_sorted_file(folder: Path, file: SortedFile, place: str) -> Iterator[Marks]:
    """Yield the marks of a sorted file in pages, in its own order; consumes the file, a copy in ``folder``.

    ``place`` names it in messages. Raises `SnapshotError` when RocksDB cannot read it.
    """
    try:
        database = Rdict(str(folder / "db"), database_options(None))
    except Exception as error:
        if is_interruption(error):
            raise
        message = f"{place} cannot be read ({error}); free disk space, or let the process open more files"
        raise SnapshotError(message) from error
    try:
        options = IngestExternalFileOptions()
        # The copy is ours: another one would need the room twice.
        options.set_move_files(True)
        database.ingest_external_file([str(folder / f"{file.name}{SORTED_SUFFIX}")], options)
        yield from _parts(database)
    except StoreCorruptError as error:
        message = f"{place}: {error}; make the snapshot again"
        raise SnapshotError(message) from error
    except Exception as error:
        # RocksDB raises plain exceptions: any other one comes from the code between two pages.
        if type(error) is not Exception or is_interruption(error):
            raise
        message = f"{place} cannot be read ({error}); make the snapshot again"
        raise SnapshotError(message) from error
    finally:
        # A file that RocksDB refused may also prevent closing.
        with suppress(Exception):
            database.close()


def _parts(database: Rdict) -> Iterator[Marks]:
    items: list[tuple[bytes, bytes]] = []
    marks = size = 0
    last = b""
    for item in cast("Iterator[tuple[bytes, bytes]]", iter(database.items())):
        marks += marks_in_page(item[1])
        size += len(item[1])
        if items and (marks > PART_MARKS or size > PART_BYTES):
            yield decode_items(items)
            items, marks, size = [], marks_in_page(item[1]), len(item[1])
        items.append(item)
        last = item[0]
    if items:
        yield decode_items(items)
    # This iterator ends silently on an error. A cursor reports it: repeat the last step with one.
    cursor = database.iter()
    cursor.seek(last)
    if last and cursor.valid():
        cursor.next()
    cursor.status()
    if cursor.valid():
        message = f"reading stopped before key {cast('bytes', cursor.key()).hex()}"
        raise StoreCorruptError(message)
