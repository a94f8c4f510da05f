"""Archives of records, as sinks and scripts write them."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dedup_sdk._record import Record
from dedup_sdk.ids import id_spec
from spark_backfill.archive import Archive
from spark_backfill.spark_files import SparkFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_backfill.archive_options import ArchiveOptions

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
KAFKA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)
"""The columns of Spark's Kafka source."""


def kafka_table(records: Iterable[Record]) -> pa.Table:
    """Records with the columns of Spark's Kafka source; a timestamp of -1 is null."""
    rows = [
        {
            "topic": each.topic,
            "partition": each.partition,
            "offset": each.offset,
            "timestamp": None if each.timestamp_ms < 0 else each.timestamp_ms,
            "key": each.key,
            "value": each.value,
            "headers": [{"key": name, "value": value} for name, value in each.headers],
        }
        for each in records
    ]
    return pa.Table.from_pylist(rows, schema=KAFKA)


def write_parquet(
    folder: Path,
    records: Sequence[Record],
    *,
    files: int = 2,
    group_rows: int = 1_000_000,
    statistics: bool = True,
) -> Path:
    """Write records as Parquet, dealt out to some files, in row groups that tell of their rows, or do not."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        pq.write_table(
            kafka_table(records[number::files]),
            folder / f"part-{number}.parquet",
            row_group_size=group_rows,
            write_statistics=statistics,
        )
    return folder


def write_json_lines(path: Path, records: Iterable[Record]) -> Path:
    """Write records as JSON lines with bytes in base64 and time in milliseconds."""

    def text(data: bytes | None) -> str | None:
        return None if data is None else base64.b64encode(data).decode()

    with path.open("w", encoding="utf-8") as file:
        for each in records:
            headers = [{"key": name, "value": text(value)} for name, value in each.headers]
            line = {
                "topic": each.topic, "partition": each.partition, "offset": each.offset, "ts": each.timestamp_ms,
                "key": text(each.key), "value": text(each.value), "headers": headers,
            }  # fmt: skip
            file.write(json.dumps(line) + "\n")
    return path


def spark_archive(spark: SparkSession, options: ArchiveOptions, spec: str = "key") -> Archive:
    """An archive of the topic ``orders``, opened by Spark."""
    return Archive(SparkFiles(spark, options, topic="orders", spec=id_spec(spec)), id_spec(spec))


def records(archive: Archive, *partitions: int, key: bool = True) -> list[Record]:
    """All records of an archive, by coordinates; ``key``: key and value are read."""
    bounds = dict.fromkeys(partitions or (0,), (0, 10**9))
    rows = archive.files.records(bounds).frame.orderBy("partition", "offset").collect()
    return [
        Record(
            row["topic"] or "orders",
            row["partition"],
            row["offset"],
            row["timestamp_ms"],
            None if not key or row["key"] is None else bytes(row["key"]),
            None if not key or row["value"] is None else bytes(row["value"]),
            tuple((each["key"], each["value"] and bytes(each["value"])) for each in row["headers"] or ()),
        )
        for row in rows
    ]


def lines(path: Path, *objects: object) -> None:
    """Write JSON lines, compressed if the name says so; a text is a line as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [each if isinstance(each, str) else json.dumps(each) for each in objects]
    data = "".join(f"{text}\n" for text in texts).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def coded(text: str) -> str:
    """A text in base64."""
    return base64.b64encode(text.encode()).decode()


def table(path: Path, **columns: Sequence[object] | pa.Array) -> None:
    """Write columns as one Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)
