"""The rows of plain Parquet files, read by Arrow.

Columns that the statistics of a row group describe fully (one topic or partition in all rows), and groups
outside the wanted offsets, are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_backfill.arrow_columns import milliseconds
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import Bounds
from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.parquet_batches import batch_rows
from spark_backfill.parquet_files import PLACE, Group, Layout, deal_out
from spark_backfill.parquet_footers import OpenFile, broken, changed, opened
from spark_backfill.survey import SHOWN_TOPICS, Batch, Input, nothing_of_topic, with_coordinates


class ParquetFiles:
    """Plain Parquet files (`spark_backfill.archive.Files`); ``parallelism``: see `tasks_at_a_time`."""

    def __init__(
        self, spark: SparkSession, topic: str, layout: Layout, parallelism: int | None = None
    ) -> None:
        self.units_are_said = bool(layout.unit)
        self.versions: Mapping[str, str] = {}
        self._spark = spark
        self._topic = topic
        self._layout = layout
        self._parallelism = parallelism

    def coordinates(self) -> Input:
        """See `spark_backfill.archive.Files`."""
        return self._input((), None)

    def records(self, bounds: Bounds) -> Input:
        """See `spark_backfill.archive.Files`."""
        span = (
            min((begin for begin, _ in bounds.values()), default=0),
            max((end for _, end in bounds.values()), default=0),
        )
        return self._input(tuple(name for name in self._layout.names if name not in PLACE), span)

    def beside(self) -> list[str]:
        """See `spark_backfill.archive.Files`: none, since all files of a folder are read."""
        return []

    def nothing_of_topic(self, others: frozenset[str]) -> BackfillError:
        """See `spark_backfill.archive.Files`."""
        return nothing_of_topic(self._topic, others)

    def _input(self, names: tuple[str, ...], span: tuple[int, int] | None) -> Input:
        tasks = deal_out(self._layout.groups, tasks_at_a_time(self._spark, self._parallelism))
        count = len(tasks)
        read = ParquetReader(
            topic=self._topic, layout=self._layout, tasks=tuple(tasks), names=names, span=span
        )
        return Input(self._spark.range(0, count, 1, count), read)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetReader:
    """Reads the row groups of one task.

    ``names`` are Kafka's names of the columns that it wants beside the coordinates; ``span``: no offset outside
    ``[begin, end)`` is wanted.
    """

    topic: str
    layout: Layout
    tasks: tuple[tuple[Group, ...], ...]
    names: tuple[str, ...] = ()
    span: tuple[int, int] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Batch]:
        """Read the tasks of these numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.read(number)

    def read(self, task: int) -> Iterator[Batch]:
        """Yield the rows of a task."""
        for path, groups in groupby(self.tasks[task], attrgetter("path")):
            try:
                yield from self._rows(path, [group.number for group in groups])
            except FileNotFoundError:
                raise changed(path, "is gone") from None
            except (OSError, pa.ArrowException) as error:
                raise broken(path, str(error)) from None

    def _rows(self, path: str, groups: Sequence[int]) -> Iterator[Batch]:
        wanted = [name for name in (*PLACE, *self.names) if name in self.layout.names]
        with opened(path) as file:
            self._check_same(path, file)
            for group in groups:
                told = self._statistics(file.parquet, group)
                if self.span is not None and not _may_have(told.get("offset"), self.span):
                    continue
                same = {name: each.min_raw for name, each in told.items() if _is_one(each)}
                if same.get("topic") != self.topic.encode():
                    same.pop("topic", None)
                names = [name for name in wanted if name not in ("topic", "partition") or name not in same]
                columns = [self.layout.names[name] for name in names]
                rows = batch_rows(file.parquet, file.source, group, columns)
                for batch in file.parquet.iter_batches(rows, [group], columns, use_threads=False):
                    yield self._batch(batch.select(columns).rename_columns(names), same.get("partition"))
            self._check_same(path, file)

    def _check_same(self, path: str, file: OpenFile) -> None:
        """Row groups are numbers of the file that was looked at."""
        if file.stamp() != self.layout.stamps[path]:
            raise changed(path, "is another")

    def _statistics(self, file: pq.ParquetFile, group: int) -> dict[str, pq.Statistics]:
        """The file's own facts on a row group's topic, partition and offset, as far as it has them."""
        chunks = file.metadata.row_group(group)
        names = {self.layout.names[name]: name for name in PLACE[:3] if name in self.layout.names}
        found = {}
        for index in range(chunks.num_columns):
            column = chunks.column(index)
            known = column.statistics
            if column.path_in_schema in names and known is not None and known.has_min_max:
                found[names[column.path_in_schema]] = known
        return found

    def _batch(self, batch: pa.RecordBatch, partition: int | None) -> Batch:
        others = frozenset[str]()
        if "topic" in batch.schema.names:
            mine = pc.fill_null(pc.equal(batch.column("topic"), self.topic), fill_value=True)
            if not pc.all(mine).as_py():
                strangers = pc.unique(batch.column("topic").filter(pc.invert(mine)))
                shown = strangers[:SHOWN_TOPICS].cast(pa.large_binary()).to_pylist()
                others = frozenset(each.decode(errors="replace") for each in shown)
                batch = batch.filter(mine)
        batch, lacking = with_coordinates(batch)
        return Batch(
            np.full(batch.num_rows, partition, np.int64)
            if partition is not None
            else batch.column("partition").cast(pa.int64()).to_numpy(),
            batch.column("offset").cast(pa.int64()).to_numpy(),
            milliseconds(batch.column("timestamp"), self.layout.unit),
            batch.select(list(self.names)),
            lacking,
            others,
        )


def _is_one(known: pq.Statistics) -> bool:
    """Whether all rows have the same value; it is compared as it is stored, which may be no UTF-8."""
    return bool(known.has_null_count and not known.null_count and known.min_raw == known.max_raw)


def _may_have(offsets: pq.Statistics | None, span: tuple[int, int]) -> bool:
    return offsets is None or (offsets.min_raw < span[1] and offsets.max_raw >= span[0])
