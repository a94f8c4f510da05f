"""The fold of rows written down in a test: packed, shuffled, and written as by a run; or given to one fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_backfill.fold import Packing, pack_rows, write_slots
from spark_backfill.on_spark import OnSpark
from spark_backfill.slots import SlotPlan, plan_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from dedup_sdk._window import Window
    from spark_backfill.count_fold import CountFold
    from spark_backfill.offset_range import OffsetRange
    from spark_backfill.publish import Target
    from spark_backfill.slot_outcome import SlotOutcome
    from spark_backfill.time_fold import TimeFold
    from spark_backfill.workers import Task
    from tests.support.naive_fold import Row


def fold_to_files(
    rows: DataFrame,
    offset_ranges: Sequence[OffsetRange],
    window: Window,
    target: Target,
    *,
    around: Callable[[Task], Task] = lambda task: task,
) -> tuple[SlotPlan, list[SlotOutcome]]:
    """Fold rows ``partition, offset, timestamp_ms, digest`` (null: no ID).

    Return the slots and the outcome of each.
    """
    ordered = window.count is not None
    plan = plan_slots(
        offset_ranges, split=not ordered, parallelism=rows.sparkSession.sparkContext.defaultParallelism
    )
    blocks = pack_rows(rows, Packing(plan, ordered))
    return plan, write_slots(
        OnSpark(rows.sparkSession, "orders"), [blocks], plan, offset_ranges, window, target, around=around
    )


def add_rows(folding: CountFold | TimeFold, rows: Sequence[Row], batch: int) -> None:
    """Give a fold these rows, all of which have an ID, so many a batch."""
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        folding.add(
            b"".join(row.digest or b"" for row in part),
            np.array([row.offset for row in part], np.int64),
            np.array([row.timestamp_ms for row in part], np.int64),
        )
