"""The price of one message at a steady rate: a `poll()` loop of this package beside a bare one.

    python benchmarks/steady.py
    python benchmarks/steady.py --rate 10000 --seconds 30 --json

Both loops are processes of their own, and read the same topic at the same time, so that they share whatever else the
machine does. A third process sends. The result goes to stdout, everything else to stderr. Exit status 1: a loop failed,
or lost or doubled a message; 2: wrong usage.

thread_us
    CPU time of the polling thread for one message, microseconds.
process_us
    CPU time of the whole process for one message: librdkafka's and RocksDB's threads are part of it.
latency_ms
    from the call that sent a message to the return of `poll()`: 50th, 99th and 99.9th percentile, milliseconds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, Final
from uuid import uuid4

import numpy as np
from confluent_kafka import Consumer, Producer

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from benchmarks.workload import HEADER
from dedup_sdk.errors import DedupError
from dedup_sdk.testing._local_kafka import create_topic

TOPIC: Final = "steady"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 200
WARM_UP_S: Final = 3.0
_PATIENCE_S: Final = 60.0
_MOST_SENT_ALONE: Final = 3_000
_LINGER_MS: Final = 2
_PERCENTILES: Final = (50, 99, 99.9)
_LOOPS: Final = ("bare", "dedup")
_STOP: Final = b"stop"


def main() -> int:
    """Measure, print, and return the exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in _LOOPS:
        read(*sys.argv[1:])
        return 0
    if len(sys.argv) > 1 and sys.argv[1] == "send":
        send(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
        return 0
    options = _options()
    try:
        with (
            broker_at(options.bootstrap) as bootstrap,
            tempfile.TemporaryDirectory(prefix="dedup-benchmark-") as folder,
        ):
            rounds = [
                one_round(bootstrap, Path(folder), options.rate, options.seconds)
                for _ in range(options.rounds)
            ]
    except (SteadyError, DedupError, OSError) as error:
        print(f"steady: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    result = summary(rounds) | {
        "rate": options.rate,
        "seconds": options.seconds,
        "rounds": options.rounds,
    }
    print(json.dumps(result) if options.json else text(result))
    return 0


class SteadyError(Exception):
    """A loop or the sender failed, or a loop did not get each message once; one line."""


def one_round(bootstrap: str, folder: Path, rate: int, seconds: int) -> dict[str, dict[str, Any]]:
    """Send for ``seconds`` and return the readings of both loops, by their names."""
    topic = create_topic(bootstrap, f"{TOPIC}-{uuid4().hex}", PARTITIONS)
    loops = {name: _child(name, bootstrap, topic, str(folder / uuid4().hex)) for name in _LOOPS}
    for loop in loops.values():
        assert loop.stdout is not None
        loop.stdout.readline()
    sender = _child("send", bootstrap, topic, str(rate), str(WARM_UP_S + seconds))
    sent = int(_end(sender, "sender"))
    readings = {name: json.loads(_end(loop, name)) for name, loop in loops.items()}
    for name, reading in readings.items():
        if reading["messages"] != sent:
            raise SteadyError(f"{name} got {reading['messages']} messages instead of {sent}")
    return readings


def _child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def _end(child: subprocess.Popen[str], name: str) -> str:
    out, _ = child.communicate(timeout=_PATIENCE_S * 10)
    if child.returncode:
        raise SteadyError(f"{name} ended with status {child.returncode}: its error is above")
    return out.splitlines()[-1]


def send(bootstrap: str, topic: str, rate: int, seconds: float) -> None:
    """Send at a steady rate, then a last message to each partition; print how many were sent before those.

    At high rates a request bears some milliseconds of messages: with one each the broker would be the limit.
    """
    linger_ms = _LINGER_MS if rate > _MOST_SENT_ALONE else 0
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": linger_ms})
    filler = b"x" * VALUE_BYTES
    began, count = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < seconds:
        while count < now * rate:
            producer.produce(
                topic,
                b"%d %s" % (time.time_ns(), filler),
                headers={HEADER: str(uuid4()).encode()},
                partition=count % PARTITIONS,
            )
            count += 1
        producer.poll(0)
        time.sleep(max(0.0, count / rate - (time.perf_counter() - began)))
    for partition in range(PARTITIONS):
        producer.produce(topic, _STOP, headers={HEADER: f"stop-{partition}".encode()}, partition=partition)
    if left := producer.flush(_PATIENCE_S):
        raise SteadyError(f"{left} messages could not be sent")
    print(count)


def read(name: str, bootstrap: str, topic: str, store: str) -> None:
    """Poll until the last message of each partition; print a line when reading begins, and the reading as JSON."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": f"steady-{uuid4().hex}",
        "auto.offset.reset": "earliest",
    }
    if name == "dedup":
        from dedup_sdk import DedupConsumer, Lookup

        consumer: Consumer = DedupConsumer(
            settings, dedup=Lookup(id=f"header:{HEADER}", window="7d"), store=store
        )
    else:
        consumer = Consumer(settings)
    consumer.subscribe([topic])
    until = time.monotonic() + _PATIENCE_S
    while len(consumer.assignment()) < PARTITIONS and time.monotonic() < until:
        consumer.poll(0.1)
    print("reading", flush=True)
    latencies_ns: list[int] = []
    stops = messages = warm = 0
    warm_at = None
    thread_began_s = process_began_s = 0.0
    while stops < PARTITIONS:
        message = consumer.poll(1.0)
        if message is None:
            continue
        value = message.value() or b""
        if value == _STOP:
            stops += 1
            continue
        messages += 1
        now_ns = time.time_ns()
        if warm_at is None:
            warm_at = now_ns + WARM_UP_S * 1e9
        if now_ns >= warm_at:
            if not warm:
                thread_began_s, process_began_s = time.thread_time(), time.process_time()
            warm += 1
            latencies_ns.append(now_ns - int(value.split(b" ", 1)[0]))
    thread_s, process_s = time.thread_time() - thread_began_s, time.process_time() - process_began_s
    consumer.close()
    print(
        json.dumps({
            "messages": messages,
            "thread_us": thread_s / warm * 1e6,
            "process_us": process_s / warm * 1e6,
            "latency_ms": [each / 1e6 for each in np.percentile(latencies_ns, _PERCENTILES).tolist()],
        })
    )  # fmt: skip


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over the rounds; ratios are medians of the ratios of the rounds, latencies differences of medians."""
    result: dict[str, Any] = {}
    for name in _LOOPS:
        result[name] = {
            "thread_us": round(median(each[name]["thread_us"] for each in rounds), 1),
            "process_us": round(median(each[name]["process_us"] for each in rounds), 1),
            "latency_ms": [
                round(median(each[name]["latency_ms"][at] for each in rounds), 2)
                for at in range(len(_PERCENTILES))
            ],
        }
    for what in ("thread_us", "process_us"):
        result[f"{what}_ratio"] = round(
            median(each["dedup"][what] / each["bare"][what] for each in rounds), 2
        )
    return result


def text(result: dict[str, Any]) -> str:
    """The result for people."""
    rows = [f"{'loop':8}{'thread us':>10}{'process us':>12}{'p50 ms':>9}{'p99 ms':>9}{'p99.9 ms':>10}"]
    for name in _LOOPS:
        of = result[name]
        p50, p99, p999 = of["latency_ms"]
        rows.append(
            f"{name:8}{of['thread_us']:10.1f}{of['process_us']:12.1f}{p50:9.2f}{p99:9.2f}{p999:10.2f}"
        )
    rows.append(f"ratio   {result['thread_us_ratio']:10.2f}{result['process_us_ratio']:12.2f}")
    rows.append(
        f"{result['rate']:,} messages a second for {result['seconds']} s, {result['rounds']} rounds, medians"
    )
    return "\n".join(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The price of one message at a steady rate.")
    parser.add_argument("--bootstrap", help="host:port of a broker to measure on (a broker is started)")
    parser.add_argument("--rate", type=at_least(1), default=1000, help="messages a second (1000)")
    parser.add_argument("--seconds", type=at_least(1), default=20, help="seconds that count (20)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds (3)")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
