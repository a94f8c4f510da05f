"""The Spark job that one writes first: rows of Kafka, `groupBy`, a range partitioning, sorted files.

The backfill is measured beside it.

    spark-submit --packages COORDINATES benchmarks/naive_backfill.py BOOTSTRAP TOPIC HEADER FOLDER

Prints the seconds from the session on, as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def main() -> None:
    """Run the job."""
    bootstrap, topic, header, folder = sys.argv[1:]
    spark = SparkSession.builder.appName("naive").getOrCreate()
    began = time.perf_counter()
    settings = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "includeHeaders": "true"}
    records = spark.read.format("kafka").options(**settings, startingOffsets="earliest").load()
    value = F.element_at(F.filter("headers", lambda each: each["key"] == F.lit(header)), -1)["value"]
    rows = records.select(
        "partition", "offset", F.unix_millis("timestamp").alias("stamp"),
        F.unhex(F.substring(F.sha2(value, 256), 1, 32)).alias("digest"),
    )  # fmt: skip
    folded = rows.groupBy("partition", "digest").agg(
        F.min("offset").alias("offset"), F.min("stamp").alias("stamp")
    )
    placed = folded.repartitionByRange("partition", "digest").sortWithinPartitions("partition", "digest")

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Here, because a class of RocksDB's does not travel to the workers.
        from rocksdict import Options, SstFileWriter

        writer = SstFileWriter(Options(raw_mode=True))
        path = Path(folder) / f"{uuid4().hex}.sst"
        count = 0
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("partition", "digest", "offset", "stamp")]
            for partition, digest, offset, stamp in zip(*columns, strict=True):
                if not count:
                    writer.open(str(path))
                key = partition.to_bytes(4, "big") + digest
                writer[key] = offset.to_bytes(8, "big") + stamp.to_bytes(8, "big")
                count += 1
        if count:
            writer.finish()
        yield pa.RecordBatch.from_arrays([pa.array([count], pa.int64())], ["marks"])

    marks = sum(row["marks"] for row in placed.mapInArrow(write, "marks long").collect())
    seconds = time.perf_counter() - began
    spark.stop()
    print(json.dumps({"marks": marks, "seconds": seconds}))


if __name__ == "__main__":
    main()
