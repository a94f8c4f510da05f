"""The cost of comparing with the last ID, beside looking IDs up.

    python benchmarks/last_id.py
    python benchmarks/last_id.py --records 2000000 --rounds 5 --json

The same messages go through the stages of a batch of 1000 that `DedupConsumer` takes, into a RocksDB store, once
for each strategy and round; one in twenty repeats one of the last hundred of its source. Not in it: reading from
Kafka. The verdicts are checked: every strategy has to find every duplicate, and nothing else. The result goes to
stdout.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from benchmarks.arguments import at_least
from benchmarks.rounds import orders as orders_of_rounds
from dedup_sdk import LastId, Lookup, RocksStore, Window, header, orders
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.client.fields import MessageFields, timestamps_ms
from dedup_sdk._kafka.deliver.maintenance import Collector
from dedup_sdk.errors import DedupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk._strategy import Strategy

BATCH_RECORDS = 1000
DUPLICATE_SHARE = 0.05
REACH = 100
_TOPIC = "last-id"
_MICROSECONDS = 1e6
_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Contender(NamedTuple):
    """A strategy, and of how many sources its messages are."""

    strategy: Strategy
    sources: int
    meaning: str


def contenders() -> dict[str, Contender]:
    """Return who is compared, by name."""
    window = Window(days=7)
    seq, producer = header("seq"), header("producer")
    return {
        "lookup": Contender(Lookup(id=seq, window=window), 1, "Lookup of the sequence number"),
        "lookup_of_pairs": Contender(
            Lookup(id=producer + seq, window=window), 1_000, "Lookup of producer and sequence number"
        ),
        "last": Contender(LastId(id=seq, order=orders.integer()), 1, "the partition is the source"),
        "last_ulid": Contender(LastId(id=header("ulid"), order=orders.ulid()), 1, "the same with ULIDs"),
        "last_of_1000": Contender(
            LastId(id=seq, order=orders.integer(), source=producer),
            1_000,
            "a source for each of 1,000 producers",
        ),
        "last_of_100000": Contender(
            LastId(id=seq, order=orders.integer(), source=producer),
            100_000,
            "a source for each of 100,000 producers",
        ),
    }


def batches(records: int, sources: int) -> Iterator[tuple[list[Message], int]]:
    """Yield the messages, a thousand at a time, and how many of them are duplicates; the same for equal arguments."""
    rng = random.Random(records)
    sent = [0] * sources
    now_ms = int(time.time() * 1000)
    batch: list[Message] = []
    duplicates = 0
    for offset in range(records):
        source = rng.randrange(sources)
        number = sent[source]
        if number and rng.random() < DUPLICATE_SHARE:
            number -= rng.randrange(1, min(number, REACH) + 1)
            duplicates += 1
        else:
            sent[source] += 1
        message = Message(topic=_TOPIC, partition=0, offset=offset, timestamp=(TIMESTAMP_CREATE_TIME, now_ms))
        value = (1_800_000_000_000 + number) << 80 | number * 7919
        ulid = bytes(_CROCKFORD[value >> 5 * digit & 31] for digit in range(25, -1, -1))
        message.set_headers([("seq", b"%d" % number), ("producer", b"producer-%d" % source), ("ulid", ulid)])
        batch.append(message)
        if len(batch) == BATCH_RECORDS or offset == records - 1:
            yield batch, duplicates
            batch, duplicates = [], 0


def measure(contender: Contender, records: int, folder: Path) -> float:
    """Return the microseconds of CPU that a record takes.

    Raises `RuntimeError` when a verdict is not the expected one.
    """
    spent, expected = 0.0, 0
    keys = contender.strategy.keys
    with Deduplicator(contender.strategy, store=RocksStore(folder), group="last-id") as engine:
        engine.open(_TOPIC, 0, low=0)
        held = engine.partitions[_TOPIC, 0]
        for batch, duplicates in batches(records, contender.sources):
            expected += duplicates
            began = time.process_time()
            collector = Collector()
            collector.pause()
            ids = keys.digests(MessageFields(batch))
            offsets = [message.offset() or 0 for message in batch]
            chunks = held.admit(offsets, timestamps_ms(batch), ids, batch, discard_unkeyed=False)
            collector.resume()
            for chunk in chunks:
                held.complete_chunk(chunk)
            held.persist()
            engine.trim()
            spent += time.process_time() - began
        told = {kind: count for kind, count in engine.counters.verdicts.items() if count}
    if told != {"fresh": records - expected, "duplicate": expected}:
        raise RuntimeError(
            f"{contender.meaning}: {told} was told of {records} records, {expected} of them duplicates"
        )
    return spent / records * _MICROSECONDS


def compare(records: int, rounds: int, folder: Path) -> dict[str, float]:
    """Return the microseconds a record takes, by contender: the median of the rounds."""
    taken: dict[str, list[float]] = {name: [] for name in contenders()}
    for turn, names in enumerate(orders_of_rounds(list(taken), rounds)):
        for name in names:
            taken[name].append(measure(contenders()[name], records, folder / f"{name}-{turn}"))
            print(f"round {turn + 1}/{rounds} {name}: {taken[name][-1]:.2f} us", file=sys.stderr)
    return {name: round(statistics.median(figures), 3) for name, figures in taken.items()}


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        description="What comparing with the last ID costs, beside looking IDs up."
    )
    parser.add_argument(
        "--records", type=at_least(BATCH_RECORDS), default=500_000, help="records to send through"
    )
    parser.add_argument(
        "--rounds", type=at_least(1), default=3, help="runs of each contender; medians are reported"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="dedup-last-id-") as folder:
            figures = compare(options.records, options.rounds, Path(folder))
    except (DedupError, OSError, RuntimeError) as error:
        print(f"last_id: {error}", file=sys.stderr)
        return 1
    ratios = {name: round(figures["lookup"] / figure, 2) for name, figure in figures.items()}
    if options.json:
        print(json.dumps({"cpu_us_per_record": figures, "throughput_over_lookup": ratios}))
        return 0
    for name, contender in contenders().items():
        print(f"{name:16} {figures[name]:6.2f} us  {ratios[name]:5.2f} x lookup  {contender.meaning}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
