"""How fast a lost key store is rebuilt from the topic, beside the obvious program that does the same.

    python benchmarks/recovery.py
    python benchmarks/recovery.py --records 5000000 --rounds 5 --json

A group has committed the end of the topic, and its stores are gone. ``recovery`` is `DedupConsumer` from its
assignment until all partitions deliver. ``replay`` is a plain loop: consume, SHA-256 of the header, one
`WriteBatch` into RocksDB a batch. Each runs in a process of its own; ``recovery_half`` has half of the records, to
show which figure memory hangs on. The result goes to stdout, progress to stderr. Exit status 1: a contender failed; 2:
wrong usage.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from rocksdict import Options, Rdict, WriteBatch

from benchmarks.arguments import at_least
from benchmarks.contender import TUNED, strategy
from benchmarks.measure import peak_rss_mib
from benchmarks.preload import beginning_text
from benchmarks.rounds import ContenderError, orders
from benchmarks.workload import HEADER, PARTITIONS, TOPIC, Workload, WorkloadError, ensure_topic
from dedup_sdk import DedupConsumer
from dedup_sdk.errors import DedupError
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import Window

BATCH_RECORDS = 1000
STALL_S = 60.0

CONTENDERS = ("recovery", "recovery_half", "replay")


def commit_end(bootstrap: str, group: str, records: int) -> None:
    """Let the group stand behind so many records, as one that has handled all of them since it was new."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    try:
        ends = [_share(records, number) for number in range(PARTITIONS)]
        offsets = [
            TopicPartition(TOPIC, number, end, beginning_text(end, strategy(), group, TOPIC, number))
            for number, end in enumerate(ends)
        ]
        for each in consumer.commit(offsets=offsets, asynchronous=False):
            if each.error is not None:
                raise WorkloadError(
                    f"{TOPIC}/{each.partition}: the offset was not committed: {each.error}; try again"
                )
    finally:
        consumer.close()


def recover(bootstrap: str, group: str, folder: Path, records: int, window: Window | None = None) -> float:
    """Have a consumer with no store come up to date; return the seconds from its assignment on."""
    began: list[float] = []
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"},
        dedup=strategy(window),
        store=folder,
    )
    with consumer:
        consumer.subscribe([TOPIC], on_assign=lambda *_: began.append(time.perf_counter()))
        until = time.perf_counter() + STALL_S
        while not began or any(tp.offset < 0 for tp in consumer.position(_partitions())):
            consumer.poll(0.05)
            if time.perf_counter() > until:
                raise TimeoutError(
                    f"{records} records were not recovered within {STALL_S:.0f} s: look at the broker"
                )
        return time.perf_counter() - began[0]


def replay(bootstrap: str, group: str, folder: Path, records: int) -> float:
    """Read the topic into RocksDB, a batch at a time; return the seconds from the first record on."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(folder / "replay"), options)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **TUNED}
    )
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    read, began = 0, 0.0
    heard = time.perf_counter()
    while read < records:
        batch = consumer.consume(min(BATCH_RECORDS, records - read), 1.0)
        now = time.perf_counter()
        if not batch:
            if now - heard > STALL_S:
                raise TimeoutError(f"{read} of {records} records came, then none: look at the broker")
            continue
        heard, began = now, began or now
        writes = WriteBatch(raw_mode=True)
        for message in batch:
            dedup_id: Any = dict(message.headers() or ())[HEADER]
            offset, stamp = message.offset() or 0, message.timestamp()[1]
            writes.put(
                hashlib.sha256(dedup_id).digest()[:16],
                offset.to_bytes(8, "little") + stamp.to_bytes(8, "little"),
            )
        database.write(writes)
        read += len(batch)
    database.flush()
    seconds = time.perf_counter() - began
    consumer.close()
    database.close()
    return seconds


def compare(bootstrap: str, records: int, rounds: int) -> dict[str, Any]:
    """Run every contender ``rounds`` times, each round in another order; return medians and the ratio."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in CONTENDERS}
    for turn, names in enumerate(orders(CONTENDERS, rounds)):
        for name in names:
            size = records // 2 if name == "recovery_half" else records
            group = f"{name}-{turn}"
            if name != "replay":
                commit_end(bootstrap, group, size)
            rate, rss_mib = _run(name, bootstrap, group, size)
            print(f"round {turn + 1}/{rounds} {name}: {rate:,.0f} records/s", file=sys.stderr)
            seen[name].append((rate, rss_mib))
    result: dict[str, Any] = {
        name: {
            "records_per_second": round(median(rate for rate, _ in runs)),
            "peak_rss_mib": max(rss for _, rss in runs),
        }
        for name, runs in seen.items()
    }
    ratio = result["recovery"]["records_per_second"] / result["replay"]["records_per_second"]
    return result | {"ratio_to_replay": round(ratio, 2), "records": records, "rounds": rounds}


def _run(name: str, bootstrap: str, group: str, records: int) -> tuple[float, float]:
    """Run one contender in a process of its own; return its records a second and its peak memory."""
    with tempfile.TemporaryDirectory(prefix="dedup-recovery-") as folder:
        arguments = json.dumps([name, bootstrap, group, folder, records])
        done = subprocess.run(
            [sys.executable, __file__, "--contender", arguments],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise ContenderError(f"{name} ended with status {done.returncode}: what it said is above")
    rate, rss_mib = json.loads(done.stdout.splitlines()[-1])
    return rate, rss_mib


def _contend(arguments: str) -> int:
    name, bootstrap, group, folder, records = json.loads(arguments)
    loop: Callable[[str, str, Path, int], float] = replay if name == "replay" else recover
    seconds = loop(bootstrap, group, Path(folder), records)
    print(json.dumps([records / seconds, round(peak_rss_mib(), 1)]))
    return 0


def _partitions() -> list[TopicPartition]:
    return [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]


def _share(records: int, partition: int) -> int:
    return len(range(partition, records, PARTITIONS))


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="A lost key store, rebuilt from the topic.")
    parser.add_argument("--records", type=at_least(1000), default=2_000_000, help="records in the topic")
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="runs of each contender; medians are reported"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        return _contend(options.contender)
    try:
        with LocalKafka() as kafka:
            ensure_topic(kafka.bootstrap, TOPIC, Workload(records=options.records))
            result = compare(kafka.bootstrap, options.records, options.rounds)
    except (ContenderError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"recovery: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps(result))
        return 0
    for name in CONTENDERS:
        print(
            f"{name:<18}{result[name]['records_per_second']:>12,} records/s{result[name]['peak_rss_mib']:>9} MiB"
        )
    print(f"recovery is {result['ratio_to_replay']} times as fast as the plain replay")
    return 0


if __name__ == "__main__":
    sys.exit(main())
