"""The fold of rows written down in a test: packed, shuffled, and written as by a run; or given to one fold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from spark_backfill.fold import Packing, by_offset, pack_rows, write_slots
from spark_backfill.on_spark import OnSpark
from spark_backfill.ordered_fold import plan_whole, write_ordered
from spark_backfill.ordered_rows import ORDERED_SCHEMA, OrderedBlocks
from spark_backfill.ordered_spec import CountSpec
from spark_backfill.slots import SlotPlan, plan_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame

    from dedup_sdk._window import Window
    from spark_backfill.offset_range import OffsetRange
    from spark_backfill.publish import Target
    from spark_backfill.slot_outcome import SlotOutcome
    from spark_backfill.time_fold import TimeFold
    from spark_backfill.workers import Task
    from tests.support.naive_fold import Row

NOW_MS = 10**9


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
    workers = OnSpark(lambda: rows.sparkSession, "orders")
    if window.count is not None:
        plan = plan_whole(offset_ranges)
        packed = by_offset(rows, plan).mapInArrow(OrderedBlocks(plan), ORDERED_SCHEMA)
        spec = CountSpec("key", str(window))
        return plan, write_ordered(
            workers, [packed], plan, offset_ranges, spec, target, description="", now_ms=NOW_MS, around=around
        )
    plan = plan_slots(offset_ranges, parallelism=workers.tasks_at_a_time())
    blocks = pack_rows(rows, Packing(plan))
    return plan, write_slots(workers, [blocks], plan, offset_ranges, target, around=around)


def add_rows(folding: TimeFold, rows: Sequence[Row], batch: int) -> None:
    """Give a fold these rows, all of which have an ID, so many a batch."""
    for start in range(0, len(rows), batch):
        part = rows[start : start + batch]
        folding.add(
            b"".join(row.digest or b"" for row in part),
            np.array([row.offset for row in part], np.int64),
            np.array([row.timestamp_ms for row in part], np.int64),
        )
