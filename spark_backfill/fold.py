"""The fold as a function of a DataFrame: from rows with digests to sorted files, in one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from dedup_sdk.window import Window
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import SlotPlan, placement_column, plan_slots
from spark_backfill.stretch import Stretch

Task = Callable[[Iterable[Any]], Iterable[Any]]


def fold_to_files(
    rows: DataFrame,
    stretches: Sequence[Stretch],
    window: Window,
    folder: Path,
    *,
    around: Callable[[Task], Task] = lambda task: task,
) -> tuple[SlotPlan, list[SlotOutcome]]:
    """Fold rows ``partition, offset, timestamp_ms, digest`` (null: no ID) and write the marks below ``folder``.

    The rows are those of the stretches; ``folder`` exists, is empty, and is seen by every worker under the same path. Returns
    the slots and, of each that had a row, what was written. ``around`` wraps the task, for tests that let it fail.
    """
    spark = rows.sparkSession
    ordered = window.count is not None
    parallelism = spark.sparkContext.defaultParallelism
    plan = plan_slots(stretches, split=not ordered, parallelism=parallelism)
    if not plan.slots:
        return plan, []
    count = len(plan.slots)
    numbered = rows.withColumn("slot", plan.column())
    narrow = numbered.select("slot", "digest", "offset", "timestamp_ms")
    placed = narrow.repartition(count, placement_column(spark, narrow["slot"], count))
    if ordered:
        placed = placed.sortWithinPartitions("slot", "offset")
    task = SlotWriter(
        folder=str(folder),
        slots=plan.slots,
        window=window,
        keep_from_ms={stretch.partition: stretch.keep_from_ms for stretch in stretches},
    )
    written = placed.mapInArrow(around(task), "outcome string").collect()
    return plan, [SlotOutcome.from_json(row["outcome"]) for row in written]
