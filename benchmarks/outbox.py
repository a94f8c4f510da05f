"""A producer with an outbox beside a plain one: the same records to the same mock cluster, until all are confirmed.

python benchmarks/outbox.py CONTENDER BOOTSTRAP RECORDS         one contender, for adapters.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from confluent_kafka import Producer

from benchmarks.measure import cpu_seconds
from benchmarks.rounds import orders
from dedup_sdk.producer import DedupProducer
from dedup_sdk.testing import MockKafka

CONTENDERS = ("plain", "outbox", "outbox_no_fsync")
PARTITIONS = 4
_TOPIC = "orders"
_VALUE = b"x" * 200
_POLL_EVERY = 1_000


def rounds_of(records: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round of each contender."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for order in orders(CONTENDERS, rounds):
        for name in order:
            with MockKafka() as kafka:
                kafka.create_topic(_TOPIC, PARTITIONS)
                command = [sys.executable, __file__, name, kafka.bootstrap, str(records)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    return found


def contend(name: str, bootstrap: str, records: int) -> dict[str, float]:
    """Produce, and return the figures from the first record to the last report."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": 200_000,
        "log_level": 0
    }  # fmt: skip
    with TemporaryDirectory(dir=Path.cwd(), prefix=".outbox-") as folder:
        producer = (
            Producer(config)
            if name == "plain"
            else DedupProducer(config, outbox=folder, fsync=name == "outbox")
        )
        producer.list_topics(_TOPIC)
        began, cpu_began, persisted = time.perf_counter(), cpu_seconds(), 0.0
        confirmed = _send(producer, records)
        if isinstance(producer, DedupProducer):
            producer.persist()
            persisted = time.perf_counter() - began
        assert producer.flush() == 0
        seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu_began
        producer.close()
        assert len(confirmed) == records, f"{len(confirmed)} of {records} were confirmed"
    figures = {"records_per_second": records / seconds, "cpu_us_per_record": cpu / records * 1e6}
    return {**figures, "persisted_per_second": records / persisted if persisted else 0.0}


def _send(producer: Producer, records: int) -> list[None]:
    """Send all records, as an application that has a key, counts confirmations, and waits when there is no room."""
    confirmed: list[None] = []

    def count(error: object, _: object) -> None:
        assert error is None, error
        confirmed.append(None)

    for number in range(records):
        while True:
            try:
                producer.produce(_TOPIC, _VALUE, b"customer-%d" % (number % 10_000), on_delivery=count)
            except BufferError:
                producer.poll(0.01)
            else:
                break
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    return confirmed


if __name__ == "__main__":
    print(json.dumps(contend(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
