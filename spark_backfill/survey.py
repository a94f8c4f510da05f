"""The facts of each partition of an archive, as values that add up: each task looks at some of the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pickle import dumps
from typing import Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from dedup_sdk._marks import Int64s
from dedup_sdk._masking import counted, shown
from dedup_sdk._store.paths import MAX_PARTITIONS
from dedup_sdk._time_text import time_text
from spark_backfill.errors import BackfillError
from spark_backfill.range_plan import Archived

_NOWHERE: Final = 2**63 - 1
"""In place of cuts, horizons and offsets that there are not."""
_LAST_OFFSET: Final = _NOWHERE - 1
"""Of a record: the next one, where a log would end, is an offset, too."""
SHOWN_TOPICS: Final = 5
_YEAR_1973_MS: Final = 100_000_000_000
_YEAR_2096_MS: Final = 4_000_000_000_000

Row = tuple[int, bool, int]
"""A row as it compares with others: the one to take is the least.

Its offset (negative where the highest one is looked for), whether it has no timestamp, and the timestamp (ms): of an
offset that comes twice the earlier time counts, any before none.
"""
_NO_ROW: Final[Row] = (_NOWHERE, True, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSurvey:
    """Some rows of a partition, at least one.

    ``first`` and ``last`` are those of the lowest and the highest offset, ``last_below`` that of the highest below the
    cut, ``first_kept`` the lowest offset below the cut of a timestamp at or after the horizon, or of none.
    """

    rows: int
    first: Row
    last: Row
    last_below: Row
    first_kept: int
    oldest_ms: int
    newest_ms: int

    @classmethod
    def of_rows(cls, offsets: Int64s, timestamps: Int64s, cut: int, horizon_ms: int) -> Self:
        """Look at rows."""

        def row(offset: int, sign: int) -> Row:
            times = timestamps[offsets == offset].tolist()
            return min(((sign * offset, each < 0, each) for each in times), default=_NO_ROW)

        # A row without a timestamp may be as new.
        below, is_new = offsets < cut, (timestamps < 0) | (timestamps >= horizon_ms)
        return cls(
            rows=len(offsets),
            first=row(int(offsets.min()), 1),
            last=row(int(offsets.max()), -1),
            last_below=row(int(offsets[below].max(initial=-1)), -1),
            first_kept=int(offsets[below & is_new].min(initial=_NOWHERE)),
            oldest_ms=int(timestamps.min()),
            newest_ms=int(timestamps.max()),
        )

    def __add__(self, other: PartSurvey) -> PartSurvey:
        """Put the surveys of two tasks together."""
        return PartSurvey(
            rows=self.rows + other.rows,
            first=min(self.first, other.first),
            last=min(self.last, other.last),
            last_below=min(self.last_below, other.last_below),
            first_kept=min(self.first_kept, other.first_kept),
            oldest_ms=min(self.oldest_ms, other.oldest_ms),
            newest_ms=max(self.newest_ms, other.newest_ms),
        )

    def checked(self, partition: int, *, units_are_said: bool) -> Archived:
        """Return the facts of a partition; ``units_are_said``: the unit of timestamps is only known from the options.

        Raises:
            BackfillError: negative offsets or partitions, or absurd timestamps.
        """
        begin, _, first_ms = self.first
        minus_last, _, end_ms = self.last
        last = -minus_last
        if not 0 <= partition < MAX_PARTITIONS or begin < 0 or last > _LAST_OFFSET:
            shown = last if last > _LAST_OFFSET else begin
            raise BackfillError(
                f"the archive has partition {partition}, offset {shown}: neither can be negative, nor a partition "
                f"{MAX_PARTITIONS} or more, nor an offset above {_LAST_OFFSET}; see --columns"
            )
        if units_are_said and self.newest_ms > 0 and not _YEAR_1973_MS < self.newest_ms < _YEAR_2096_MS:
            raise BackfillError(
                f"the archive's newest timestamp in partition {partition} would be {time_text(self.newest_ms)}: "
                "is its unit in --columns timestamp=COLUMN:UNIT right?"
            )
        return Archived(
            partition=partition,
            begin=begin,
            end=last + 1,
            rows=self.rows,
            first_ms=first_ms,
            last_ms=None if self.last_below == _NO_ROW else self.last_below[2],
            first_kept=None if self.first_kept == _NOWHERE else self.first_kept,
            end_ms=end_ms,
            oldest_ms=self.oldest_ms,
        )


def nothing_of_topic(topic: str, others: Iterable[str]) -> BackfillError:
    """Return the error for an archive that has other topics only."""
    has = ", ".join(sorted(map(repr, others))[:SHOWN_TOPICS]) or "no rows"
    return BackfillError(
        f"the archive has nothing of topic {shown(topic)}: it has {has}; check --source and --topic"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSurvey:
    """Some rows of an archive, by partition.

    ``lacking``: how many were left out, by the coordinate that they lack. ``others`` are topics that were not asked
    for.
    """

    parts: Mapping[int, PartSurvey] = field(default_factory=dict)
    lacking: Counter[str] = field(default_factory=Counter)
    others: frozenset[str] = frozenset()

    def __add__(self, other: ArchiveSurvey) -> ArchiveSurvey:
        """Put the surveys of two tasks together."""
        parts = dict(self.parts)
        for number, part in other.parts.items():
            parts[number] = parts[number] + part if number in parts else part
        return ArchiveSurvey(
            parts=parts, lacking=self.lacking + other.lacking, others=self.others | other.others
        )

    def check_coordinates(self) -> None:
        """Make sure that no row lacks its topic, partition or offset.

        Raises:
            BackfillError: some do.
        """
        for name, rows in self.lacking.items():
            remedy = (
                "and others have one: write it into them, or put their files into a folder whose files all have no "
                "such column"
                if name == "topic"
                else f"and each record of Kafka has one; see --columns {name}=COLUMN"
            )
            raise BackfillError(f"the archive has {counted(rows, 'row')} without {name}, {remedy}")


def total(surveys: Iterable[ArchiveSurvey]) -> ArchiveSurvey:
    """Put the surveys of all tasks together."""
    return reduce(ArchiveSurvey.__add__, surveys, ArchiveSurvey())


class Batch(NamedTuple):
    """Rows of the topic: their coordinates and timestamps (ms), and the other columns asked for, by Kafka's names.

    ``lacking`` and ``others``: as in `ArchiveSurvey`.
    """

    partitions: NDArray[np.int64]
    offsets: Int64s
    timestamps: Int64s
    rest: pa.RecordBatch
    lacking: Counter[str]
    others: frozenset[str] = frozenset()


def with_coordinates(rows: pa.RecordBatch) -> tuple[pa.RecordBatch, Counter[str]]:
    """Return the rows that have a topic (if there is such a column), a partition and an offset; count the others."""
    lacking = Counter[str]()
    for name in ("topic", "partition", "offset"):
        if name in rows.schema.names and (nulls := rows.column(name).null_count):
            lacking[name] = nulls
            rows = rows.filter(rows.column(name).is_valid())
    return rows, lacking


ReadBatches = Callable[[Iterable[pa.RecordBatch]], Iterable[Batch]]
"""Makes batches of the rows that Spark hands to a task."""


class Input(NamedTuple):
    """Rows that are not read yet: tasks get parts of ``frame``, and ``read`` makes batches of them."""

    frame: DataFrame
    read: ReadBatches


@dataclass(frozen=True, slots=True)
class SurveyTask:
    """A function for ``mapInArrow``: gives the facts of the rows of a task."""

    read: ReadBatches
    cuts: Mapping[int, int]
    horizons_ms: Mapping[int, int]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Look at the rows."""
        seen = total(map(self._look, self.read(batches)))
        yield pa.RecordBatch.from_pydict({"survey": [dumps(seen)]})

    def _look(self, batch: Batch) -> ArchiveSurvey:
        parts = {}
        for number in np.unique(batch.partitions).tolist():
            mine = batch.partitions == number
            parts[number] = PartSurvey.of_rows(
                batch.offsets[mine],
                batch.timestamps[mine],
                self.cuts.get(number, _NOWHERE),
                self.horizons_ms.get(number, _NOWHERE),
            )
        return ArchiveSurvey(parts=parts, lacking=batch.lacking, others=batch.others)
