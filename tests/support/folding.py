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
    from spark_backfill.slot_outcome import SlotOutcome
    from spark_backfill.stretch import Stretch


def fold_to_files(
    rows: DataFrame,
    stretches: Sequence[Stretch],
    window: Window,
    folder: Path,
    *,
    around: Callable[[Task], Task] = lambda task: task,
) -> tuple[SlotPlan, list[SlotOutcome]]:
    """Fold rows ``partition, offset, timestamp_ms, digest`` (null: no ID); return the slots and what was written of each."""
    ordered = window.count is not None
    plan = plan_slots(
        stretches, split=not ordered, parallelism=rows.sparkSession.sparkContext.defaultParallelism
    )
    pieces = pack_rows(rows, Packing(plan, ordered))
    return plan, write_slots(pieces, plan, stretches, window, folder, around=around)
