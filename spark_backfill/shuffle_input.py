"""The rows to shuffle of a run that folds in offset order.

From the topic, by the chosen reader, and from an archive.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.client_reader import ClientRows, plan_ranges
from spark_backfill.id_batches import digester, read_columns
from spark_backfill.offset_range import Bounds, OffsetRange, archive_bounds, log_bounds
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, ShuffledRows, SlotShuffle
from spark_backfill.source import read_records


def read_shuffled_rows(
    spark: SparkSession,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    shuffle: SlotShuffle,
    archive: Archive | ParquetArchive | None,
) -> DataFrame:
    """Return the rows (`spark_backfill.slot_shuffle`) of the offset ranges.

    At least one of them has offsets to read.
    """
    frames: list[DataFrame] = []
    if in_log := log_bounds(offset_ranges):
        frames.append(_of_topic(spark, options, in_log, shuffle))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        frames.append(archive.shuffled_rows(in_archive, shuffle))
    return reduce(DataFrame.unionByName, frames)


def _of_topic(spark: SparkSession, options: Options, bounds: Bounds, shuffle: SlotShuffle) -> DataFrame:
    if options.sources.kafka == "kafka-jvm":
        records = read_records(
            spark,
            options.bootstrap,
            options.topic,
            bounds,
            settings=options.jvm_client_config,
        )
        rows = read_columns(records, shuffle.spec)
        return rows.mapInArrow(
            ShuffledRows(digester(shuffle.spec, group=shuffle.group), shuffle), SHUFFLED_SCHEMA
        )
    reader = ClientRows(
        settings={**options.client_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=shuffle.spec,
        ranges=plan_ranges(bounds, spark.sparkContext.defaultParallelism),
        group=shuffle.group,
    )
    count = len(reader.ranges)
    return spark.range(0, count, 1, count).mapInArrow(ShuffledRows(reader, shuffle), SHUFFLED_SCHEMA)
