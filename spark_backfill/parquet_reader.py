"""The rows of plain Parquet files, read by Arrow.

Columns that the statistics of a row group describe fully (one topic or partition in all rows), and groups
outside the wanted offsets, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s
from spark_backfill.archive_checks import SHOWN_TOPICS
from spark_backfill.arrow_columns import milliseconds
from spark_backfill.parquet_batches import batch_rows
from spark_backfill.parquet_files import PLACE, Layout, Unit
from spark_backfill.parquet_footers import OpenFile, broken, changed, opened


class Batch(NamedTuple):
    """Rows of the topic: their coordinates and timestamps (ms), and the other columns asked for, by Kafka's names.

    ``offsets`` are only good where ``has_offset``; rows without a partition are only counted, as ``strays``, and
    those without a topic, in files that have topics, as ``nameless``.
    """

    partitions: NDArray[np.int64]
    offsets: Int64s
    has_offset: NDArray[np.bool_]
    timestamps: Int64s
    rest: pa.RecordBatch
    strays: int
    nameless: int
    others: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetReader:
    """Reads the row groups of one task.

    ``names`` are Kafka's names of the columns that it wants beside the coordinates.
    """

    topic: str
    layout: Layout
    tasks: tuple[tuple[Unit, ...], ...]
    names: tuple[str, ...] = ()

    def read(self, task: int, span: tuple[int, int] | None = None) -> Iterator[Batch]:
        """Yield the rows of a task; ``span``: no offset outside ``[begin, end)`` is wanted."""
        for unit in self.tasks[task]:
            try:
                yield from self._unit(unit, span)
            except FileNotFoundError:
                raise changed(unit.path, "is gone") from None
            except (OSError, pa.ArrowException) as error:
                raise broken(unit.path, str(error)) from None

    def _unit(self, unit: Unit, span: tuple[int, int] | None) -> Iterator[Batch]:
        wanted = [name for name in (*PLACE, *self.names) if name in self.layout.names]
        with opened(unit.path) as file:
            self._check_same(unit, file)
            for group in unit.groups:
                told = self._told(file.parquet, group)
                if span is not None and not _may_have(told, span):
                    continue
                same = {name: each.low for name, each in told.items() if each.is_one}
                if same.get("topic") != self.topic:
                    same.pop("topic", None)
                names = [name for name in wanted if name not in ("topic", "partition") or name not in same]
                columns = [self.layout.names[name] for name in names]
                rows = batch_rows(file.parquet, file.source, group, columns)
                for batch in file.parquet.iter_batches(rows, [group], columns, use_threads=False):
                    yield self._batch(batch.select(columns).rename_columns(names), same.get("partition"))
            self._check_same(unit, file)

    def _check_same(self, unit: Unit, file: OpenFile) -> None:
        """Row groups are numbers of the file that was looked at."""
        if file.stamp() != self.layout.stamps[unit.path]:
            raise changed(unit.path, "is another")

    def _told(self, file: pq.ParquetFile, group: int) -> dict[str, _Told]:
        """The file's own facts on a row group's topic, partition and offset, as far as it has them."""
        chunks = file.metadata.row_group(group)
        places = {place: name for name, place in self.layout.names.items() if name in PLACE[:3]}
        told = {}
        for index in range(chunks.num_columns):
            column = chunks.column(index)
            known = column.statistics
            if column.path_in_schema in places and known is not None and known.has_min_max:
                nulls = known.null_count if known.has_null_count else 1
                # Another topic's name may be no UTF-8.
                with suppress(UnicodeDecodeError):
                    told[places[column.path_in_schema]] = _Told(known.min, known.max, nulls)
        return told

    def _batch(self, batch: pa.RecordBatch, partition: int | None) -> Batch:
        others, nameless = frozenset[str](), 0
        if "topic" in batch.schema.names:
            nameless = batch.column("topic").null_count
            mine = pc.fill_null(pc.equal(batch.column("topic"), self.topic), fill_value=False)
            if not pc.all(mine).as_py():
                strangers = pc.unique(batch.column("topic").filter(pc.invert(mine)).drop_null())
                shown = strangers[:SHOWN_TOPICS].cast(pa.large_binary()).to_pylist()
                others = frozenset(each.decode(errors="replace") for each in shown)
                batch = batch.filter(mine)
        strays = 0
        if partition is None:
            placed = batch.column("partition").is_valid()
            strays = batch.num_rows - placed.true_count
            if strays:
                batch = batch.filter(placed)
            partitions = batch.column("partition").cast(pa.int64()).to_numpy()
        else:
            partitions = np.full(batch.num_rows, partition, np.int64)
        offsets = batch.column("offset").cast(pa.int64())
        return Batch(
            partitions,
            offsets.fill_null(-1).to_numpy(),
            np.asarray(offsets.is_valid()),
            milliseconds(batch.column("timestamp"), self.layout.unit),
            batch.select(list(self.names)),
            strays,
            nameless,
            others,
        )


class _Told(NamedTuple):
    """The lowest and the highest value of a column of a row group, and how many rows have none."""

    low: Any
    high: Any
    nulls: int

    @property
    def is_one(self) -> bool:
        """Whether all rows have the same."""
        return self.nulls == 0 and bool(self.low == self.high)


def _may_have(told: Mapping[str, _Told], span: tuple[int, int]) -> bool:
    offsets = told.get("offset")
    return offsets is None or (offsets.low < span[1] and offsets.high >= span[0])
