"""Who runs the tasks of a run: Spark, or this process, where the history is small.

The tasks are the same functions of Arrow batches, and so are the marks; only the shuffle between them differs. Java and
Spark take some five seconds to start, in which one process reads a million records.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.progress import Meter, Progress, StageCount
from spark_backfill.publish import Target
from spark_backfill.session import describe_jobs
from spark_backfill.slots import placement_column

Task = Callable[[Iterable[Any]], Iterable[Any]]

MOST_ROWS: Final = 2_000_000
"""Offsets to read, and marks of a base, that are folded without Spark: above it more processors are quicker."""
MOST_PARTITIONS: Final = 200
"""Each takes some 50 ms to plan, read and write, however small it is."""
MOST_BYTES: Final = 2**28
"""What may be in memory between reading and folding; Spark shuffles on disk."""
_BATCH_ROWS: Final = 50_000
_NO_TIME: Final = 2**63 - 1


class NeedsSparkError(Exception):
    """A history is too large for one process, or lies where only Spark reads it; nothing was written."""


class ReadTasks(NamedTuple):
    """Tasks that read: ``run`` gets batches whose first column has numbers below ``tasks``, one for each task.

    ``schema`` is that of the batches which they give, as Spark writes one.
    """

    tasks: int
    run: Task
    schema: str


Source = ReadTasks | DataFrame


class Folding(NamedTuple):
    """The second half of a run: rows or blocks of one slot meet in one task, in an order, and ``task`` folds them.

    ``slots``: their number; ``order``: the columns to sort by (none: any order). Where ``order`` ends with an offset
    that may come twice (``repeats``), the row with the earlier timestamp comes first, any before none.
    """

    task: Task
    slots: int
    order: tuple[str, ...] = ()
    repeats: bool = False


class Workers(Protocol):
    """Runs the tasks of a run."""

    def tasks_at_a_time(self) -> int:
        """Return how many tasks run at a time, now."""

    def check(self, target: Target) -> None:
        """See to it that all workers reach the output; raises the error of one that does not."""

    def watched(self, offsets: int) -> AbstractContextManager[object]:
        """Return a block in which people see how far the reading of so many offsets, and the writing, are."""

    def fold(self, sources: Sequence[Source], folding: Folding, description: str) -> list[str]:
        """Read the sources and fold what they give; return the texts of the folding task, one a row.

        ``description`` says what runs, for people who look at it.
        """


class OnSpark:
    """Runs them as Spark's tasks.

    ``topic`` names the group of the jobs; ``parallelism`` is how many tasks are taken to run at a time (None: as many
    as the cluster has cores when it is asked); ``watch`` is open while Spark reads so many offsets and writes.
    """

    def __init__(
        self,
        spark: SparkSession,
        topic: str,
        parallelism: int | None = None,
        watch: Callable[[SparkSession, int], AbstractContextManager[None]] = lambda *_: nullcontext(),
    ) -> None:
        self._spark = spark
        self._topic = topic
        self._parallelism = parallelism
        self._watch = watch

    def tasks_at_a_time(self) -> int:
        """Return the wanted number, without one the cores that the cluster has now."""
        return tasks_at_a_time(self._spark, self._parallelism)

    def check(self, target: Target) -> None:
        """Ask the workers of a cluster, before anything is read; raises Spark's errors."""
        if not (self._spark.sparkContext.master or "").startswith("local"):
            count = self._spark.sparkContext.defaultParallelism
            self._spark.range(0, count, 1, count).mapInArrow(target.check, "nothing long").collect()

    def watched(self, offsets: int) -> AbstractContextManager[object]:
        """Ask Spark how far its stages are."""
        return self._watch(self._spark, offsets)

    def fold(self, sources: Sequence[Source], folding: Folding, description: str) -> list[str]:
        """Shuffle once, each slot to a task of its own; Spark sorts, on disk where memory is short."""
        describe_jobs(self._spark, self._topic, description)
        rows = reduce(DataFrame.unionByName, map(self.frame, sources))
        placed = rows.repartition(folding.slots, placement_column(rows["slot"], folding.slots))
        if folding.order:
            placed = placed.sortWithinPartitions(*folding.order, *([_earlier()] if folding.repeats else []))
        return [row[0] for row in placed.mapInArrow(folding.task, "outcome string").collect()]

    def frame(self, source: Source) -> DataFrame:
        """Return what a source gives; its tasks run when somebody wants it."""
        if isinstance(source, DataFrame):
            return source
        return self._spark.range(0, source.tasks, 1, source.tasks).mapInArrow(source.run, source.schema)


class InProcess:
    """Runs them one after the other in this process, and keeps what they read in memory.

    ``tell`` gets how far it is.
    """

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._meter = Meter(0)

    def tasks_at_a_time(self) -> int:
        """Return one."""
        return 1

    def check(self, _target: Target) -> None:
        """Do nothing: this process is where the output was opened."""

    @contextmanager
    def watched(self, offsets: int) -> Iterator[None]:
        """Tell how many of the offsets are read before each task."""
        self._meter = Meter(offsets)
        yield

    def fold(self, sources: Sequence[Source], folding: Folding, _description: str) -> list[str]:
        """Read, sort and fold in memory; raises `NeedsSparkError` for more than `MOST_BYTES`."""
        batches = list[pa.RecordBatch]()
        size = 0
        tasks, done = sum(each.tasks for each in sources if isinstance(each, ReadTasks)), 0
        for source in sources:
            if not isinstance(source, ReadTasks):
                raise NeedsSparkError
            for batch in source.run(self._numbers(source.tasks, done, tasks)):
                batches.append(batch)
                size += batch.nbytes
                if size > MOST_BYTES:
                    raise NeedsSparkError
            done += source.tasks
        self._look(StageCount(1, folding.slots, 0, writes=True))
        if not batches:
            # All offsets are of aborted records, or of markers.
            return []
        table = pa.Table.from_batches(batches)
        if folding.order:
            # Nothing is read here that may hold an offset twice.
            table = table.sort_by([(column, "ascending") for column in folding.order])
        folded = folding.task(table.to_batches(max_chunksize=_BATCH_ROWS))
        return [text for batch in folded for text in batch.column(0).to_pylist()]

    def _look(self, stage: StageCount) -> None:
        seen = self._meter.look([stage], time.monotonic())
        if seen is not None:
            self._tell(seen)

    def _numbers(self, count: int, done: int, tasks: int) -> Iterator[pa.RecordBatch]:
        for number in range(count):
            self._look(StageCount(0, tasks, done + number, writes=False))
            yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], ["id"])


def _earlier() -> Column:
    return F.when(F.col("timestamp_ms") < 0, _NO_TIME).otherwise(F.col("timestamp_ms"))
