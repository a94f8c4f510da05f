"""Rows from Kafka through Spark's own connector: the offsets are given, nothing is resolved again."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk.ids import IdSpec
from spark_backfill import id_batches, id_columns
from spark_backfill.lane_spec import Spec
from spark_backfill.reshard import KEY_COLUMN
from spark_backfill.stretch import Bounds

_WORTH_SPLITTING = 200_000


def read_digests(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    bounds: Bounds,
    *,
    spec: IdSpec,
    settings: Mapping[str, str],
    producer_header: str | None = None,
    with_keys: bool = False,
) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms`` and ``digest`` of every committed record inside the bounds.

    ``settings`` are the Java client's; ``producer_header`` and ``with_keys`` as in `with_digests`. Records of aborted transactions are not among the rows.
    """
    records = read_records(
        spark, bootstrap, topic, bounds, spec=spec, settings=settings, headers=producer_header is not None
    )
    return with_digests(records, spec, producer_header, with_keys=with_keys)


def read_records(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    bounds: Bounds,
    *,
    spec: Spec,
    settings: Mapping[str, str],
    headers: bool = False,
) -> DataFrame:
    """Return every committed record inside the bounds, with Kafka's columns and ``timestamp_ms``; ``headers``: they are wanted whatever ``spec`` reads."""
    wants_headers = headers or _reads_headers(spec)
    records = _records(spark, bootstrap, topic, bounds, settings, headers=wants_headers)
    return records.withColumn("timestamp_ms", F.unix_millis("timestamp"))


def with_digests(
    records: DataFrame, spec: IdSpec, producer_header: str | None = None, *, with_keys: bool = False
) -> DataFrame:
    """Return ``partition``, ``offset``, ``timestamp_ms`` and ``digest`` of records with Kafka's columns and ``timestamp_ms``.

    ``producer_header`` adds a column ``producer`` with the last value of that header, ``with_keys`` one with the records' keys.
    """
    others = [] if producer_header is None else ["producer"]
    if producer_header is not None:
        records = records.withColumn("producer", id_columns.header_column(producer_header))
    if with_keys:
        # The spec may read the key, too.
        others.append(KEY_COLUMN)
        records = records.withColumn(KEY_COLUMN, F.col("key"))
    if id_columns.jvm_computes(spec):
        return id_columns.with_digests(records, spec, *others)
    return id_batches.with_digests(records, spec, *others)


def _reads_headers(spec: Spec) -> bool:
    return bool({"headers", "record"} & spec.needs)


def _records(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    bounds: Bounds,
    settings: Mapping[str, str],
    *,
    headers: bool,
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
        "includeHeaders": str(headers).lower(),
        "failOnDataLoss": "true",
    }
    if sum(end - begin for begin, end in bounds.values()) > _WORTH_SPLITTING:
        options["minPartitions"] = str(max(spark.sparkContext.defaultParallelism, len(bounds)))
    return spark.read.format("kafka").options(**options).load()
