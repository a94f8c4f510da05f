"""A thread of the driver that asks Spark how far its stages are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from pyspark import StatusTracker
from pyspark.sql import SparkSession

from spark_backfill.progress import Meter, Progress, StageCount

_LOOK_S: Final = 0.5
_END_S: Final = 2.0


@contextmanager
def watched_stages(
    spark: SparkSession, group: str, offsets: int, tell: Callable[[Progress], None]
) -> Iterator[None]:
    """Tell twice a second how far the reading of so many offsets, and the writing, are, until the block is left.

    ``group`` is that of the block's jobs. ``tell`` is called on a thread of its own, the last time before the block is
    left. Where Spark does not answer (it is on its way out) nothing is told: a run never fails for that.
    """
    over = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(spark, group, Meter(offsets), tell, over), name="dedup-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def _watch(
    spark: SparkSession, group: str, meter: Meter, tell: Callable[[Progress], None], over: threading.Event
) -> None:
    try:
        tracker = spark.sparkContext.statusTracker()
        while not over.wait(_LOOK_S):
            seen = meter.look(_active(tracker, group), time.monotonic())
            if seen is not None and not over.is_set():
                tell(seen)
    except Exception:  # noqa: BLE001 (whatever it is, the run itself will meet it, or goes on without)
        return


def _active(tracker: StatusTracker, group: str) -> list[StageCount]:
    """The stages of the group's jobs that are at work."""
    active = set(tracker.getActiveStageIds())
    found = []
    for job in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)):
        # Spark numbers a job's stages in the order of their making, each behind those that it needs.
        numbers = list(job.stageIds) if job is not None else []
        for stage in map(tracker.getStageInfo, active.intersection(numbers)):
            if stage is not None:
                writes = len(numbers) > 1 and stage.stageId == max(numbers)
                found.append(
                    StageCount(stage.stageId, stage.numTasks, stage.numCompletedTasks, writes=writes)
                )
    return found
