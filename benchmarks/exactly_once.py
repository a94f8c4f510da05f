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
loop
    the same loop with `DedupConsumer`, a key store on disk, and `transaction_offsets` in place of positions.
dedup
    `DedupConsumer.transactions`, with a key store on disk; each record gets a header with its ID.
run
    the same by `run`, with 4 workers.
streams
    Kafka Streams with ``exactly_once_v2``, a persistent store with a change log, and its own interval of commits, if
    ``--streams`` names a folder with its jars (`benchmarks/streams/pom.xml`).
cpu_us
    CPU time of the thread that loops, microseconds a message; of ``run`` without its workers.
ratio, loop_ratio
    messages a second of ``dedup``, and of ``loop``, over those of ``bare``, median of the rounds.
p50_ms, p99_ms
    of a message's way at a steady rate, milliseconds.
restart
    with so many IDs in its store (``--ids``) ``dedup``, and ``streams``, is killed (SIGKILL) while messages come, and
    started again on the same disk, as the same member of its group. ``seconds``: from the start of the process until
    a reader of committed records gets its first one; ``doubled``, ``lost``: IDs that are in the output twice, and not
    at all, when all were sent and some of all again.
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

import numpy as np
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from dedup_sdk import DedupConsumer, Lookup, Window
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import header
from dedup_sdk.testing._local_kafka import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import SpawnProcess

PARTITIONS: Final = 4
SIZES: Final = (1_000, 100)
_PATIENCE_S: Final = 30.0
_LOAD_S: Final = 300.0
_WORKERS: Final = 4
_MORE: Final = 100_000
"""Messages that come while a contender is killed, and behind that."""
_AT_WORK_S: Final = 2.0
_SCATTER: Final = 0x9E3779B97F4A7C15F39CC0605CEDC835
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
        "--ids", type=at_least(0), default=1_000_000, help="in the store at the restart; 0: it is left out"
    )
    options.add_argument("--only-restart", action="store_true", help="measure nothing but the restart")
    options.add_argument(
        "--streams", type=Path, help="a folder with the jars of Kafka Streams; else it is left out"
    )
    options.add_argument("--bootstrap", help="a broker that runs; else one is started")
    options.add_argument("--json", action="store_true")
    chosen = options.parse_args()
    try:
        with broker_at(chosen.bootstrap) as bootstrap, tempfile.TemporaryDirectory() as folder:
            bench = Bench(bootstrap, Path(folder), chosen.streams)
            result: dict[str, Any] = {}
            if not chosen.only_restart:
                result = bench.rates(chosen.records, chosen.rounds)
                result["way"] = bench.ways(chosen.rate, chosen.seconds)
            if chosen.ids:
                result["restart"] = bench.restarts(chosen.ids)
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
        self._bootstrap, self._folder, self._jars = bootstrap, folder, jars
        self._contenders: dict[str, Callable[[str, str, str, int, int, Path], None]] = {
            "bare": bare, "loop": loop, "dedup": dedup, "run": run,
        }  # fmt: skip
        if jars is not None:
            self._contenders["streams"] = partial(streams, jars)

    def rates(self, records: int, rounds: int) -> dict[str, Any]:
        """Return, for each size of a transaction, messages a second of each contender, and the ratio."""
        topic = create_topic(self._bootstrap, f"in-{uuid4().hex}", PARTITIONS)
        fill(self._bootstrap, topic, range(records), b"x" * 200)
        result: dict[str, Any] = {}
        for size in SIZES:
            # The size of a transaction is none of the settings of Kafka Streams.
            names = [name for name in self._contenders if name != "streams" or size == SIZES[0]]
            rates: dict[str, list[float]] = {name: [] for name in names}
            cpu_us: dict[str, list[float]] = {name: [] for name in names}
            for number in range(rounds):
                for name in names if number % 2 else names[::-1]:
                    out = create_topic(
                        self._bootstrap, f"out-{uuid4().hex}", PARTITIONS,
                        {"message.timestamp.type": "LogAppendTime"},
                    )  # fmt: skip
                    began = time.thread_time()
                    self._contenders[name](
                        self._bootstrap, topic, out, records, size, self._folder / uuid4().hex
                    )
                    cpu_us[name].append((time.thread_time() - began) / records * 1e6)
                    rates[name].append(records / seconds_of(self._bootstrap, out, records))
                    print(f"{size}: {name} {rates[name][-1]:,.0f} messages/s", file=sys.stderr)
            result[str(size)] = {
                **{name: round(median(each)) for name, each in rates.items()},
                "cpu_us": {name: round(median(each), 2) for name, each in cpu_us.items()},
                "ratio": ratio(rates["dedup"], rates["bare"]),
                "loop_ratio": ratio(rates["loop"], rates["bare"]),
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

    def restarts(self, ids: int) -> dict[str, dict[str, float]]:
        """Return seconds from a start after a kill until the first output, and the IDs doubled and lost."""
        result = {}
        for name in ("dedup", "streams") if self._jars else ("dedup",):
            topic = create_topic(self._bootstrap, f"in-{uuid4().hex}", PARTITIONS)
            out = create_topic(self._bootstrap, f"out-{uuid4().hex}", PARTITIONS)
            member = f"{name}-{uuid4().hex}"
            fill(self._bootstrap, topic, range(ids))
            start = partial(self._started, name, topic, out, member)
            result[name] = restart(self._bootstrap, topic, out, ids, start)
            print(f"restart with {ids:,} IDs: {name} {result[name]}", file=sys.stderr)
        return result

    def _started(
        self, name: str, topic: str, out: str, member: str
    ) -> subprocess.Popen[bytes] | SpawnProcess:
        """Start a contender as a member of its group, in a process of its own; whoever has it kills it."""
        disk = self._folder / member
        if name == "streams" and self._jars is not None:
            return subprocess.Popen(_java(self._jars, self._bootstrap, topic, out, member, disk))
        given = (self._bootstrap, topic, out, sys.maxsize, 10 * SIZES[0], disk, member)
        process = get_context("spawn").Process(target=dedup, args=given, daemon=True)
        process.start()
        return process


def restart(
    bootstrap: str,
    topic: str,
    out: str,
    ids: int,
    start: Callable[[], subprocess.Popen[bytes] | SpawnProcess],
) -> dict[str, float]:
    """Have a contender copy so many IDs, kill it while more come, start it again, and look at its output."""
    seen = Output(bootstrap, out)
    process = start()
    try:
        seen.read_until(ids)
        fill(bootstrap, topic, range(ids, ids + _MORE))
        time.sleep(_AT_WORK_S)
        process.kill()
        # Some of those before, some of the last ones, and new ones.
        fill(bootstrap, topic, range(0, ids + _MORE, max(1, ids // _MORE)))
        fill(bootstrap, topic, range(ids + _MORE, ids + 2 * _MORE))
        seen.read_rest()
        began = time.monotonic()
        process = start()
        seen.read_until(seen.count + 1)
        seconds = time.monotonic() - began
        seen.read_until(ids + 2 * _MORE)
        seen.read_rest()
    finally:
        process.kill()
    copies = np.bincount(np.concatenate(seen.numbers), minlength=ids + 2 * _MORE)
    return {
        "seconds": round(seconds, 2),
        "doubled": int(np.maximum(copies - 1, 0).sum()),
        "lost": int((copies == 0).sum()),
    }


class Output:
    """A reader of committed records, whose values are numbers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.numbers: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        self.count = 0
        config = {"bootstrap.servers": bootstrap, "group.id": f"check-{uuid4().hex}", **_TUNED}
        self._reader = Consumer(config)
        self._reader.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])

    def read_until(self, count: int) -> None:
        """Read so many records in all; raise `LoopError` if none comes for long."""
        heard_at = time.monotonic()
        while self.count < count:
            if self._read(0.05):
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + _LOAD_S:
                raise LoopError(f"{self.count} of {count} records were written")

    def read_rest(self) -> None:
        """Read on until nothing comes for a while."""
        heard_at = time.monotonic()
        while time.monotonic() < heard_at + _AT_WORK_S:
            if self._read(0.2):
                heard_at = time.monotonic()

    def _read(self, timeout_s: float) -> int:
        values = [
            each.value() or b"" for each in self._reader.consume(10_000, timeout_s) if each.error() is None
        ]
        self.numbers.append(np.frombuffer(b"".join(values), np.int64))
        self.count += len(values)
        return len(values)


def fill(bootstrap: str, topic: str, numbers: range, value: bytes = b"") -> None:
    """Send a record for each number, with an ID of its own; without a value it is the number."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
    for number in numbers:
        # Like random ones: no two neighbours are near to each other.
        ident = f"{number * _SCATTER % 2**128:032x}"
        while True:
            try:
                producer.produce(
                    topic,
                    value or number.to_bytes(8, sys.byteorder),
                    headers={"dedup-id": ident},
                    partition=number % PARTITIONS,
                )
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush()


def ratio(ours: list[float], theirs: list[float]) -> float:
    """Return the median of the ratios, round by round."""
    return round(median(own / bare for own, bare in zip(ours, theirs, strict=True)), 3)


def bare(bootstrap: str, topic: str, out: str, records: int, size: int, _: Path) -> None:
    """Copy with the client alone."""
    group = f"bare-{uuid4().hex}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "log_level": 0})
    producer.init_transactions()
    config = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False, **_TUNED}
    with Consumer(config) as consumer:
        for messages in batches(consumer, topic, records, size):
            producer.begin_transaction()
            for message in messages:
                producer.produce(out, message.value())
            positions: list[TopicPartition] = consumer.position(consumer.assignment())
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
            producer.commit_transaction()


def loop(bootstrap: str, topic: str, out: str, records: int, size: int, store: Path) -> None:
    """Copy with the loop of `bare`, and `DedupConsumer`."""
    group = f"loop-{uuid4().hex}"
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": group, "log_level": 0})
    producer.init_transactions()
    config = {"bootstrap.servers": bootstrap, "group.id": group, **_TUNED}
    strategy = Lookup(id=header("dedup-id"), window=Window(days=7))
    with DedupConsumer(config, dedup=strategy, store=store, completion="explicit") as consumer:
        for messages in batches(consumer, topic, records, size):
            member = consumer.consumer_group_metadata()
            producer.begin_transaction()
            for message in messages:
                producer.produce(out, message.value())
            offsets = consumer.transaction_offsets(messages)
            producer.send_offsets_to_transaction(offsets, member)
            producer.commit_transaction()
            consumer.transaction_committed(messages, offsets)


def batches(consumer: Consumer, topic: str, records: int, size: int) -> Iterator[list[Message]]:
    """Yield the messages of a topic until there were so many; raise `LoopError` if none comes for long."""
    consumer.subscribe([topic])
    left, heard_at = records, time.monotonic()
    while left > 0:
        if messages := consumer.consume(size, 0.1):
            left, heard_at = left - len(messages), time.monotonic()
            yield messages
        elif time.monotonic() > heard_at + _PATIENCE_S:
            raise LoopError(f"the loop gets no message; {left} of {records} are missing")


def dedup(
    bootstrap: str, topic: str, out: str, records: int, size: int, store: Path, member: str = ""
) -> None:
    """Copy with `DedupConsumer.transactions`; ``member``: as this one of its group, which has no other."""
    config = {"bootstrap.servers": bootstrap, "group.id": member or f"dedup-{uuid4().hex}", **_TUNED}
    own = {"transactional.id": member} if member else {}
    config |= {"group.instance.id": member} if member else {}
    strategy = Lookup(id=header("dedup-id"), window=Window(days=7))
    left = records
    with DedupConsumer(config, dedup=strategy, store=store, idle_timeout=_PATIENCE_S) as consumer:
        consumer.subscribe([topic])
        with consumer.transactions(own, max_messages=size) as transactions:
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
    with subprocess.Popen(_java(jars, bootstrap, topic, out, f"streams-{uuid4().hex}", state)) as process:
        try:
            for _ in committed(bootstrap, out, records):
                pass
        finally:
            process.terminate()


def _java(jars: Path, bootstrap: str, topic: str, out: str, application: str, state: Path) -> list[str]:
    program = ["java", "-Xmx1g", "-cp", f"{jars}/*", str(_PROGRAM)]
    return [*program, bootstrap, topic, out, application, str(state)]


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
            title = f"transactions of {name}" if name.isdigit() else name
            rows.append(f"{title:24}{contender:12}{figure}")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
