"""An archive of a topic in Parquet, with Kafka's own columns, as a sink writes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition

from benchmarks.workload import HEADER, PARTITIONS, WorkloadError

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.workload import Workload

_FILE_RECORDS = 250_000
_SILENCE_S = 30.0
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def write_archive(bootstrap: str, topic: str, folder: Path, records: int) -> None:
    """Copy a topic into files of a quarter of a million records of one partition each."""
    folder.mkdir()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "archive", "fetch.queue.backoff.ms": 1})
    try:
        for partition in range(PARTITIONS):
            consumer.assign([TopicPartition(topic, partition, 0)])
            left = len(range(partition, records, PARTITIONS))
            number = 0
            while left:
                rows = _take(consumer, min(left, _FILE_RECORDS))
                left -= len(rows)
                _write(rows, folder, number)
                number += 1
    finally:
        consumer.close()


def generate_archive(topic: str, folder: Path, workload: Workload) -> None:
    """Write the files of a topic that was never in a broker.

    The workload's records, sent in the last hundred seconds.
    """
    folder.mkdir()
    began_ms = time.time_ns() // 1_000_000 - 100_000
    rows: list[list[dict[str, Any]]] = [[] for _ in range(PARTITIONS)]
    numbers = [0] * PARTITIONS
    for number, (dedup_id, value) in enumerate(zip(workload.ids(), workload.values(), strict=True)):
        partition, offset = number % PARTITIONS, number // PARTITIONS
        rows[partition].append({
            "topic": topic, "partition": partition, "offset": offset,
            "timestamp": began_ms + 100_000 * number // workload.records, "key": None, "value": value,
            "headers": [{"key": HEADER, "value": dedup_id}],
        })  # fmt: skip
        if len(rows[partition]) == _FILE_RECORDS or number + PARTITIONS >= workload.records:
            _write(rows[partition], folder, numbers[partition])
            numbers[partition] += 1
            rows[partition] = []


def _write(rows: list[dict[str, Any]], folder: Path, number: int) -> None:
    name = f"{rows[0]['partition']}-{number:05d}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, _SCHEMA), folder / name)


def _take(consumer: Consumer, count: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    while len(rows) < count:
        batch = consumer.consume(min(10_000, count - len(rows)), _SILENCE_S)
        if not batch:
            raise WorkloadError(f"no record came for {_SILENCE_S:g} s: look at the broker")
        rows += [
            {
                "topic": message.topic(), "partition": message.partition(), "offset": message.offset(),
                "timestamp": message.timestamp()[1], "key": message.key(), "value": message.value(),
                "headers": [{"key": name, "value": value} for name, value in dict(message.headers() or ()).items()],
            }
            for message in batch
        ]  # fmt: skip
    return rows
