"""The price of deduplication in a transactional loop: read, write to another topic, commit both, on a real broker.

    python benchmarks/exactly_once.py
    python benchmarks/exactly_once.py --records 200000 --rounds 5 --json

Each contender reads the same topic of 4 partitions and writes each value to another one, in transactions of 1,000 and
of 100 records; they take turns, each in a group of its own. Then messages come at a steady rate, and the time is
measured from the moment when one is sent until a reader of committed records has it. The result goes to stdout,
progress to stderr. Exit status 1: a contender failed, or has written another number of records; 2: wrong usage.

bare
    the client's own consumer and producer, as in their published example: `send_offsets_to_transaction` with the
    consumer's positions. It remembers nothing.
dedup
    `DedupConsumer.transactions`, with a key store on disk.
run
    the same by `run`, with 4 workers.
streams
    Kafka Streams with ``exactly_once_v2``, a persistent store with a change log, and its own interval of commits, if
    ``--streams`` names a folder with its jars (`benchmarks/streams/pom.xml`).
ratio
    messages a second of ``dedup`` over those of ``bare``, median of the rounds.
p50_ms, p99_ms
    of a message's way at a steady rate, milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from dedup_sdk import DedupConsumer, Lookup, Window
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import header
from dedup_sdk.testing._local_kafka import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS: Final = 4
SIZES: Final = (1_000, 100)
_PATIENCE_S: Final = 30.0
_WORKERS: Final = 4
_PROGRAM: Final = Path(__file__).parent / "streams" / "ExactlyOnce.java"
_TUNED: Final[dict[str, Any]] = {"fetch.queue.backoff.ms": 1, "auto.offset.reset": "earliest", "log_level": 0}


class LoopError(Exception):
    """A loop got no message for long, or the other topic has another number of records."""


def main() -> int:
    """Measure, print, and return the exit status."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--records", type=at_least(1_000), default=100_000)
    options.add_argument("--rounds", type=at_least(1), default=3)
    options.add_argument(
        "--rate", type=at_least(1), default=1_000, help="messages a second for the way of one"
    )
    options.add_argument("--seconds", type=at_least(1), default=20, help="for how long they come")
    options.add_argument(
        "--streams", type=Path, help="a folder with the jars of Kafka Streams; else it is left out"
    )
    options.add_argument("--bootstrap", help="a broker that runs; else one is started")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    try:
        with broker_at(chosen.bootstrap) as bootstrap, tempfile.TemporaryDirectory() as folder:
            bench = Bench(bootstrap, Path(folder), chosen.streams)
            result = bench.rates(chosen.records, chosen.rounds)
            result["way"] = bench.ways(chosen.rate, chosen.seconds)
    except (LoopError, KafkaException, DedupError, OSError) as error:
        print(f"exactly_once: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(json.dumps(result) if chosen.json else text(result))
    return 0


class Bench:
    """The contenders, on one broker; ``jars``: of Kafka Streams."""

    def __init__(self, bootstrap: str, folder: Path, jars: Path | None) -> None:
        self._bootstrap, self._folder = bootstrap, folder
        self._contenders: dict[str, Callable[[str, str, str, int, int, Path], None]] = {
            "bare": bare, "dedup": dedup, "run": run,
        }  # fmt: skip
        if jars is not None:
            self._contenders["streams"] = partial(streams, jars)

    def rates(self, records: int, rounds: int) -> dict[str, Any]:
        """Return, for each size of a transaction, messages a second of each contender, and the ratio."""
        topic = create_topic(self._bootstrap, f"in-{uuid4().hex}", PARTITIONS)
        fill(self._bootstrap, topic, records)
        result: dict[str, Any] = {}
        for size in SIZES:
            # The size of a transaction is none of the settings of Kafka Streams.
            names = [name for name in self._contenders if name != "streams" or size == SIZES[0]]
            rates: dict[str, list[float]] = {name: [] for name in names}
            for number in range(rounds):
                for name in names if number % 2 else names[::-1]:
                    out = create_topic(
                        self._bootstrap, f"out-{uuid4().hex}", PARTITIONS,
                        {"message.timestamp.type": "LogAppendTime"},
                    )  # fmt: skip
                    self._contenders[name](
                        self._bootstrap, topic, out, records, size, self._folder / uuid4().hex
                    )
                    rates[name].append(records / seconds_of(self._bootstrap, out, records))
                    print(f"{size}: {name} {rates[name][-1]:,.0f} messages/s", file=sys.stderr)
            ratio = median(ours / bare for ours, bare in zip(rates["dedup"], rates["bare"], strict=True))
            result[str(size)] = {
                **{name: round(median(each)) for name, each in rates.items()},
                "ratio": round(ratio, 3),
            }
        return result

    def ways(self, rate: int, seconds: int) -> dict[str, dict[str, float]]:
        """Return percentiles of a message's way through each contender, in transactions of up to 1,000 records."""
        result = {}
        for name, contender in self._contenders.items():
            topic = create_topic(self._bootstrap, f"in-{uuid4().hex}", PARTITIONS)
            out = create_topic(self._bootstrap, f"out-{uuid4().hex}", PARTITIONS)
            count = rate * seconds
            given = (self._bootstrap, topic, out, count, SIZES[0], self._folder / uuid4().hex)
            # In a process of its own: threads of one would wait for each other.
            process = get_context("spawn").Process(target=contender, args=given)
            process.start()
            try:
                result[name] = way(self._bootstrap, topic, out, rate, count)
            finally:
                process.terminate()
                process.join()
            print(f"way of a message: {name} {result[name]}", file=sys.stderr)
        return result


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Send records of 200 bytes, each with an ID of its own."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": records + 1, "log_level": 0}
    )
    for number in range(records):
        producer.produce(topic, b"x" * 200, headers={"dedup-id": str(uuid4())}, partition=number % PARTITIONS)
    producer.flush()


def bare(bootstrap: str, topic: str, out: str, records: int, size: int, _: Path) -> None:
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


def run(bootstrap: str, topic: str, out: str, records: int, size: int, store: Path) -> None:
    """Copy with `DedupConsumer.run`."""
    config = {"bootstrap.servers": bootstrap, "group.id": f"run-{uuid4().hex}", **_TUNED}
    strategy = Lookup(id=header("dedup-id"), window=Window(days=7))
    left, lock = records, threading.Lock()

    def handle(message: Message, produce: Callable[..., None]) -> None:
        nonlocal left
        produce(out, message.value())
        with lock:
            left -= 1
            if left == 0:
                consumer.stop()

    with DedupConsumer(config, dedup=strategy, store=store, idle_timeout=_PATIENCE_S) as consumer:
        consumer.subscribe([topic])
        transactions = consumer.transactions(max_messages=size)
        consumer.run(handle, transactions=transactions, workers=_WORKERS, max_in_flight=2 * size)


def streams(jars: Path, bootstrap: str, topic: str, out: str, records: int, size: int, state: Path) -> None:
    """Copy with Kafka Streams until a reader sees all records."""
    del size
    command = ["java", "-Xmx1g", "-cp", f"{jars}/*", str(_PROGRAM)]
    command += [bootstrap, topic, out, f"streams-{uuid4().hex}", str(state)]
    with subprocess.Popen(command) as process:
        try:
            for _ in committed(bootstrap, out, records):
                pass
        finally:
            process.terminate()


def committed(bootstrap: str, out: str, records: int) -> Iterator[Message]:
    """Yield so many records as a reader of committed ones sees them; raise `LoopError` if none comes for long."""
    config = {"bootstrap.servers": bootstrap, "group.id": f"check-{uuid4().hex}", **_TUNED}
    seen, heard_at = 0, time.monotonic()
    with Consumer(config) as reader:
        reader.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])
        while seen < records:
            message = reader.poll(0.1)
            if message is not None and message.error() is None:
                seen, heard_at = seen + 1, time.monotonic()
                yield message
            elif time.monotonic() > heard_at + _PATIENCE_S:
                raise LoopError(f"{seen} of {records} records were written")


def seconds_of(bootstrap: str, out: str, records: int) -> float:
    """Return the seconds between the first record and the last one, by the broker's clock; check their number."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": f"check-{uuid4().hex}",
        "enable.partition.eof": True,
        **_TUNED,
    }
    stamps = list[int]()
    ended = 0
    with Consumer(config) as reader:
        reader.assign([TopicPartition(out, number, 0) for number in range(PARTITIONS)])
        while ended < PARTITIONS:
            for message in reader.consume(10_000, 1):
                ended += message.error() is not None
                if message.error() is None:
                    stamps.append(message.timestamp()[1])
    if len(stamps) != records:
        raise LoopError(f"{len(stamps)} records were written, not {records}")
    return max(1, max(stamps) - min(stamps)) / 1_000


def way(bootstrap: str, topic: str, out: str, rate: int, count: int) -> dict[str, float]:
    """Send messages at a steady rate; return percentiles of the time until a reader of committed ones has each."""
    with sending(bootstrap, topic, rate, count):
        ways = [time.time_ns() - int(message.value() or b"") for message in committed(bootstrap, out, count)]
    # Those of the first seconds came while the contender started.
    steady = sorted(ways[count // 2 :])
    return {f"p{n}_ms": round(steady[len(steady) * n // 100] / 1e6, 1) for n in (50, 99)}


@contextmanager
def sending(bootstrap: str, topic: str, rate: int, count: int) -> Iterator[None]:
    """Send messages with the time as their value, on a thread."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})

    def send() -> None:
        began = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
            producer.produce(
                topic,
                b"%d" % time.time_ns(),
                headers={"dedup-id": str(uuid4())},
                partition=number % PARTITIONS,
            )
            producer.poll(0)
        producer.flush()

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def text(result: dict[str, Any]) -> str:
    """The result for people."""
    rows = []
    for name, figures in result.items():
        for contender, figure in figures.items():
            title = "way" if name == "way" else f"transactions of {name}"
            rows.append(f"{title:24}{contender:10}{figure}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
