"""The footers of Parquet files: their columns, and the stamp by which a file is known when it is read again later.

A task reads row groups by their number, so the file must be the same one when it is read again: it is known by its
size, its row groups and a checksum of its footer, not by its time, which machines tell differently.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from dedup_sdk._masking import shown
from spark_backfill.errors import BackfillError

_THREADS: Final = 8
_BUFFER_BYTES: Final = 2**20
_END_BYTES: Final = 8
"""How a file ends: the bytes of its footer, and a word."""
_ENCRYPTED: Final = b"PARE"
"""How a file begins whose footer is encrypted."""


class Stamp(NamedTuple):
    """The facts by which a file is known.

    Its bytes, the rows of each of its row groups, and a checksum of its footer, which tells of all of them. The
    time of its last change is none of it: machines that see one file may tell it differently.
    """

    size: int
    rows: tuple[int, ...]
    footer: int


class Footer(NamedTuple):
    """A file's own facts."""

    path: str
    schema: pa.Schema
    stamp: Stamp


class OpenFile(NamedTuple):
    """A file that is open."""

    parquet: pq.ParquetFile
    source: pa.OSFile

    def stamp(self) -> Stamp:
        """Return its stamp as of now."""
        size, metadata = self.source.size(), self.parquet.metadata
        rows = tuple(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))
        # Read anew, because the file may have been written over since it was opened.
        end = self.source.read_at(_END_BYTES, max(size - _END_BYTES, 0))
        length = int.from_bytes(end[:4], "little") + _END_BYTES
        return Stamp(size, rows, zlib.crc32(self.source.read_at(min(length, size), max(size - length, 0))))


@contextmanager
def opened(path: str) -> Iterator[OpenFile]:
    """Open a file for as long as the ``with`` block lasts; its name may lead to another one meanwhile."""
    with (
        pa.OSFile(path, "rb") as source,
        # As it is read, and not a whole row group ahead.
        pq.ParquetFile(
            source, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=_BUFFER_BYTES
        ) as parquet,
    ):
        yield OpenFile(parquet, source)


def read_footers(files: Sequence[str]) -> list[Footer] | None:
    """Return the footer of each file; None where only Spark may be able to read one.

    Raises:
        BackfillError: a file is empty, torn, or no Parquet file.
    """
    with ThreadPoolExecutor(_THREADS) as pool:
        footers = list(pool.map(_footer, files))
    known = [footer for footer in footers if footer is not None]
    return known if len(known) == len(footers) else None


def broken(path: str, why: str) -> BackfillError:
    """Return the error for a file that cannot be read."""
    reason = " ".join(why.split())
    return BackfillError(
        f"archive file {shown(path)} cannot be read as Parquet ({reason}): write it again, or move it away if it "
        "is no part of the archive"
    )


def changed(path: str, what: str) -> BackfillError:
    """Return the error for a file that changed since the archive was looked through."""
    return BackfillError(
        f"archive file {shown(path)} {what} since the archive was looked through: run the backfill again when "
        "nothing writes there"
    )


def _footer(path: str) -> Footer | None:
    try:
        with Path(path).open("rb") as begin:
            if begin.read(len(_ENCRYPTED)) == _ENCRYPTED:
                return None
        with opened(path) as file:
            return Footer(path, file.parquet.schema_arrow, file.stamp())
    except pa.ArrowNotImplementedError:
        return None
    except (OSError, pa.ArrowException) as error:
        raise broken(path, str(error)) from None
