"""Sorted files: pages of marks as RocksDB reads them in, with the words of a filter beside them.

``NAME.sst`` holds `pages`, ``NAME.filter`` their `filter_words`. The live store, the backfill and snapshots all have RocksDB's own writer write
the same format, so that a snapshot is taken over without being rewritten.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from rocksdict import SstFileWriter

from dedup_sdk.errors import StoreError
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Marks, cut_marks, join_marks
from dedup_sdk.store.filter_words import FilterWords, encode_words, filter_words
from dedup_sdk.store.fingerprint import NO_FINGERPRINT, fingerprint, sum_fingerprints
from dedup_sdk.store.options import sorted_file_options
from dedup_sdk.store.pages import Page, digest_words, encode_pages, page_key

SORTED_SUFFIX = ".sst"
FILTER_SUFFIX = ".filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedFile:
    """One sorted file as a manifest lists it.

    ``bytes`` and ``sha256`` are of ``NAME.sst``, ``filter_bytes`` and ``filter_sha256`` of ``NAME.filter``. ``smallest`` and
    ``largest`` are digests in hexadecimal; ``oldest_ms`` and ``newest_ms`` record timestamps; ``newest_number`` is the highest
    acceptance number, None where the lane has no count window; ``fingerprint`` is that of its marks; ``payloads`` counts those of
    them that have a payload.
    """

    name: str
    marks: int
    bytes: int
    smallest: str
    largest: str
    oldest_ms: int
    newest_ms: int
    newest_number: int | None
    fingerprint: str
    sha256: str
    filter_bytes: int
    filter_sha256: str
    payloads: int = 0


class SortedFileWriter:
    """Writes one sorted file, some marks at a time; a context manager that leaves nothing behind unless it was finished.

    with SortedFileWriter(folder / "0001.sst") as writer:
        for marks in parts:         # ascending by digest, each digest once, also across parts
            writer.add(marks)
        file = writer.finish()

    Whether marks bear acceptance numbers is decided by the first part. Raises `StoreError` naming the file when digests do not ascend, nothing
    was added, or it cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        if self._path.suffix != SORTED_SUFFIX:
            message = (
                f"sorted file {str(path)!r} does not end in {SORTED_SUFFIX}; RocksDB takes in only such names"
            )
            raise StoreError(message)
        self._filter_path = self._path.with_suffix(FILTER_SUFFIX)
        self._writer = SstFileWriter(sorted_file_options(compressed=True))
        self._call(lambda: self._writer.open(str(self._path)))
        self._filter = self._filter_path.open("wb")
        self._held = NO_MARKS
        self._marks = 0
        self._smallest = self._largest = b""
        self._oldest_ms = self._newest_ms = 0
        self._newest_number: int | None = None
        self._numbered = False
        self._payloads = 0
        self._fingerprint = NO_FINGERPRINT
        self._finished = False

    def add(self, marks: Marks) -> None:
        """Append marks that ascend by digest and lie above everything added before."""
        if not marks.count:
            return
        first = marks.digests[:DIGEST_BYTES]
        self._check(marks)
        # The last page may go on with the next marks.
        held = join_marks([self._held, marks]) if self._held.count else marks
        pages = encode_pages(held)
        whole = held.count - pages[-1].marks
        self._put(pages[:-1], cut_marks(held, 0, whole))
        self._held = cut_marks(held, whole, held.count)
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
        """Complete both files, flush them to the disk, and return what a manifest says of them."""
        if not self._marks:
            message = f"sorted file {self._path} has no marks; leave an empty file out"
            raise StoreError(message)
        self._put(encode_pages(self._held), self._held)
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
            message = f"sorted file {self._path}: digest {wrong[:DIGEST_BYTES].hex()} does not ascend; sort the marks first"
            raise StoreError(message)
        numbered = marks.numbers is not None
        if self._marks and numbered != self._numbered:
            message = (
                f"sorted file {self._path}: marks with and without acceptance numbers; a lane has one kind"
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
            message = f"sorted file {self._path} cannot be written: {error}"
            raise StoreError(message) from error


class ExtentWriter:
    """Writes marks, ascending by digest over all calls of `add`, as an extent of a generation; RocksDB's exceptions pass through.

    A file that was not finished is its caller's to remove.
    """

    def __init__(self, path: Path, number: int, *, compressed: bool = False) -> None:
        self._number = number
        self._writer = SstFileWriter(sorted_file_options(compressed=compressed))
        self._writer.open(str(path))

    def add(self, marks: Marks) -> FilterWords:
        """Append marks, at least one, which may not divide what has one rank; return their filter words."""
        pages = encode_pages(marks)
        _put_pages(self._writer, pages, self._number)
        return filter_words(marks.digests, [page.rank for page in pages])

    def finish(self) -> None:
        """Complete the file, to which something was added, and flush it to the disk."""
        self._writer.finish()


def write_extent(path: Path, marks: Marks, number: int) -> FilterWords:
    """Write marks, at least one, ascending by digest, as an extent of a generation; return their filter words."""
    # What payloads there are is worth compressing, digests are not.
    writer = ExtentWriter(path, number, compressed=marks.bear_payloads)
    words = writer.add(marks)
    writer.finish()
    return words


def _put_pages(writer: SstFileWriter, pages: list[Page], extent: int) -> None:
    for page in pages:
        writer[page_key(extent, page.rank)] = page.value


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
