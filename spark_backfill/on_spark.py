"""The tasks of a run as those of Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.publish import Target
from spark_backfill.session import describe_jobs
from spark_backfill.slots import placement_column
from spark_backfill.workers import Folding, Source


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
            placed = placed.sortWithinPartitions(*folding.order)
        return [row[0] for row in placed.mapInArrow(folding.task, "outcome string").collect()]

    def frame(self, source: Source) -> DataFrame:
        """Return what a source gives; its tasks run when somebody wants it."""
        if isinstance(source, DataFrame):
            return source
        return self._spark.range(0, source.tasks, 1, source.tasks).mapInArrow(source.run, source.schema)
