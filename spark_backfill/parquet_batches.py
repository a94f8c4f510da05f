"""How many rows of a row group are read at a time, so that a task's memory is bounded by bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MOST_ROWS: Final = 20_000
USUAL_BYTES: Final = 16_000_000
"""The size of a batch where all rows are alike."""
MOST_BYTES: Final = 4 * USUAL_BYTES
"""Its size if it had nothing but the longest values that are written down once."""
_SHARED: Final = "DELTA_BYTE_ARRAY"
"""Values have their beginning in common with the one before."""
_WRITTEN_ONCE: Final = frozenset({"PLAIN_DICTIONARY", "RLE_DICTIONARY", _SHARED})
_LOOKED_AT: Final = 64


class _Written(NamedTuple):
    """A column that has values once which stand in several rows: its bytes, and how many values a row has."""

    path: str
    size: int
    values: int
    in_dictionary: bool


def batch_rows(file: pq.ParquetFile, source: pa.NativeFile, group: int, columns: Sequence[str]) -> int:
    """Return how many rows (1 to `MOST_ROWS`) of a row group a batch of these columns of the schema has.

    A row group tells its bytes before compression, but a value in a dictionary is counted once and may stand in
    every row: where that could be too much the dictionary itself is looked at.
    """
    chunks = file.metadata.row_group(group)
    if not chunks.num_rows:
        return MOST_ROWS
    size = 0
    once: list[_Written] = []
    for index in range(chunks.num_columns):
        chunk = chunks.column(index)
        if chunk.path_in_schema.partition(".")[0] not in columns:
            continue
        size += chunk.total_uncompressed_size
        if chunk.physical_type == "BYTE_ARRAY" and not _WRITTEN_ONCE.isdisjoint(chunk.encodings):
            values = -(-chunk.num_values // chunks.num_rows)
            in_dictionary = _SHARED not in chunk.encodings
            once.append(_Written(chunk.path_in_schema, chunk.total_uncompressed_size, values, in_dictionary))
    rows: int = min(MOST_ROWS, USUAL_BYTES * chunks.num_rows // max(size, 1))
    if rows * sum(each.size * each.values for each in once) > MOST_BYTES:
        widest = sum(_longest(file, source, group, each) * each.values for each in once)
        rows = min(rows, MOST_BYTES // max(widest, 1))
    return max(rows, 1)


def _longest(file: pq.ParquetFile, source: pa.NativeFile, group: int, written: _Written) -> int:
    """The bytes of the longest value in a column's dictionary; without one, of the first values."""
    path = written.path
    wanted = [path] if written.in_dictionary else None
    with pq.ParquetFile(source, metadata=file.metadata, read_dictionary=wanted) as again:
        first = next(again.iter_batches(_LOOKED_AT, [group], [path], use_threads=False))
    lengths = (
        pc.max(pc.binary_length(leaf.dictionary if written.in_dictionary else leaf)).as_py()
        for column in first.columns
        for leaf in _leaves(column)
    )
    return max((int(length or 0) for length in lengths), default=0)


def _leaves(column: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_list(column.type):
        yield from _leaves(column.values)
    elif pa.types.is_struct(column.type):
        for field in column.flatten():
            yield from _leaves(field)
    else:
        yield column
