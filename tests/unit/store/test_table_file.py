from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rocksdict import IngestExternalFileOptions, Options, Rdict

from dedup_sdk.marks import Marks, select_marks
from dedup_sdk.store.codec import encode_values
from dedup_sdk.store.mark_sort import newest_per_digest
from dedup_sdk.store.table_file import TableWriter
from dedup_sdk.store.words import digest_list
from tests.support.marks import random_marks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Rdict]:
    """An empty database."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    opened = Rdict(str(tmp_path / "db"), options)
    yield opened
    opened.close()


def numbered(marks: Marks) -> Marks:
    """Return the marks with acceptance numbers."""
    return Marks(marks.digests, marks.offsets, marks.timestamps, marks.offsets + 7)


def write(path: Path, *pages: Marks) -> int:
    """Write one table; return its size."""
    writer = TableWriter(path)
    for page in pages:
        writer.add(page)
    return writer.finish()


def ingest(database: Rdict, path: Path) -> None:
    """Have RocksDB take the file in."""
    database.ingest_external_file([str(path)], IngestExternalFileOptions())


# One entry, one restart and its neighbours, a block (95 of 43 bytes, 80 of 51) and its neighbours, many blocks.
@pytest.mark.parametrize("count", [1, 15, 16, 17, 79, 80, 81, 94, 95, 96, 20_000])
@pytest.mark.parametrize("with_numbers", [False, True])
def test_rocksdb_reads_what_was_written(
    database: Rdict, tmp_path: Path, count: int, *, with_numbers: bool
) -> None:
    """Every mark is found and scanned as written, nothing else is, and RocksDB's own count of them agrees."""
    held = newest_per_digest(random_marks(count, 1, offset=2**62, step_ms=37))
    held = numbered(held) if with_numbers else held
    size = write(tmp_path / "x.sst", held)
    assert size == (tmp_path / "x.sst").stat().st_size
    ingest(database, tmp_path / "x.sst")

    expected = dict(zip(digest_list(held.digests), encode_values(held), strict=True))
    assert dict(database.items()) == expected
    assert list(database.keys()) == sorted(expected)
    assert database.get(list(expected)) == list(expected.values())
    assert database.get([b"\0" * 16, b"\xff" * 16]) == [None, None]
    assert f"# entries={count};" in (database.property_value("rocksdb.aggregated-table-properties") or "")


def test_a_table_is_written_in_pages(database: Rdict, tmp_path: Path) -> None:
    """Pages of any size, empty ones too, make one table; RocksDB merges it with another, the newer one winning."""
    held = newest_per_digest(random_marks(1_000, 1))
    cuts = [0, 0, 1, 2, 300, 300, 999, 1_000]
    write(
        tmp_path / "x.sst",
        *(select_marks(held, np.arange(start, end)) for start, end in pairwise(cuts)),
    )
    newer = Marks(held.digests[: 16 * 500], held.offsets[:500] + 10**6, held.timestamps[:500])
    write(tmp_path / "y.sst", newer)
    ingest(database, tmp_path / "x.sst")
    ingest(database, tmp_path / "y.sst")

    expected = dict(zip(digest_list(held.digests), encode_values(held), strict=True))
    expected |= dict(zip(digest_list(newer.digests), encode_values(newer), strict=True))
    assert dict(database.items()) == expected
    database.compact_range(None, None)
    assert dict(database.items()) == expected


@pytest.mark.parametrize("where", [10, 5_000, 30_000, -60, -100, -1_500])
def test_a_flipped_byte_is_noticed(database: Rdict, tmp_path: Path, where: int) -> None:
    """Whatever byte of data, index or properties is changed, RocksDB says so instead of reading it."""
    path = tmp_path / "x.sst"
    held = newest_per_digest(random_marks(1_000, 1))
    write(path, held)
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)

    def read() -> None:
        ingest(database, path)
        for key in digest_list(held.digests):
            database.get(key)

    with pytest.raises(Exception, match=r"(?i)corruption"):
        read()


def test_a_table_too_large_for_its_index_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beyond what a place in the index can say is an error, never a file that points elsewhere."""
    monkeypatch.setattr("dedup_sdk.store.table_file._OFFSET_VARINT_BYTES", 2)
    writer = TableWriter(tmp_path / "x.sst")
    writer.add(newest_per_digest(random_marks(1_000, 1)))

    with pytest.raises(ValueError, match="16384 bytes"):
        writer.finish()
    writer.close()
