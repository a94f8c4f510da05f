"""How long a rebalance takes where stores are handed over on one host, beside the same rebalance of plain consumers.

    python benchmarks/handover.py
    python benchmarks/handover.py --shapes 64x100000 --rounds 3 --json

A shape is partitions x IDs in each. One member holds all partitions; another joins, in the same process and on the same ``store=``,
and takes half of them; the first gives all back and takes its half again (eager protocol: the worst case). What the rebalance itself takes is
seen with plain consumers in the same run. Both members share one interpreter. The result goes to stdout, progress to stderr. Exit status 1: something failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.arguments import at_least
from benchmarks.preload import names
from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.errors import DedupError
from dedup_sdk.kafka.metadata import CommitMetadata
from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.progress import Progress
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP = "members"
STRATEGY = Lookup(id=header("dedup-id"), window=Window(days=7))
FLUSH_MARKS = 500_000
PATIENCE_S = 60.0
CONFIG: dict[str, Any] = {
    "group.id": GROUP, "auto.offset.reset": "earliest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 100,
    "enable.auto.commit": False, "log_level": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One shape, seconds: medians of the rounds, of each the slower member.

    ``plain_s``: from the joining member's subscription until both plain consumers have their half; ``dedup_s``: until both of ours
    deliver from it. ``given_s``: the poll in which ours gives its partitions back. ``taken_s``: from the assignment until ours delivers
    from all that it was assigned. ``beyond_s``: ``given_s`` and ``taken_s`` together, less the same of the plain consumers.
    """

    partitions: int
    ids: int
    plain_s: float
    dedup_s: float
    given_s: float
    taken_s: float
    beyond_s: float


def fill(folder: Path, topic: str, partitions: int, ids: int, bootstrap: str) -> None:
    """Make stores as after a week: marks in sorted files, all of them below the offset that the group has committed."""
    cluster, topic_id = names(bootstrap, topic)
    store = RocksStore(folder)
    rng = np.random.default_rng(1)
    week_ms, ends_ms = 7 * 86_400_000, int(time.time() * 1000)
    progress = Progress(low=0, high=0, committed=0)
    for partition in range(partitions):
        identity = Identity(
            cluster=cluster,
            group=GROUP,
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            id_spec=str(STRATEGY.id),
        )
        held = store.open(identity, STRATEGY.window)
        held.reset(progress)
        for start in range(0, ids, FLUSH_MARKS):
            offsets = np.arange(start, min(start + FLUSH_MARKS, ids), dtype=np.int64)
            timestamps = ends_ms - week_ms * 6 // 7 * (ids - offsets) // ids
            held.flush(progress, Marks(rng.bytes(DIGEST_BYTES * len(offsets)), offsets - ids, timestamps))
        held.close()
    store.close()


class Member:
    """A consumer in a thread of its own that polls until it is told to end."""

    def __init__(self, make: Callable[[], Consumer], topic: str) -> None:
        self.began_at = time.perf_counter()
        self.ready_at = self.given_s = self.taken_s = 0.0
        self.count = 0
        self._assigned_at = self._revoked_at = 0.0
        self._make, self._topic = make, topic
        self._end = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait(self, count: int) -> None:
        """Return when it delivers from so many partitions; raises what ended it, or TimeoutError."""
        until = time.perf_counter() + PATIENCE_S
        while self.count != count:
            if self._failure is not None:
                raise self._failure
            if time.perf_counter() > until:
                raise TimeoutError(
                    f"{self.count} of {count} partitions came within {PATIENCE_S:.0f} s: try again"
                )
            time.sleep(0.005)

    def end(self) -> None:
        """Let it leave the group."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            consumer = self._make()
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked)
            while not self._end.is_set():
                consumer.poll(0.01)
                self._look(consumer)
            consumer.close()
        except (DedupError, KafkaException, OSError) as error:
            self._failure = error

    def _look(self, consumer: Consumer) -> None:
        now = time.perf_counter()
        if self._revoked_at:
            self.given_s, self._revoked_at, self.count = now - self._revoked_at, 0.0, 0
        mine = consumer.assignment()
        ready = mine
        if isinstance(consumer, DedupConsumer):
            ready = [tp for tp in consumer.position(mine) if tp.offset >= 0]
        if self._assigned_at and mine and len(ready) == len(mine):
            self.taken_s, self.ready_at, self.count = now - self._assigned_at, now, len(ready)
            self._assigned_at = 0.0

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._assigned_at = time.perf_counter()

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            self._revoked_at = time.perf_counter()


def hand_over(make: Callable[[], Consumer], topic: str, partitions: int) -> tuple[float, float, float]:
    """Let a second member join; return the seconds of the whole, of giving and of taking, the slower member's."""
    first = Member(make, topic)
    try:
        first.wait(partitions)
        second = Member(make, topic)
        try:
            for member, share in ((second, partitions // 2), (first, partitions - partitions // 2)):
                member.wait(share)
            ready_at = max(first.ready_at, second.ready_at)
            return ready_at - second.began_at, first.given_s, max(first.taken_s, second.taken_s)
        finally:
            second.end()
    finally:
        first.end()


def measure(bootstrap: str, partitions: int, ids: int, rounds: int) -> Handover:
    """Hand one shape over, plain and ours in turn, on a topic of its own."""
    plain: list[tuple[float, float, float]] = []
    ours: list[tuple[float, float, float]] = []
    config = {**CONFIG, "bootstrap.servers": bootstrap}
    topic = f"handover-{partitions}x{ids}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions)])[topic].result(PATIENCE_S)
    with tempfile.TemporaryDirectory(prefix="dedup-handover-") as temporary:
        filled, store = Path(temporary, "filled"), Path(temporary, "store")
        fill(filled, topic, partitions, ids, bootstrap)
        text = str(CommitMetadata(low=0, complete=True))
        consumer = Consumer(config)
        consumer.commit(
            offsets=[TopicPartition(topic, number, 0, text) for number in range(partitions)],
            asynchronous=False,
        )
        consumer.close()
        for turn in range(rounds):
            plain.append(hand_over(lambda: Consumer(config), topic, partitions))
            shutil.copytree(filled, store)
            ours.append(
                hand_over(lambda: DedupConsumer(config, dedup=STRATEGY, store=store), topic, partitions)
            )
            shutil.rmtree(store)
            print(f"round {turn + 1}/{rounds} {partitions}x{ids}: {ours[-1][0]:.2f} s", file=sys.stderr)
    whole, given, taken = (median(column) for column in zip(*ours, strict=True))
    plain_whole, plain_given, plain_taken = (median(column) for column in zip(*plain, strict=True))
    return Handover(
        partitions=partitions,
        ids=ids,
        plain_s=round(plain_whole, 3),
        dedup_s=round(whole, 3),
        given_s=round(given, 3),
        taken_s=round(taken, 3),
        beyond_s=round(given + taken - plain_given - plain_taken, 3),
    )


def main() -> int:
    """Measure every shape, print what it took, and return the exit status."""
    parser = argparse.ArgumentParser(description="Time of a rebalance that hands stores over.")
    parser.add_argument(
        "--shapes", type=_shapes, default=[(64, 100_000), (4, 10_000_000)], help="PARTITIONSxIDS, by commas"
    )
    parser.add_argument("--rounds", type=at_least(1), default=3, help="how often each is measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args()
    try:
        with LocalKafka() as kafka:
            results = [
                measure(kafka.bootstrap, partitions, ids, options.rounds)
                for partitions, ids in options.shapes
            ]
    except (DedupError, KafkaException, OSError) as error:
        print(f"handover: {error}", file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"shapes": [asdict(each) for each in results]}))
        return 0
    titles = tuple(asdict(results[0]))
    rows = [titles, *(tuple(f"{value:,}" for value in asdict(each).values()) for each in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    print("\n".join("  ".join(map(str.rjust, row, widths)) for row in rows))
    return 0


def _shapes(text: str) -> list[tuple[int, int]]:
    shapes = []
    for part in text.split(","):
        partitions, _, ids = part.partition("x")
        if not (partitions.isdecimal() and ids.isdecimal() and int(partitions) > 1 and int(ids) > 0):
            raise argparse.ArgumentTypeError(f"{part!r} is not PARTITIONSxIDS with two partitions or more")
        shapes.append((int(partitions), int(ids)))
    return shapes


if __name__ == "__main__":
    sys.exit(main())
