"""Records that lie outside Kafka: looked over before anything is folded, then read.

A first pass over coordinates and timestamps says where an archive begins and ends, so that the cut, the
gaps and the slots are known before the fold. Marks from before a gap stay, and coverage begins behind it. A
count window is not counted across a gap: ranks that are too small would keep IDs for too long.

Files are opened by Arrow where it can (`spark_backfill.parquet_files`): through the JVM each row would be taken
apart and put together again twice. Spark opens all others (`spark_backfill.spark_files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pickle import loads
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from dedup_sdk.ids import IdSpec
from dedup_sdk.ids._columns import ReadOnce
from spark_backfill.errors import BackfillError
from spark_backfill.fold import PackedRows, Packing, by_offset, pack_rows
from spark_backfill.offset_range import Bounds
from spark_backfill.ordered_rows import ORDERED_SCHEMA, OrderedBlocks
from spark_backfill.ordered_spec import Spec
from spark_backfill.range_plan import Archived
from spark_backfill.rows import ArrowFields, RowKeys, Wanted, rows_batch
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slots import SlotPlan
from spark_backfill.survey import Batch, Input, ReadBatches, SurveyTask, total
from spark_backfill.workers import Task


class Files(Protocol):
    """The files of an archive, opened by Arrow or by Spark.

    ``units_are_said``: the unit of timestamps is only known from the options. ``versions``: those that are read of
    places that have some.
    """

    units_are_said: bool
    versions: Mapping[str, str]

    def coordinates(self) -> Input:
        """Return all rows of the topic, without columns beside their coordinates and timestamps.

        Raises:
            BackfillError: the names of files and their rows do not fit together.
        """

    def records(self, bounds: Bounds) -> Input:
        """Return rows of the topic with the columns of the IDs; those outside the bounds may be left out."""

    def beside(self) -> list[str]:
        """Return the names of some files that lie beside those that are read, and are named after them."""

    def nothing_of_topic(self, others: frozenset[str]) -> BackfillError:
        """Return the error for files that have only ``others``."""


class Archive:
    """The records of one topic in an archive.

    ``around`` wraps the first task that reads the archive, the survey, e.g. to check the output before it.
    """

    def __init__(self, files: Files, spec: Spec, around: Callable[[Task], Task] = lambda task: task) -> None:
        self.files = files
        self._spec = spec
        self._around = around
        self._has_duplicates = False

    def survey(self, cuts: Mapping[int, int], horizons_ms: Mapping[int, int]) -> dict[int, Archived]:
        """Look at every row once, without the columns of the ID, and return the facts of each partition.

        ``cuts`` are the offsets (exclusive) that ``last_ms`` and ``first_kept`` go up to, ``horizons_ms`` the
        timestamps (ms) that ``first_kept`` goes by; a partition that is not there has no cut, and no horizon that
        anything is behind.

        Raises:
            BackfillError: rows without a topic, an offset or a partition, negative ones, none of this topic, or
                absurd timestamps.
        """
        frame, read = self.files.coordinates()
        found = frame.mapInArrow(self._around(SurveyTask(read, cuts, horizons_ms)), "survey binary").collect()
        seen = total(loads(row["survey"]) for row in found)  # noqa: S301 (by our own tasks)
        seen.check_coordinates()
        if not seen.parts:
            raise self.files.nothing_of_topic(seen.others)
        parts = {
            number: part.checked(number, units_are_said=self.files.units_are_said)
            for number, part in sorted(seen.parts.items())
        }
        self._has_duplicates |= any(part.has_duplicates for part in parts.values())
        return parts

    def blocks(self, bounds: Bounds, packing: Packing) -> DataFrame:
        """Return the rows inside these bounds, packed (`spark_backfill.runs`)."""
        if not isinstance(self._spec, IdSpec):
            raise TypeError(f"{self._spec} reads more than IDs: its rows are shuffled one by one")
        packing = packing.of_archive(bounds, has_duplicates=self._has_duplicates)
        frame, task = self.rows(bounds, packing.wanted(self._spec))
        if packing.by_offset:
            return pack_rows(frame.mapInArrow(task, task.wanted.schema), packing)
        return frame.mapInArrow(PackedRows(packing, task), BLOCK_SCHEMA)

    def ordered_blocks(self, bounds: Bounds, plan: SlotPlan, wanted: Wanted) -> DataFrame:
        """Return those rows in blocks for a fold in offset order (`spark_backfill.ordered_rows`)."""
        frame, task = self.rows(bounds, wanted)
        rows = by_offset(frame.mapInArrow(task, wanted.schema), plan)
        return rows.mapInArrow(OrderedBlocks(plan), ORDERED_SCHEMA)

    def rows(self, bounds: Bounds, wanted: Wanted) -> tuple[DataFrame, RowsTask]:
        """Return a frame, and the task that makes those rows of it."""
        frame, read = self.files.records(bounds)
        return frame, RowsTask(read, wanted, bounds)


@dataclass(frozen=True, slots=True)
class RowsTask:
    """A function for ``mapInArrow``: gives the rows (`spark_backfill.rows`) inside the bounds."""

    read: ReadBatches
    wanted: Wanted
    bounds: Bounds

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows of a task."""
        keys = RowKeys(self.wanted.spec, self.wanted.group)
        for batch in self.read(batches):
            rows = self._taken(batch, keys)
            if rows is not None:
                yield rows

    def _taken(self, batch: Batch, keys: RowKeys) -> pa.RecordBatch | None:
        taken = np.zeros(len(batch.partitions), np.bool_)
        for number in np.unique(batch.partitions).tolist():
            begin, end = self.bounds.get(number, (0, 0))
            taken |= (batch.partitions == number) & (batch.offsets >= begin) & (batch.offsets < end)
        if not taken.any():
            return None
        rest = batch.rest if taken.all() else batch.rest.filter(pa.array(taken))
        fields = ArrowFields(rest)
        return rows_batch(
            self.wanted,
            batch.partitions[taken],
            batch.offsets[taken],
            batch.timestamps[taken],
            keys.digests(ReadOnce(fields, fields)).digests,
            keys=keys,
            key_column=lambda: rest.column("key").cast(pa.binary()),
        )
