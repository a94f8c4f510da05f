"""A bridge beside a bare loop that consumes and produces: the same records between two mock clusters.

python benchmarks/bridge.py CONTENDER SOURCE TARGET RECORDS         one contender, for adapters.py

The bare loop commits now and then, and adds no IDs; `bridge` uses transactions, and gives each record an ID;
`bridge_plain` does so without transactions.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from confluent_kafka import Consumer, Producer

from benchmarks.measure import cpu_seconds
from benchmarks.rounds import orders
from dedup_sdk.bridge import Bridge
from dedup_sdk.testing import MockKafka

CONTENDERS = ("loop", "bridge", "bridge_plain")
_PARTITIONS = 4
_MOST = 90_000
"""Records of a partition: a mock cluster keeps 100,000, and five megabytes."""
_TOPIC = "orders"
_VALUE = b"x" * 20
_COMMIT_EVERY = 10_000


def rounds_of(records: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return the figures of each round of each contender, with at most 90,000 records a partition."""
    records = min(records, _MOST * _PARTITIONS)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for order in orders(CONTENDERS, rounds):
        for name in order:
            with MockKafka() as source, MockKafka() as target:
                source.create_topic(_TOPIC, _PARTITIONS)
                target.create_topic(_TOPIC, _PARTITIONS)
                _fill(source.bootstrap, records)
                command = [sys.executable, __file__, name, source.bootstrap, target.bootstrap, str(records)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    return found


def contend(name: str, source: str, target: str, records: int) -> dict[str, float]:
    """Copy until the target has confirmed all of them, and return the figures; joining the group is counted in."""
    reader: dict[str, Any] = {"bootstrap.servers": source, "log_level": 0}
    writer: dict[str, Any] = {"bootstrap.servers": target, "log_level": 0}
    began, cpu_began = time.perf_counter(), cpu_seconds()
    if name == "loop":
        _loop(reader, {**writer, "enable.idempotence": True}, records)
    else:
        bridge = Bridge(
            reader, writer, topics=[_TOPIC], transactions="always" if name == "bridge" else "never"
        )
        bridge.run(until_end=True)
        assert bridge.counters.copied == bridge.counters.named == records, bridge.counters
    seconds, cpu = time.perf_counter() - began, cpu_seconds() - cpu_began
    return {"records_per_second": records / seconds, "cpu_us_per_record": cpu / records * 1e6}


def _loop(reader: dict[str, Any], writer: dict[str, Any], records: int) -> None:
    """A loop written by hand: it loses nothing while nothing dies."""
    consumer = Consumer(
        {**reader, "group.id": "loop", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer(writer)
    consumer.subscribe([_TOPIC])
    copied = since_commit = 0
    while copied < records:
        messages = consumer.consume(1_000, 0.05)
        for message in messages:
            producer.produce(
                _TOPIC, message.value(), message.key(), timestamp=message.timestamp()[1], headers=message.headers()
            )  # fmt: skip
        copied, since_commit = copied + len(messages), since_commit + len(messages)
        producer.poll(0)
        if since_commit >= _COMMIT_EVERY or copied == records:
            assert producer.flush(60) == 0
            consumer.commit(asynchronous=False)
            since_commit = 0
    consumer.close()


def _fill(bootstrap: str, records: int) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": 1_000_000, "log_level": 0}
    )
    for number in range(records):
        producer.produce(_TOPIC, _VALUE, b"k%d" % (number % 10_000), partition=number % _PARTITIONS)
    assert producer.flush(120) == 0


if __name__ == "__main__":
    print(json.dumps(contend(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))))
