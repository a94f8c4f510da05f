"""All that a run reads where IDs are compared, dealt out to slots: from the topic, by the reader that was chosen, and from an archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.client_reader import ClientRows, plan_ranges
from spark_backfill.id_batches import digester, read_columns
from spark_backfill.lane_dealer import DEALT_SCHEMA, DealtRows, LaneDealer
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.source import read_records
from spark_backfill.stretch import Bounds, Stretch, archive_bounds, log_bounds


def read_dealt_rows(
    spark: SparkSession,
    options: Options,
    stretches: Sequence[Stretch],
    dealer: LaneDealer,
    archive: Archive | ParquetArchive | None,
) -> DataFrame:
    """Return the rows (`spark_backfill.lane_dealer`) of the stretches, of which something is to be read."""
    frames: list[DataFrame] = []
    if in_log := log_bounds(stretches):
        frames.append(_of_topic(spark, options, in_log, dealer))
    if archive is not None and (in_archive := archive_bounds(stretches)):
        frames.append(archive.dealt_rows(in_archive, dealer))
    return reduce(DataFrame.unionByName, frames)


def _of_topic(spark: SparkSession, options: Options, bounds: Bounds, dealer: LaneDealer) -> DataFrame:
    if options.sources.kafka == "kafka-jvm":
        records = read_records(
            spark,
            options.bootstrap,
            options.topic,
            bounds,
            settings=options.reader_config,
        )
        rows = read_columns(records, dealer.spec)
        return rows.mapInArrow(DealtRows(digester(dealer.spec, group=dealer.group), dealer), DEALT_SCHEMA)
    reader = ClientRows(
        settings={**options.admin_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=dealer.spec,
        ranges=plan_ranges(bounds, spark.sparkContext.defaultParallelism),
        group=dealer.group,
    )
    count = len(reader.ranges)
    return spark.range(0, count, 1, count).mapInArrow(DealtRows(reader, dealer), DEALT_SCHEMA)
