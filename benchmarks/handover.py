"""How long a rebalance takes where stores are handed over on one host, beside the same rebalance of plain consumers.

    python benchmarks/handover.py
    python benchmarks/handover.py --shapes 64x100000 --rounds 3 --json

A shape is partitions x IDs in each. One member, a process, holds all partitions, and each partition gets 20
records a second; another joins on the same ``store=`` and takes half of them; the first gives all back and takes
its half again (eager protocol: the worst case). The time of the rebalance itself is seen with plain consumers in
the same run. The result goes to stdout, progress to stderr. Exit status 1: something failed; 2: wrong usage.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.arguments import at_least
from benchmarks.handover_member import PATIENCE_S, STRATEGY, Member
from benchmarks.preload import beginning_text, names
from dedup_sdk._marks import DIGEST_BYTES, Marks, Progress
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk.errors import DedupError
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from types import TracebackType

GROUP = "members"
FLUSH_MARKS = 500_000
EVERY_S = 0.05
"""Seconds between two records of a partition."""
SETTLE_S = 1.0
CONFIG: dict[str, Any] = {
    "auto.offset.reset": "latest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 100, "log_level": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One shape, seconds: medians of the rounds, of each the slower member.

    ``plain_s``: from the joining member's subscription until both plain consumers have had a record of each
    partition of their half; ``dedup_s``: until both of ours have. ``given_s``: the poll in which ours gives its
    partitions back. ``taken_s``: from the assignment until ours has had a record of each partition. ``beyond_s``:
    both together, of one member, less the same of the plain consumers. ``cpu_s``: the time both of ours were at work,
    rather than waiting for the broker, the disk or a processor; less that of plain consumers too.
    """

    partitions: int
    ids: int
    plain_s: float
    dedup_s: float
    given_s: float
    taken_s: float
    beyond_s: float
    cpu_s: float


class Timing(NamedTuple):
    """One handover: as in `Handover`, ``beyond_s`` and ``cpu_s`` with nothing taken off."""

    whole_s: float
    given_s: float
    taken_s: float
    beyond_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.whole_s:.2f} s (given {self.given_s:.3f}, taken {self.taken_s:.3f}, at work {self.cpu_s:.3f})"


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
            group=f"{GROUP}-ours",
            topic=topic,
            partition=partition,
            topic_id=topic_id,
            id_spec=str(STRATEGY.id),
        )
        held = store.open(identity, STRATEGY.window_of(topic))
        held.reset(progress)
        for start in range(0, ids, FLUSH_MARKS):
            offsets = np.arange(start, min(start + FLUSH_MARKS, ids), dtype=np.int64)
            timestamps = ends_ms - week_ms * 6 // 7 * (ids - offsets) // ids
            held.flush(progress, Marks(rng.bytes(DIGEST_BYTES * len(offsets)), offsets - ids, timestamps))
        held.close()
    store.close()


class Traffic:
    """Records that keep coming to every partition of a topic, each with an ID of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
        self._topic, self._partitions = topic, partitions
        self._end = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()
        self._producer.flush(PATIENCE_S)

    def _run(self) -> None:
        while not self._end.wait(EVERY_S):
            for partition in range(self._partitions):
                self._producer.produce(
                    self._topic, b"", partition=partition, headers=[("dedup-id", uuid4().bytes)]
                )
            self._producer.poll(0)


def hand_over(config: dict[str, Any], topic: str, partitions: int, store: Path | None) -> Timing:
    """Let a second member join one that has all partitions; return the seconds of the slower of both."""
    config = {**config, "group.id": f"{GROUP}-{'plain' if store is None else 'ours'}"}
    with (
        Traffic(config["bootstrap.servers"], topic, partitions),
        Member(config, topic, store) as first,
        Member(config, topic, store) as second,
    ):
        first.subscribe()
        first.wait(partitions)
        time.sleep(SETTLE_S)
        second.subscribe()
        taken = second.wait(partitions // 2)
        given = first.wait(partitions - partitions // 2)
        return Timing(
            whole_s=max(taken.ready_at, given.ready_at) - taken.began_at, given_s=given.given_s,
            taken_s=max(taken.taken_s, given.taken_s), beyond_s=max(given.given_s + given.taken_s, taken.taken_s),
            cpu_s=max(given.cpu_s, taken.cpu_s),
        )  # fmt: skip


def measure(bootstrap: str, partitions: int, ids: int, rounds: int) -> Handover:
    """Hand one shape over, plain and ours in turn, each on a topic of its own."""
    plain: list[Timing] = []
    ours: list[Timing] = []
    config = {**CONFIG, "bootstrap.servers": bootstrap}
    topics = [f"{kind}-{partitions}x{ids}" for kind in ("plain", "ours")]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, partitions) for topic in topics]).values():
        made.result(PATIENCE_S)
    with tempfile.TemporaryDirectory(prefix="dedup-handover-") as temporary:
        store = Path(temporary)
        fill(store, topics[1], partitions, ids, bootstrap)
        consumer = Consumer({**config, "group.id": f"{GROUP}-ours"})
        consumer.commit(
            offsets=[
                TopicPartition(
                    topics[1], number, 0, beginning_text(0, STRATEGY, f"{GROUP}-ours", topics[1], number)
                )
                for number in range(partitions)
            ],
            asynchronous=False,
        )
        consumer.close()
        for turn in range(rounds):
            plain.append(hand_over(config, topics[0], partitions, None))
            ours.append(hand_over(config, topics[1], partitions, store))
            print(
                f"round {turn + 1}/{rounds} {partitions}x{ids}: plain {plain[-1]}, ours {ours[-1]}",
                file=sys.stderr,
            )
    middle, middle_plain = (Timing(*map(median, zip(*kind, strict=True))) for kind in (ours, plain))
    return Handover(
        partitions=partitions,
        ids=ids,
        plain_s=round(middle_plain.whole_s, 3),
        dedup_s=round(middle.whole_s, 3),
        given_s=round(middle.given_s, 3),
        taken_s=round(middle.taken_s, 3),
        beyond_s=round(middle.beyond_s - middle_plain.beyond_s, 3),
        cpu_s=round(middle.cpu_s - middle_plain.cpu_s, 3),
    )


def main() -> int:
    """Measure every shape, print its time, and return the exit status."""
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
