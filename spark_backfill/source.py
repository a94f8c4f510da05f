"""All that a run reads: from the topic, from an archive, and from a base."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.base_reader import read_base_blocks
from spark_backfill.client_reader import ClientReader, ClientRows, plan_ranges
from spark_backfill.fold import Packing
from spark_backfill.offset_range import OffsetRange, archive_bounds, log_bounds
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, ShuffledRows, SlotShuffle


def read_all_blocks(
    spark: SparkSession,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    packing: Packing,
    archive: Archive | ParquetArchive | None,
    base: Base | None = None,
) -> DataFrame:
    """Return the blocks (`spark_backfill.runs`) of the offset ranges, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(offset_ranges):
        reader = ClientReader(
            settings=options.client_settings,
            topic=options.topic,
            spec=str(options.id),
            ranges=plan_ranges(in_log, spark.sparkContext.defaultParallelism),
            packing=packing,
        )
        frames.append(_numbers(spark, len(reader.ranges)).mapInArrow(reader, BLOCK_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.blocks(in_archive, packing))
    if base is not None:
        kept = read_base_blocks(spark, base, offset_ranges, packing.plan, ordered=packing.ordered)
        frames += [] if kept is None else [kept]
    return reduce(DataFrame.unionByName, frames)


def read_shuffled_rows(
    spark: SparkSession,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    shuffle: SlotShuffle,
    archive: Archive | ParquetArchive | None,
) -> DataFrame:
    """Return the rows (`spark_backfill.slot_shuffle`) of the offset ranges, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(offset_ranges):
        reader = ClientRows(
            settings=options.client_settings,
            topic=options.topic,
            spec=shuffle.spec,
            ranges=plan_ranges(in_log, spark.sparkContext.defaultParallelism),
            group=shuffle.group,
        )
        numbers = _numbers(spark, len(reader.ranges))
        frames.append(numbers.mapInArrow(ShuffledRows(reader, shuffle), SHUFFLED_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.shuffled_rows(in_archive, shuffle))
    return reduce(DataFrame.unionByName, frames)


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """Return the numbers of so many ranges, each in a task of its own."""
    return spark.range(0, count, 1, count)
