from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_session_sorts_bytes_as_rocksdb_does(spark: SparkSession) -> None:
    """Spark orders binary columns by unsigned bytes, in UTC: sorted files of keys stand on it."""
    rows = [(bytes([each]),) for each in (200, 0, 127, 128, 255, 1)]

    frame = spark.createDataFrame(rows, "key binary").sort("key")

    assert [bytes(row["key"])[0] for row in frame.collect()] == [0, 1, 127, 128, 200, 255]
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
