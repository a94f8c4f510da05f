"""The fold of rows written down in a test: packed, shuffled, and written as by a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_backfill.fold import Packing, Task, pack_rows, write_slots
from spark_backfill.slots import SlotPlan, plan_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

    from dedup_sdk.window import Window
    from spark_backfill.offset_range import OffsetRange
    from spark_backfill.slot_outcome import SlotOutcome


def fold_to_files(
    rows: DataFrame,
    offset_ranges: Sequence[OffsetRange],
    window: Window,
    folder: Path,
    *,
    around: Callable[[Task], Task] = lambda task: task,
) -> tuple[SlotPlan, list[SlotOutcome]]:
    """Fold rows ``partition, offset, timestamp_ms, digest`` (null: no ID); return the slots and what was written of each."""
    ordered = window.count is not None
    plan = plan_slots(
        offset_ranges, split=not ordered, parallelism=rows.sparkSession.sparkContext.defaultParallelism
    )
    blocks = pack_rows(rows, Packing(plan, ordered))
    return plan, write_slots(blocks, plan, offset_ranges, window, folder, around=around)
