"""The price of deduplication in a transactional loop: read, write to another topic, commit both, on a real broker.

    python benchmarks/exactly_once.py
    python benchmarks/exactly_once.py --records 200000 --rounds 5 --json

Both loops read the same topic of 4 partitions and write each value to another one, in transactions of 1,000 and of 100
records; they take turns, each in a group of its own. The result goes to stdout, progress to stderr. Exit status 1: a
loop failed, or has written another number of records; 2: wrong usage.

bare
    the client's own consumer and producer, as in their published example: `send_offsets_to_transaction` with the
    consumer's positions.
dedup
    `DedupConsumer.transactions`, with a key store on disk.
ratio
    messages a second of ``dedup`` over those of ``bare``, median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from dedup_sdk import DedupConsumer, Lookup, Window
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import header
from dedup_sdk.testing._local_kafka import create_topic

PARTITIONS: Final = 4
SIZES: Final = (1_000, 100)
_PATIENCE_S: Final = 30.0
_TUNED: Final[dict[str, Any]] = {"fetch.queue.backoff.ms": 1, "auto.offset.reset": "earliest", "log_level": 0}


class LoopError(Exception):
    """A loop got no message for long, or the other topic has another number of records."""


def main() -> int:
    """Measure, print, and return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--records", type=at_least(1_000), default=100_000)
    options.add_argument("--rounds", type=at_least(1), default=3)
    options.add_argument("--bootstrap", help="a broker that runs; else one is started")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    try:
        with broker_at(chosen.bootstrap) as bootstrap, tempfile.TemporaryDirectory() as folder:
            result = measure(bootstrap, Path(folder), chosen.records, chosen.rounds)
    except (LoopError, KafkaException, DedupError, OSError) as error:
        print(f"exactly_once: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if chosen.json else text(result))
    return 0


def measure(bootstrap: str, folder: Path, records: int, rounds: int) -> dict[str, dict[str, float]]:
    """Return, for each size of a transaction, messages a second of both loops, and their ratio."""
    topic = create_topic(bootstrap, f"in-{uuid4().hex}", PARTITIONS)
    fill(bootstrap, topic, records)
    result = {}
    for size in SIZES:
        rates: dict[str, list[float]] = {"bare": [], "dedup": []}
        for number in range(rounds):
            for name in ("bare", "dedup") if number % 2 else ("dedup", "bare"):
                out = create_topic(bootstrap, f"out-{uuid4().hex}", PARTITIONS)
                began = time.perf_counter()
                if name == "bare":
                    bare(bootstrap, topic, out, records, size)
                else:
                    dedup(bootstrap, topic, out, records, size, folder / uuid4().hex)
                rates[name].append(records / (time.perf_counter() - began))
                check(bootstrap, out, records)
                print(f"{size}: {name} {rates[name][-1]:,.0f} messages/s", file=sys.stderr)
        ratio = median(ours / bare for ours, bare in zip(rates["dedup"], rates["bare"], strict=True))
        result[str(size)] = {
            **{name: round(median(each)) for name, each in rates.items()},
            "ratio": round(ratio, 3),
        }
    return result


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Send records of 200 bytes, each with an ID of its own."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": records + 1, "log_level": 0}
    )
    for number in range(records):
        producer.produce(topic, b"x" * 200, headers={"dedup-id": str(uuid4())}, partition=number % PARTITIONS)
    producer.flush()


def bare(bootstrap: str, topic: str, out: str, records: int, size: int) -> None:
    """Copy with the client alone."""
    group = f"bare-{uuid4().hex}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "log_level": 0})
    producer.init_transactions()
    config = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **_TUNED}
    with Consumer(config) as consumer:
        consumer.subscribe([topic])
        left, heard_at = records, time.monotonic()
        while left > 0:
            messages = consumer.consume(size, 0.1)
            if not messages:
                if time.monotonic() > heard_at + _PATIENCE_S:
                    raise LoopError("the bare loop gets no message")
                continue
            heard_at = time.monotonic()
            producer.begin_transaction()
            for message in messages:
                producer.produce(out, message.value())
            positions: list[TopicPartition] = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()
            left -= len(messages)


def dedup(bootstrap: str, topic: str, out: str, records: int, size: int, store: Path) -> None:
    """Copy with `DedupConsumer.transactions`."""
    config = {"bootstrap.servers": bootstrap, "group.id": f"dedup-{uuid4().hex}", **_TUNED}
    strategy = Lookup(id=header("dedup-id"), window=Window(days=7))
    left = records
    with DedupConsumer(config, dedup=strategy, store=store, idle_timeout=_PATIENCE_S) as consumer:
        consumer.subscribe([topic])
        with consumer.transactions(max_messages=size) as transactions:
            for transaction in transactions:
                for message in transaction:
                    transaction.produce(out, message.value())
                left -= len(transaction.messages)
                if left <= 0:
                    break
    if left:
        raise LoopError(f"the loop with dedup has copied {records - left} of {records} messages")


def check(bootstrap: str, out: str, records: int) -> None:
    """Raise `LoopError` unless readers of committed records see as many."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"check-{uuid4().hex}",
        "enable.partition.eof": True,
        **_TUNED,
    }
    seen = ended = 0
    with Consumer(config) as reader:
        reader.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS:
            for message in reader.consume(10_000, 1):
                ended += message.error() is not None
                seen += message.error() is None
    if seen != records:
        raise LoopError(f"{seen} records were written, not {records}")


def text(result: dict[str, dict[str, float]]) -> str:
    """The result for people."""
    rows = [f"{'transactions of':18}{'bare/s':>10}{'dedup/s':>10}{'ratio':>8}"]
    rows += [
        f"{size:18}{each['bare']:10,.0f}{each['dedup']:10,.0f}{each['ratio']:8.3f}"
        for size, each in result.items()
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
