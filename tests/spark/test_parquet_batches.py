"""A task's part of a Parquet file in memory is bounded by bytes.

The values may be of any size, and written in any way.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.parquet_batches import MOST_BYTES, MOST_ROWS, USUAL_BYTES
from spark_backfill.parquet_files import deal_out, plain_layout
from spark_backfill.parquet_footers import opened
from spark_backfill.parquet_reader import ParquetReader
from tests.support.archives import HEADERS

if TYPE_CHECKING:
    from pathlib import Path


def batches(folder: Path, column: str, values: pa.Array, **written: Any) -> list[pa.RecordBatch]:
    """Write rows with these values, and read them as a task does."""
    count = len(values)
    table = pa.table({
        "partition": pa.array([0] * count, pa.int32()), "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([0] * count, pa.timestamp("ms")), column: values,
    })  # fmt: skip
    pq.write_table(table, folder / "a.parquet", **written)
    options = ArchiveOptions(places=(str(folder),), format="parquet", isolation="read_committed")
    layout = plain_layout(options, (column,))
    assert layout is not None
    reader = ParquetReader(topic="t", layout=layout, tasks=tuple(deal_out(layout.groups, 1)), names=(column,))
    found = [batch.rest for batch in reader.read(0)]
    assert pa.Table.from_batches(found).column(column).combine_chunks().equals(values)
    return found


@pytest.mark.parametrize(
    ("written", "bound"),
    [
        ({"use_dictionary": False, "compression": "zstd"}, USUAL_BYTES),
        ({"use_dictionary": True}, MOST_BYTES),
        ({"use_dictionary": False, "column_encoding": {"value": "DELTA_BYTE_ARRAY"}}, MOST_BYTES),
    ],
)
def test_large_values_come_in_small_batches(tmp_path: Path, written: dict[str, Any], bound: int) -> None:
    """Also where the file has them once: as a dictionary, or as the beginning shared with the one before."""
    values = pa.array([b"x" * 50_000 + b"%d" % (row % 3) for row in range(3_000)])
    if "column_encoding" in written:
        written = {**written, "use_dictionary": ["partition"]}
    found = batches(tmp_path, "value", values, **written)
    assert max(batch.nbytes for batch in found) <= bound
    assert len(found) < 20


def test_a_large_row_group_is_not_held_as_a_whole(tmp_path: Path) -> None:
    """A task's memory beside a batch is small, and so are the bytes read ahead."""
    values = pa.array([os.urandom(2_000) for _ in range(20_000)])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"value": values}), path, compression="none", use_dictionary=False)
    before = pa.total_allocated_bytes()
    with opened(str(path)) as file:
        most = max(
            pa.total_allocated_bytes() - before for _ in file.parquet.iter_batches(1_000, use_threads=False)
        )
    assert most < 15_000_000 < path.stat().st_size / 2


def test_one_large_value_in_a_dictionary_bounds_the_batch(tmp_path: Path) -> None:
    """Values are small until, far behind, one large one comes in every row."""
    values = pa.array([b"%d" % row for row in range(5_000)] + [b"x" * 500_000] * 200)
    found = batches(tmp_path, "key", values, dictionary_pagesize_limit=2**24)
    assert max(batch.nbytes for batch in found) <= MOST_BYTES


def test_headers_are_looked_into(tmp_path: Path) -> None:
    """Several large values a row, in a dictionary below a list of structs."""
    one = [{"key": name, "value": name.encode() * 20_000} for name in ("a", "b", "c")]
    found = batches(tmp_path, "headers", pa.array([one] * 2_000, HEADERS))
    assert max(batch.nbytes for batch in found) <= MOST_BYTES


@pytest.mark.parametrize("distinct", [1, 50_000])
def test_small_values_come_in_large_batches(tmp_path: Path, distinct: int) -> None:
    """The usual case: headers of 36 bytes, in a dictionary or where that was given up."""
    values = [[{"key": "dedup-id", "value": b"%036d" % (row % distinct)}] for row in range(50_000)]
    found = batches(tmp_path, "headers", pa.array(values, HEADERS))
    assert [batch.num_rows for batch in found] == [MOST_ROWS, MOST_ROWS, 10_000]


def test_a_value_beyond_all_bounds_comes_alone(tmp_path: Path) -> None:
    """A batch has a row at least."""
    found = batches(tmp_path, "value", pa.array([b"x" * (USUAL_BYTES + 1)] * 2), use_dictionary=False)
    assert [batch.num_rows for batch in found] == [1, 1]
