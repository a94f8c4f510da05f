"""The rows of plain Parquet files, read by Arrow.

Columns that the statistics of a row group describe fully (one topic or partition in all rows), and groups
outside the wanted offsets, are not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from spark_backfill.archive_checks import SHOWN_TOPICS, nothing_of_topic
from spark_backfill.arrow_columns import milliseconds
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import Bounds
from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.parquet_batches import batch_rows
from spark_backfill.parquet_files import PLACE, Layout, Unit, deal_out
from spark_backfill.parquet_footers import OpenFile, broken, changed, opened
from spark_backfill.survey import Batch, Input


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

    def check(self) -> None:
        """See `spark_backfill.archive.Files`; files of Kafka Connect are no such files."""

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

    def all_lack_topics(self) -> bool:
        """See `spark_backfill.archive.Files`: in files without topics no row is nameless."""
        return False

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
    tasks: tuple[tuple[Unit, ...], ...]
    names: tuple[str, ...] = ()
    span: tuple[int, int] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Batch]:
        """Read the tasks of these numbers."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.read(number)

    def read(self, task: int) -> Iterator[Batch]:
        """Yield the rows of a task."""
        for unit in self.tasks[task]:
            try:
                yield from self._unit(unit)
            except FileNotFoundError:
                raise changed(unit.path, "is gone") from None
            except (OSError, pa.ArrowException) as error:
                raise broken(unit.path, str(error)) from None

    def _unit(self, unit: Unit) -> Iterator[Batch]:
        wanted = [name for name in (*PLACE, *self.names) if name in self.layout.names]
        with opened(unit.path) as file:
            self._check_same(unit, file)
            for group in unit.groups:
                told = self._told(file.parquet, group)
                if self.span is not None and not _may_have(told, self.span):
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
