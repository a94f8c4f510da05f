"""All that a run reads where IDs are compared, dealt out to slots: from the topic, by the reader that was chosen, and from an archive."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

from pyspark.sql import DataFrame, SparkSession

from spark_backfill.archive import Archive
from spark_backfill.client_reader import ClientRows, plan_ranges
from spark_backfill.hull import read_once
from spark_backfill.id_batches import digester, read_columns
from spark_backfill.lane_dealer import DEALT_SCHEMA, DealtRows, LaneDealer
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.source import read_records
from spark_backfill.stretch import Stretch


def read_dealt_rows(
    spark: SparkSession,
    options: Options,
    groups: Sequence[Sequence[Stretch]],
    dealer: LaneDealer,
    archive: Archive | ParquetArchive | None,
) -> DataFrame:
    """Return the rows (`spark_backfill.lane_dealer`) of the stretches of all groups, of which something is to be read; each source is read once."""
    frames = read_once(
        groups,
        dealer,
        log=partial(_of_topic, spark, options),
        archive=None if archive is None else archive.dealt_rows,
    )
    return reduce(DataFrame.unionByName, frames)


def _of_topic(
    spark: SparkSession, options: Options, stretches: Sequence[Stretch], dealer: LaneDealer
) -> DataFrame:
    if options.sources.kafka == "kafka-jvm":
        records = read_records(
            spark,
            options.bootstrap,
            options.topic,
            stretches,
            spec=dealer.spec,
            settings=options.reader_config,
        )
        rows = read_columns(records, dealer.spec)
        return rows.mapInArrow(DealtRows(digester(dealer.spec), dealer), DEALT_SCHEMA)
    reader = ClientRows(
        settings={**options.admin_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=dealer.spec,
        ranges=plan_ranges(stretches, spark.sparkContext.defaultParallelism),
    )
    count = len(reader.ranges)
    return spark.range(0, count, 1, count).mapInArrow(DealtRows(reader, dealer), DEALT_SCHEMA)
