"""All that a run reads: from the topic, from an archive, and from a base."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.base_reader import read_base_blocks
from spark_backfill.client_reader import ClientRows, plan_ranges
from spark_backfill.fold import PackedRows, Packing
from spark_backfill.offset_range import Bounds, OffsetRange, archive_bounds, log_bounds
from spark_backfill.options import Options
from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.rows import Wanted
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, ShuffledRows, SlotShuffle


def read_all_blocks(
    spark: SparkSession,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    packing: Packing,
    archive: Archive | None,
    base: Base | None = None,
) -> DataFrame:
    """Return the blocks (`spark_backfill.runs`) of the offset ranges, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(offset_ranges):
        frame, task = _of_topic(spark, options, in_log, packing.wanted(options.id))
        frames.append(frame.mapInArrow(PackedRows(packing, task), BLOCK_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.blocks(in_archive, packing))
    if base is not None:
        kept = read_base_blocks(
            spark,
            base,
            offset_ranges,
            packing.plan,
            ordered=packing.ordered,
            parallelism=options.parallelism,
        )
        frames += [] if kept is None else [kept]
    return reduce(DataFrame.unionByName, frames)


def read_shuffled_rows(
    spark: SparkSession,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    shuffle: SlotShuffle,
    archive: Archive | None,
) -> DataFrame:
    """Return the rows (`spark_backfill.slot_shuffle`) of the offset ranges, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(offset_ranges):
        frame, task = _of_topic(spark, options, in_log, Wanted.of(shuffle.spec, shuffle.group))
        frames.append(frame.mapInArrow(ShuffledRows(task, shuffle), SHUFFLED_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.shuffled_rows(in_archive, shuffle))
    return reduce(DataFrame.unionByName, frames)


def _of_topic(
    spark: SparkSession, options: Options, bounds: Bounds, wanted: Wanted
) -> tuple[DataFrame, ClientRows]:
    """Return a frame with the numbers of ranges, each in a task of its own, and the task that reads them."""
    ranges = plan_ranges(bounds, tasks_at_a_time(spark, options.parallelism))
    task = ClientRows(settings=options.client_settings, topic=options.topic, wanted=wanted, ranges=ranges)
    return spark.range(0, len(ranges), 1, len(ranges)), task
