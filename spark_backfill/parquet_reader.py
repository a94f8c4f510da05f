"""The rows of plain Parquet files, read by Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dedup_sdk.marks import Int64s
from spark_backfill.archive_checks import SHOWN_TOPICS
from spark_backfill.arrow_columns import milliseconds
from spark_backfill.parquet_files import Layout, Unit

_BATCH_ROWS: Final = 20_000
PLACE: Final = ("topic", "partition", "offset", "timestamp")


class Batch(NamedTuple):
    """Rows of the topic: their coordinates and timestamps (ms), and what else was asked for, by Kafka's names.

    ``offsets`` are only good where ``has_offset``; rows without a partition are only counted, as ``strays``.
    """

    partitions: NDArray[np.int64]
    offsets: Int64s
    has_offset: NDArray[np.bool_]
    timestamps: Int64s
    rest: pa.RecordBatch
    strays: int
    others: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetReader:
    """Reads what one task has to read; ``names`` are Kafka's names of the columns that it wants beside the coordinates."""

    topic: str
    layout: Layout
    tasks: tuple[tuple[Unit, ...], ...]
    names: tuple[str, ...] = ()

    def read(self, task: int, span: tuple[int, int] | None = None) -> Iterator[Batch]:
        """Yield the rows of a task; ``span``: no offset outside ``[begin, end)`` is wanted."""
        wanted = [name for name in (*PLACE, *self.names) if name in self.layout.names]
        columns = [self.layout.names[name] for name in wanted]
        for unit in self.tasks[task]:
            with pq.ParquetFile(unit.path, coerce_int96_timestamp_unit="us") as file:
                groups = [group for group in unit.groups if span is None or self._may_have(file, group, span)]
                if groups:
                    for batch in file.iter_batches(_BATCH_ROWS, groups, columns, use_threads=False):
                        yield self._batch(batch.select(columns).rename_columns(wanted))

    def _may_have(self, file: pq.ParquetFile, group: int, span: tuple[int, int]) -> bool:
        chunks = file.metadata.row_group(group)
        name = self.layout.names["offset"]
        for index in range(chunks.num_columns):
            column = chunks.column(index)
            if column.path_in_schema == name:
                known = column.statistics
                return (
                    known is None or not known.has_min_max or (known.min < span[1] and known.max >= span[0])
                )
        return True

    def _batch(self, batch: pa.RecordBatch) -> Batch:
        others = frozenset[str]()
        if "topic" in batch.schema.names:
            mine = pc.fill_null(pc.equal(batch.column("topic"), self.topic), fill_value=False)
            if not pc.all(mine).as_py():
                strangers = pc.unique(batch.column("topic").filter(pc.invert(mine))).to_pylist()
                others = frozenset(str(each) for each in strangers[:SHOWN_TOPICS])
                batch = batch.filter(mine)
        placed = batch.column("partition").is_valid()
        strays = batch.num_rows - placed.true_count
        if strays:
            batch = batch.filter(placed)
        offsets = batch.column("offset").cast(pa.int64())
        return Batch(
            batch.column("partition").cast(pa.int64()).to_numpy(),
            offsets.fill_null(-1).to_numpy(),
            np.asarray(offsets.is_valid()),
            milliseconds(batch.column("timestamp"), self.layout.unit),
            batch.select(list(self.names)),
            strays,
            others,
        )
