"""Where the microseconds go: the stages of a batch, without a broker.

    python benchmarks/hot_path.py --records 1000000
    python benchmarks/hot_path.py --records 200000 --store memory --json

Constructed messages go through the stages that `DedupConsumer` takes with a batch of 1000. Not in it: reading from
Kafka, and the unpacking of headers, which a constructed message holds ready and a received one does not.
The result goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from benchmarks.arguments import at_least
from benchmarks.contender import strategy
from benchmarks.workload import HEADER, PARTITIONS, Workload
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.client.fields import MessageFields, timestamps_ms
from dedup_sdk._kafka.deliver.maintenance import Collector
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.errors import DedupError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dedup_sdk._store.protocol import KeyStore

BATCH_RECORDS = 1000

STAGES: Final = {
    "headers": "the headers of each message (part of the digests, measured by itself)",
    "digests": "headers, IDs, SHA-256",
    "columns": "offsets and timestamps",
    "judge": "recent marks, filter, look-up, verdicts",
    "complete": "the batch is done, and the messages of one before it are freed",
    "journal": "marks and progress, one atomic write",
    "flush": "recent marks to sorted files, when there are enough",
}

_TOPIC = "hot-path"
_MICROSECONDS = 1e6


def profile(store: KeyStore, workload: Workload) -> dict[str, float]:
    """Return the microseconds a record takes in each stage: the mean over all batches."""
    seconds = dict.fromkeys(STAGES, 0.0)
    spec = strategy().id
    with Deduplicator(strategy(), store=store, group="hot-path") as engine:
        for partition in range(PARTITIONS):
            engine.open(_TOPIC, partition, low=0)
        for batch in _batches(workload):
            held = engine.partitions[_TOPIC, batch[0].partition() or 0]
            clock = _Laps()
            collector = Collector()
            collector.pause()
            MessageFields(batch).headers()
            seconds["headers"] += clock.lap()
            ids = spec.digests(MessageFields(batch))
            seconds["digests"] += clock.lap()
            offsets, stamps = [message.offset() or 0 for message in batch], timestamps_ms(batch)
            seconds["columns"] += clock.lap()
            chunks = held.admit(offsets, stamps, ids, batch, discard_unkeyed=False)
            seconds["judge"] += clock.lap()
            collector.resume()
            for chunk in chunks:
                held.complete_chunk(chunk)
            seconds["complete"] += clock.lap()
            held.persist()
            seconds["journal"] += clock.lap()
            engine.trim()
            seconds["flush"] += clock.lap()
    return {stage: round(total / workload.records * _MICROSECONDS, 3) for stage, total in seconds.items()}


class _Laps:
    """A stopwatch that gives the seconds since it was last asked."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


def _batches(workload: Workload) -> Iterator[list[Message]]:
    """The workload, a thousand records of one partition at a time, as a fetch brings them."""
    now_ms = int(time.time() * 1000)
    waiting: list[list[Message]] = [[] for _ in range(PARTITIONS)]
    for number, (dedup_id, value) in enumerate(zip(workload.ids(), workload.values(), strict=True)):
        offset, partition = divmod(number, PARTITIONS)
        stamp = (TIMESTAMP_CREATE_TIME, now_ms)
        message = Message(topic=_TOPIC, partition=partition, offset=offset, value=value, timestamp=stamp)
        message.set_headers([(HEADER, dedup_id)])
        waiting[partition].append(message)
        if len(waiting[partition]) == BATCH_RECORDS:
            yield waiting[partition]
            waiting[partition] = []
    yield from filter(None, waiting)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Where the microseconds of a batch go.")
    parser.add_argument("--records", type=at_least(1), default=1_000_000, help="records to send through")
    parser.add_argument(
        "--store", choices=("rocks", "memory"), default="rocks", help="the key store under it"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="dedup-hot-path-") as folder:
            store = RocksStore(Path(folder)) if options.store == "rocks" else MemoryStore()
            stages = profile(store, Workload(records=options.records))
    except (DedupError, OSError) as error:
        print(f"hot_path: {error}", file=sys.stderr)
        return 1
    total = round(sum(stages.values()) - stages["headers"], 3)
    if options.json:
        print(json.dumps({**stages, "total": total}))
    else:
        for stage, value in stages.items():
            print(f"{stage:8} {value:6.3f} us  {STAGES[stage]}")
        print(f"{'total':8} {total:6.3f} us  without headers, which the digests contain")
    return 0


if __name__ == "__main__":
    sys.exit(main())
