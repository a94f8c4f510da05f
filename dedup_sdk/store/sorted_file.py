"""Sorted files: marks as RocksDB reads them in, with the words of a filter beside them.

``NAME.sst`` holds the marks (key: digest; value: `codec.encode_values`), ``NAME.filter`` their `filter_words`. The live
store, the backfill and snapshots all write the same format, so that a snapshot is taken over without being rewritten.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from rocksdict import SstFileWriter

from dedup_sdk.errors import StoreError
from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.store.codec import encode_values
from dedup_sdk.store.filter_words import encode_words, filter_words
from dedup_sdk.store.fingerprint import NO_FINGERPRINT, fingerprint, sum_fingerprints
from dedup_sdk.store.options import sorted_file_options
from dedup_sdk.store.table_file import TableWriter
from dedup_sdk.store.words import digest_list, digest_words

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
    """Writes one sorted file, page by page; a context manager that leaves nothing behind unless it was finished.

    with SortedFileWriter(folder / "0001.sst") as writer:
        for page in pages:          # ascending by digest, each digest once, also across pages
            writer.add(page)
        file = writer.finish()

    It is compressed, for the disk and the network of others; `write_marks` is for files that stay here. Whether marks bear
    acceptance numbers is decided by the first page. Raises `StoreError` naming the file when digests do not ascend, nothing
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
        self._writer = SstFileWriter(sorted_file_options())
        self._call(lambda: self._writer.open(str(self._path)))
        self._filter = self._filter_path.open("wb")
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
        self._call(lambda: put_marks(self._writer, marks))
        self._filter.write(encode_words(filter_words(marks.digests)))
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

    def _call(self, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            message = f"sorted file {self._path} cannot be written: {error}"
            raise StoreError(message) from error


def put_marks(writer: SstFileWriter, marks: Marks) -> None:
    """Put marks, ascending by digest, into an open writer of RocksDB's."""
    # map and deque call the writer once a mark without a loop in Python.
    deque(map(writer.__setitem__, digest_list(marks.digests), encode_values(marks)), maxlen=0)


def write_marks(path: Path, marks: Marks) -> None:
    """Write marks, ascending by digest, each digest once, as one sorted file, without a filter beside it.

    Quickly, and uncompressed, where they bear no payloads: values of one length are laid out as columns. Raises OSError and
    RocksDB's exceptions.
    """
    if marks.bear_payloads:
        of_rocksdb = SstFileWriter(sorted_file_options())
        of_rocksdb.open(str(path))
        put_marks(of_rocksdb, marks)
        of_rocksdb.finish()
        return
    writer = TableWriter(path)
    try:
        writer.add(marks)
        writer.finish()
    finally:
        writer.close()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
