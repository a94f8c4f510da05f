"""Rows from Kafka through Spark's own connector: the offsets are given, nothing is resolved again."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk.ids import IdSpec
from spark_backfill import id_batches, id_columns
from spark_backfill.fold import Packing
from spark_backfill.offset_range import Bounds
from spark_backfill.reshard import KEY_COLUMN

_WORTH_SPLITTING = 200_000


def read_digests(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    bounds: Bounds,
    *,
    spec: IdSpec,
    settings: Mapping[str, str],
    packing: Packing,
) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms`` and ``digest`` of every committed record inside the bounds.

    ``settings`` are the Java client's; ``packing`` as in `with_digests`. Records of aborted transactions are not
    among the rows.
    """
    return with_digests(read_records(spark, bootstrap, topic, bounds, settings=settings), spec, packing)


def read_records(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    bounds: Bounds,
    *,
    settings: Mapping[str, str],
) -> DataFrame:
    """Return every committed record inside the bounds, with Kafka's columns (headers, too) and ``timestamp_ms``."""
    records = _records(spark, bootstrap, topic, bounds, settings)
    return records.withColumn("timestamp_ms", F.unix_millis("timestamp"))


def with_digests(records: DataFrame, spec: IdSpec, packing: Packing) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms`` and ``digest`` of records.

    These have Kafka's columns and ``timestamp_ms``. ``packing``: a producer's header adds a column ``producer``
    with its last value, re-sharding one with the records' keys, and a run of a whole topic one with the digests of
    redriven IDs (`spark_backfill.id_batches.digester`).
    """
    others = []
    if packing.producer_header is not None:
        others.append("producer")
        records = records.withColumn("producer", id_columns.header_column(packing.producer_header))
    if packing.reshard is not None:
        # The spec may read the key, too.
        others.append(KEY_COLUMN)
        records = records.withColumn(KEY_COLUMN, F.col("key"))
    digested = id_columns.with_digests if id_columns.jvm_computes(spec) else id_batches.with_digests
    return digested(records, spec, *others, group=packing.group, with_redriven=packing.marks_redriven)


def _records(
    spark: SparkSession, bootstrap: str, topic: str, bounds: Bounds, settings: Mapping[str, str]
) -> DataFrame:
    options = {
        **{f"kafka.{name}": value for name, value in settings.items()},
        "kafka.bootstrap.servers": bootstrap,
        # The Java client's own default is read_uncommitted: IDs of aborted records would count as seen.
        "kafka.isolation.level": "read_committed",
        "assign": json.dumps({topic: list(bounds)}),
        "startingOffsets": json.dumps(
            {topic: {str(partition): begin for partition, (begin, _) in bounds.items()}}
        ),
        "endingOffsets": json.dumps({topic: {str(partition): end for partition, (_, end) in bounds.items()}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    if sum(end - begin for begin, end in bounds.values()) > _WORTH_SPLITTING:
        options["minPartitions"] = str(max(spark.sparkContext.defaultParallelism, len(bounds)))
    return spark.read.format("kafka").options(**options).load()
