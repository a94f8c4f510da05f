"""Reading plain Parquet files in Spark's Python workers: read, digest and pack in one process.

Through the JVM each row would be taken apart and put together again twice. Spark deals the work out, shuffles and
tries again.

For windows by time, and runs without a report; everything else goes through Spark's readers, with the same
result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from dedup_sdk._marks import Int64s
from dedup_sdk._strategy import Keys
from spark_backfill.archive_checks import checked_part, nothing_of_topic, without_topic
from spark_backfill.archived import Archived
from spark_backfill.fold import PackedRows, Packing, pack_rows
from spark_backfill.id_batches import KEY_COLUMN, REDRIVEN, by_row, read_keys, rows_schema
from spark_backfill.last_id_spec import Spec, SpecText, keys_of, text_of
from spark_backfill.offset_range import Bounds
from spark_backfill.parquet_files import PLACE, Layout, deal_out
from spark_backfill.parquet_reader import Batch, ParquetReader
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, ShuffledRows, SlotShuffle
from spark_backfill.survey import ArchiveSurvey, PartSurvey, survey_rows, total

_NOWHERE: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A function for ``mapInArrow``: numbers of tasks in, the facts of their rows out."""

    reader: ParquetReader
    cuts: Mapping[int, int]
    horizons_ms: Mapping[int, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look at the rows of the tasks."""
        for batch in batches:
            for task in batch.column(0).to_pylist():
                seen = total(map(self._look, self.reader.read(task)))
                yield pa.RecordBatch.from_pydict({"survey": [seen.to_json()]})

    def _look(self, batch: Batch) -> ArchiveSurvey:
        seen = survey_rows(
            batch.partitions,
            batch.offsets,
            batch.has_offset,
            batch.timestamps,
            cuts=self.cuts,
            horizons_ms=self.horizons_ms,
            nowhere=_NOWHERE,
        )
        return seen + ArchiveSurvey(strays=batch.strays, nameless=batch.nameless, others=batch.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRows:
    """Reads the rows of one source that a run takes, with their digests as a group knows them.

    ``bounds``: which offsets ``[begin, end)`` of a partition.
    """

    reader: ParquetReader
    spec: SpecText
    bounds: Bounds
    group: str | None = None

    def read(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[Taken]:
        """Read the rows of the tasks of these numbers."""
        spec = keys_of(self.spec)
        span = (
            min((begin for begin, _ in self.bounds.values()), default=0),
            max((end for _, end in self.bounds.values()), default=0),
        )
        for batch in numbers:
            for task in batch.column(0).to_pylist():
                for read in self.reader.read(task, span):
                    found = self._taken(read, spec)
                    if found is not None:
                        yield found

    def _taken(self, batch: Batch, spec: Keys) -> Taken | None:
        taken = np.zeros(len(batch.partitions), np.bool_)
        for number in np.unique(batch.partitions).tolist():
            begin, end = self.bounds.get(number, (0, 0))
            taken |= (batch.partitions == number) & (batch.offsets >= begin) & (batch.offsets < end)
        taken &= batch.has_offset
        if not taken.any():
            return None
        rest = batch.rest if taken.all() else batch.rest.filter(pa.array(taken))
        places = (batch.partitions[taken], batch.offsets[taken], batch.timestamps[taken])
        return Taken(*places, *read_keys(spec, rest, self.group), rest)


class Taken(NamedTuple):
    """Rows that are taken, and the columns that they were made of.

    There are ``n`` partitions, offsets, timestamps (ms) and digests or source keys (None: no ID). ``redriven``: as
    in `spark_backfill.id_batches.ReadKeys`.
    """

    partitions: NDArray[np.int64]
    offsets: Int64s
    timestamps: Int64s
    digests: Sequence[bytes | None]
    redriven: Mapping[int, bytes | None]
    rest: pa.RecordBatch

    def keys(self) -> pa.Array:
        """Return the records' keys, where they were read."""
        return self.rest.column("key").cast(pa.binary())


@dataclass(frozen=True, slots=True)
class RowsTask:
    """A function for ``mapInArrow``: numbers of tasks in, their rows (`spark_backfill.id_batches`) out."""

    rows: TakenRows
    with_keys: bool = False
    with_redriven: bool = False

    @property
    def schema(self) -> str:
        """The columns, for Spark."""
        others = [KEY_COLUMN] if self.with_keys else []
        others += [REDRIVEN] if self.with_redriven else []
        return rows_schema(*others)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows of the tasks."""
        for taken in self.rows.read(batches):
            columns = {
                "partition": pa.array(taken.partitions, pa.int32()),
                "offset": pa.array(taken.offsets),
                "timestamp_ms": pa.array(taken.timestamps),
                "digest": pa.array(taken.digests, pa.binary()),
            }
            if self.with_keys:
                columns[KEY_COLUMN] = taken.keys()
            if self.with_redriven:
                columns[REDRIVEN] = by_row(taken.redriven, len(taken.offsets))
            yield pa.RecordBatch.from_pydict(columns)


class ParquetArchive:
    """An archive of plain Parquet files: `spark_backfill.archive.Archive` without Spark's own reader.

    For windows by time and runs without a report: rows come in the order of the files.
    """

    def __init__(self, spark: SparkSession, topic: str, spec: Spec, layout: Layout) -> None:
        self._spark = spark
        self._topic = topic
        self._spec = spec
        self._layout = layout
        self._tasks = tuple(deal_out(layout.groups, spark.sparkContext.defaultParallelism))
        self._has_duplicates = False

    def survey(self, cuts: Mapping[int, int], horizons_ms: Mapping[int, int]) -> dict[int, Archived]:
        """See `spark_backfill.archive.Archive.survey`."""
        task = SurveyTask(self._reader(()), cuts, horizons_ms)
        found = self._numbers().mapInArrow(task, "survey string").collect()
        seen = total(ArchiveSurvey.from_json(row["survey"]) for row in found)
        if seen.nameless:
            raise without_topic(seen.nameless)
        if seen.strays:
            checked_part({"partition": None, "rows": seen.strays}, units_are_said=False)
        if not seen.parts:
            raise nothing_of_topic(self._topic, seen.others)
        parts = {number: self._checked(number, part) for number, part in sorted(seen.parts.items())}
        self._has_duplicates |= any(part.has_duplicates for part in parts.values())
        return parts

    def blocks(self, bounds: Bounds, packing: Packing) -> DataFrame:
        """See `spark_backfill.archive.Archive.blocks`."""
        rows = self._taken(bounds, packing.group)
        packing = packing.of_archive(bounds, has_duplicates=self._has_duplicates)
        task = RowsTask(rows, with_keys=packing.reshard is not None, with_redriven=packing.marks_redriven)
        if not packing.has_duplicates:
            return self._numbers().mapInArrow(PackedRows(packing, task), BLOCK_SCHEMA)
        return pack_rows(self._numbers().mapInArrow(task, task.schema), packing)

    def shuffled_rows(self, bounds: Bounds, shuffle: SlotShuffle) -> DataFrame:
        """See `spark_backfill.archive.Archive.shuffled_rows`."""
        rows = RowsTask(self._taken(bounds, shuffle.group))
        task = ShuffledRows(rows, shuffle.of_archive(bounds, has_duplicates=self._has_duplicates))
        return self._numbers().mapInArrow(task, SHUFFLED_SCHEMA)

    def _taken(self, bounds: Bounds, group: str | None) -> TakenRows:
        names = tuple(name for name in self._layout.names if name not in PLACE)
        return TakenRows(reader=self._reader(names), spec=text_of(self._spec), bounds=bounds, group=group)

    def _checked(self, number: int, part: PartSurvey) -> Archived:
        return checked_part(part.described(number), units_are_said=bool(self._layout.unit))

    def _reader(self, names: tuple[str, ...]) -> ParquetReader:
        return ParquetReader(topic=self._topic, layout=self._layout, tasks=self._tasks, names=names)

    def _numbers(self) -> DataFrame:
        count = len(self._tasks)
        return self._spark.range(0, count, 1, count)
