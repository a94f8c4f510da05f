"""The facts of each partition of an archive, as values that add up: each task looks at some of the rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame

from dedup_sdk._kafka.error_text import time_text
from dedup_sdk._marks import Int64s
from dedup_sdk._store.paths import MAX_PARTITIONS
from spark_backfill.errors import BackfillError
from spark_backfill.range_plan import Archived

_NOWHERE: Final = 2**63 - 1
"""In place of cuts, horizons and times that there are not."""
SHOWN_TOPICS: Final = 5
_YEAR_1973_MS: Final = 100_000_000_000
_YEAR_2096_MS: Final = 4_000_000_000_000
_Value = TypeVar("_Value")

Row = tuple[int, int]
"""An offset and its timestamp (ms)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartSurvey:
    """Some rows of a partition.

    How many, how many of them without an offset, and the records at the ends of the others. ``first`` and ``last``
    are those of the lowest and the highest offset, ``last_below`` that of the highest below the cut,
    ``first_kept`` the lowest offset below the cut of a timestamp at or after the horizon; None: there is none.
    """

    rows: int
    nulls: int = 0
    first: Row | None = None
    last: Row | None = None
    last_below: Row | None = None
    first_kept: int | None = None
    oldest_ms: int = _NOWHERE
    newest_ms: int = -_NOWHERE

    @classmethod
    def of_rows(cls, offsets: Int64s, timestamps: Int64s, nulls: int, cut: int, horizon_ms: int) -> Self:
        """Look at rows with offsets, and count ``nulls`` without."""
        if not len(offsets):
            return cls(rows=nulls, nulls=nulls)

        def row(offset: int) -> Row:
            return min(((offset, each) for each in timestamps[offsets == offset].tolist()), key=_by_time)

        below = np.flatnonzero(offsets < cut)
        kept = below[timestamps[below] >= horizon_ms]
        return cls(
            rows=len(offsets) + nulls,
            nulls=nulls,
            first=row(int(offsets.min())),
            last=row(int(offsets.max())),
            last_below=row(int(offsets[below].max())) if len(below) else None,
            first_kept=int(offsets[kept].min()) if len(kept) else None,
            oldest_ms=int(timestamps.min()),
            newest_ms=int(timestamps.max()),
        )

    def __add__(self, other: PartSurvey) -> PartSurvey:
        """Put the surveys of two tasks together."""
        return PartSurvey(
            rows=self.rows + other.rows,
            nulls=self.nulls + other.nulls,
            first=min(_there(self.first, other.first), key=_by_time, default=None),
            last=min(_there(self.last, other.last), key=_from_the_end, default=None),
            last_below=min(_there(self.last_below, other.last_below), key=_from_the_end, default=None),
            first_kept=min(_there(self.first_kept, other.first_kept), default=None),
            oldest_ms=min(self.oldest_ms, other.oldest_ms),
            newest_ms=max(self.newest_ms, other.newest_ms),
        )

    def checked(self, partition: int, *, units_are_said: bool) -> Archived:
        """Return the facts of a partition; ``units_are_said``: the unit of timestamps is only known from the options.

        Raises:
            BackfillError: rows without an offset, negative offsets or partitions, or absurd timestamps.
        """
        if self.nulls or self.first is None or self.last is None:
            raise lacking(self.nulls, "offset")
        begin, first_ms = self.first
        last, end_ms = self.last
        if not 0 <= partition < MAX_PARTITIONS or begin < 0:
            raise BackfillError(
                f"the archive has partition {partition}, offset {begin}: neither can be negative, nor a partition "
                f"{MAX_PARTITIONS} or more; see --columns"
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
            last_ms=None if self.last_below is None else self.last_below[1],
            first_kept=self.first_kept,
            end_ms=end_ms,
            oldest_ms=self.oldest_ms,
        )


def lacking(rows: int, column: str) -> BackfillError:
    """Return the error for rows without a coordinate."""
    return BackfillError(
        f"{rows} rows of the archive have no {column}: they are no records of Kafka; see --columns {column}=COLUMN"
    )


def nothing_of_topic(topic: str, others: Iterable[str]) -> BackfillError:
    """Return the error for an archive that has other topics only."""
    has = ", ".join(sorted(map(repr, others))[:SHOWN_TOPICS]) or "no rows"
    return BackfillError(
        f"the archive has nothing of topic {topic!r}: it has {has}; check --source and --topic"
    )


def _by_time(row: Row) -> tuple[int, bool, int]:
    """Lower offsets first; of one that comes twice the earlier timestamp, any before none."""
    offset, timestamp_ms = row
    return offset, timestamp_ms < 0, timestamp_ms


def _from_the_end(row: Row) -> tuple[int, bool, int]:
    """Higher offsets first, else as `_by_time`."""
    offset, late, timestamp_ms = _by_time(row)
    return -offset, late, timestamp_ms


def _there(*values: _Value | None) -> list[_Value]:
    return [value for value in values if value is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSurvey:
    """Some rows of an archive, by partition; ``strays`` have none, and ``nameless`` no topic.

    ``others`` are topics that were not asked for.
    """

    parts: Mapping[int, PartSurvey] = field(default_factory=dict)
    strays: int = 0
    nameless: int = 0
    others: frozenset[str] = frozenset()

    def __add__(self, other: ArchiveSurvey) -> ArchiveSurvey:
        """Put the surveys of two tasks together."""
        parts = dict(self.parts)
        for number, part in other.parts.items():
            parts[number] = parts[number] + part if number in parts else part
        return ArchiveSurvey(
            parts=parts,
            strays=self.strays + other.strays,
            nameless=self.nameless + other.nameless,
            others=self.others | other.others,
        )

    def to_json(self) -> str:
        """Return it as a line for Spark."""
        parts = {number: asdict(part) for number, part in self.parts.items()}
        return json.dumps(
            {"parts": parts, "strays": self.strays, "nameless": self.nameless, "others": sorted(self.others)}
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the output of `to_json`."""
        content = json.loads(text)
        parts = {int(number): PartSurvey(**_rows(part)) for number, part in content["parts"].items()}
        return cls(
            parts=parts,
            strays=content["strays"],
            nameless=content["nameless"],
            others=frozenset(content["others"]),
        )


def _rows(part: dict[str, object]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}


def total(surveys: Iterable[ArchiveSurvey]) -> ArchiveSurvey:
    """Put the surveys of all tasks together."""
    return reduce(ArchiveSurvey.__add__, surveys, ArchiveSurvey())


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
        yield pa.RecordBatch.from_pydict({"survey": [seen.to_json()]})

    def _look(self, batch: Batch) -> ArchiveSurvey:
        parts = {}
        for number in np.unique(batch.partitions).tolist():
            mine = batch.partitions == number
            there = mine & batch.has_offset
            parts[number] = PartSurvey.of_rows(
                batch.offsets[there],
                batch.timestamps[there],
                int(mine.sum() - there.sum()),
                self.cuts.get(number, _NOWHERE),
                self.horizons_ms.get(number, _NOWHERE),
            )
        return ArchiveSurvey(parts=parts, strays=batch.strays, nameless=batch.nameless, others=batch.others)
