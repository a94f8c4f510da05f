"""A thread of the driver that asks Spark how far its stages are."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.sql import SparkSession

from spark_backfill.progress import Meter, Progress, StageCount

logger = logging.getLogger(__name__)

_LOOK_S: Final = 0.5
_END_S: Final = 2.0


@contextmanager
def watched_stages(spark: SparkSession, offsets: int, tell: Callable[[Progress], None]) -> Iterator[None]:
    """Tell twice a second how far the reading of so many offsets, and the writing, are, until the block is left.

    ``tell`` is called on a thread of its own, the last time before the block is left. Where Spark does not answer
    (it is Spark Connect, or on its way out) nothing is told: a run never fails for that.
    """
    over = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(spark, Meter(offsets), tell, over), name="dedup-progress", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(_END_S)


def _watch(
    spark: SparkSession, meter: Meter, tell: Callable[[Progress], None], over: threading.Event
) -> None:
    try:
        # Python's own tracker counts tasks alone, and reads a store that Spark writes at most ten times a second
        # and then only when a task begins or ends: tasks that end together would be missing until the next ones
        # do.
        store: Any = spark.sparkContext._jsc.sc().statusStore()  # noqa: SLF001 (Python has no other way to it)
        while not over.wait(_LOOK_S):
            try:
                active = _active(store)
            except Py4JNetworkError:
                return
            except Py4JError as error:
                # A stage began or ended as we looked; the next look finds it as it is.
                logger.debug("Spark did not tell how far it is: %s", error)
                continue
            seen = meter.look(active, time.monotonic())
            if seen is not None and not over.is_set():
                tell(seen)
    except Exception:  # noqa: BLE001 (whatever it is, the run itself will meet it, or goes on without)
        return


def _active(store: Any) -> list[StageCount]:
    """The stages at work, as Spark's own progress bar sees them."""
    live = store.activeStages()
    stages = [live.apply(index) for index in range(live.size())]
    return [
        StageCount(
            stage.stageId(),
            stage.numTasks(),
            stage.numCompleteTasks(),
            shuffles=stage.shuffleWriteBytes() > 0,
        )
        for stage in stages
        # One that failed stays while its tasks still run.
        if stage.status().toString() == "ACTIVE"
    ]
