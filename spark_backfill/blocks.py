"""All that a run reads, packed: from the topic, by the reader that was chosen, and from an archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.base_reader import read_base_blocks
from spark_backfill.client_reader import ClientReader, plan_ranges, read_blocks
from spark_backfill.fold import Packing, pack_rows_in_order
from spark_backfill.offset_range import Bounds, OffsetRange, archive_bounds, log_bounds
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.source import read_digests


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
        frames.append(_of_topic(spark, options, in_log, packing))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.blocks(in_archive, packing))
    if base is not None:
        kept = read_base_blocks(spark, base, offset_ranges, packing.plan, ordered=packing.ordered)
        frames += [] if kept is None else [kept]
    return reduce(DataFrame.unionByName, frames)


def _of_topic(spark: SparkSession, options: Options, bounds: Bounds, packing: Packing) -> DataFrame:
    if options.sources.kafka == "kafka-jvm":
        rows = read_digests(
            spark,
            options.bootstrap,
            options.topic,
            bounds,
            spec=options.id,
            settings=options.jvm_client_config,
            packing=packing,
        )
        return pack_rows_in_order(rows, packing)
    reader = ClientReader(
        settings={**options.client_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=str(options.id),
        ranges=plan_ranges(bounds, spark.sparkContext.defaultParallelism),
        packing=packing,
    )
    return read_blocks(spark, reader)
