"""The tasks of a run as those of Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.options import Options
from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.progress import Progress
from spark_backfill.session import describe_jobs, job_group
from spark_backfill.slots import placement_column
from spark_backfill.stage_watch import watched_stages
from spark_backfill.workers import Folding, Source


class OnSpark:
    """Runs them as Spark's tasks.

    ``make_session`` is called when Spark is first needed. ``topic`` names the group of the jobs; ``parallelism`` is how
    many tasks are taken to run at a time (None: as many as the cluster has cores when it is asked); ``tell`` gets how
    far Spark is, on a thread of its own.
    """

    def __init__(
        self,
        make_session: Callable[[], SparkSession],
        topic: str,
        parallelism: int | None = None,
        tell: Callable[[Progress], None] | None = None,
    ) -> None:
        self.start_seconds = 0.0
        self._make_session = make_session
        self._session: SparkSession | None = None
        self._topic = topic
        self._parallelism = parallelism
        self._tell = tell

    def session(self) -> SparkSession:
        """Return the session."""
        if self._session is None:
            began = time.monotonic()
            self._session = self._make_session()
            self.start_seconds = time.monotonic() - began
        return self._session

    def expect(self, _rows: int) -> None:
        """Do nothing: Spark reads any number."""

    def tasks_at_a_time(self) -> int:
        """Return the wanted number, without one the cores that the cluster has now."""
        return tasks_at_a_time(self.session(), self._parallelism)

    def watched(self, offsets: int) -> AbstractContextManager[object]:
        """Ask Spark how far its stages are."""
        if self._tell is None:
            return nullcontext()
        return watched_stages(self.session(), job_group(self._topic), offsets, self._tell)

    def fold(self, sources: Sequence[Source], folding: Folding, description: str) -> list[str]:
        """Shuffle once, each slot to a task of its own; Spark sorts, on disk where memory is short."""
        describe_jobs(self.session(), self._topic, description)
        rows = reduce(DataFrame.unionByName, map(self.frame, sources))
        placed = rows.repartition(folding.slots, placement_column(rows["slot"], folding.slots))
        if folding.order:
            placed = placed.sortWithinPartitions(*folding.order)
        return [row[0] for row in placed.mapInArrow(folding.task, "outcome string").collect()]

    def frame(self, source: Source) -> DataFrame:
        """Return the rows of a source; its tasks run when somebody wants it."""
        if isinstance(source, DataFrame):
            return source
        return self.session().range(0, source.tasks, 1, source.tasks).mapInArrow(source.run, source.schema)


def on_spark(
    make_session: Callable[[], SparkSession], tell: Callable[[Progress], None] | None = None
) -> Callable[[Options], OnSpark]:
    """Return a function that makes the workers of a run, for `spark_backfill.backfill.backfill`; see `OnSpark`."""
    return lambda options: OnSpark(make_session, options.topic, options.parallelism, tell)
