"""All that a run reads, packed: from the topic, by the reader that was chosen, and from an archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.base_reader import read_base_pieces
from spark_backfill.client_reader import ClientReader, plan_ranges, read_pieces
from spark_backfill.fold import Packing, pack_rows_in_order
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.source import read_digests
from spark_backfill.stretch import Bounds, Stretch, archive_bounds, log_bounds


def read_all_pieces(
    spark: SparkSession,
    options: Options,
    stretches: Sequence[Stretch],
    packing: Packing,
    archive: Archive | ParquetArchive | None,
    base: Base | None = None,
) -> DataFrame:
    """Return the pieces (`spark_backfill.runs`) of the stretches, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(stretches):
        frames.append(_of_topic(spark, options, in_log, packing))
    if archive is not None and (in_archive := archive_bounds(stretches)):
        frames.append(archive.pieces(in_archive, packing))
    if base is not None:
        kept = read_base_pieces(spark, base, stretches, packing.plan, ordered=packing.ordered)
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
            settings=options.reader_config,
            packing=packing,
        )
        return pack_rows_in_order(rows, packing)
    reader = ClientReader(
        settings={**options.admin_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=str(options.id),
        ranges=plan_ranges(bounds, spark.sparkContext.defaultParallelism),
        packing=packing,
    )
    return read_pieces(spark, reader)
