"""The price of being watched: loops with a collector that is scraped each second, and with traces sampled at 1 %.

    python benchmarks/observed.py
    python benchmarks/observed.py --records 1000000 --rounds 5 --json

Each loop is a process of its own. In the first part each reads the same topic as quickly as it can, one after the
other, in an order that changes from round to round; in the second all of them read at the same time, at a steady rate.
One message in a hundred has a producer that was sampled. The handler does nothing, so that nothing but the price is
measured. The result goes to stdout, everything else to stderr. Exit status 1: a loop failed; 2: wrong usage.

ratio
    throughput over that of the same loop without anything, median of the rounds.
cpu_ratio
    the same of the CPU time of the whole process, which other work on the machine changes less.
extra_us
    CPU time of the whole process for one message beyond that of the plain loop, at the steady rate, microseconds.
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
from threading import Event, Thread
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from confluent_kafka import Producer

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from benchmarks.rounds import orders
from dedup_sdk import DedupConsumer, Lookup
from dedup_sdk.errors import DedupError
from dedup_sdk.testing._local_kafka import create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from dedup_adapters.opentelemetry import Tracing

LOOPS: Final = {
    "plain": "plain", "scraped": "plain", "traced": "plain",
    "batch": "batch", "batch_scraped": "batch", "batch_traced": "batch",
}  # fmt: skip
"""The loops, and what each is compared with; `iterate`, and `consume(1000)`."""
STEADY: Final = ("plain", "scraped", "traced")
RATE: Final = 1_000
SAMPLED_EVERY: Final = 100
_BATCH: Final = 1_000
_SCRAPE_S: Final = 1.0
_VALUE: Final = b"x" * 200
_PATIENCE_S: Final = 600.0


class ObservedError(Exception):
    """A loop failed, or a message could not be sent; one line."""


def main() -> int:
    """Measure, print, and return the exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in LOOPS:
        read(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return 0
    options = _options()
    try:
        with (
            broker_at(options.bootstrap) as bootstrap,
            tempfile.TemporaryDirectory(prefix="dedup-benchmark-") as folder,
        ):
            result = throughput(bootstrap, Path(folder), options.records, options.rounds)
            extra = steady(bootstrap, Path(folder), options.seconds)
    except (ObservedError, DedupError, OSError) as error:
        print(f"observed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = {"records": options.records, "rounds": options.rounds}
    print(json.dumps({**given, **result, "extra_us": extra}) if options.json else text(given, result, extra))
    return 0


def throughput(bootstrap: str, folder: Path, records: int, rounds: int) -> dict[str, dict[str, float]]:
    """Have each loop read the same records, round by round; return the ratios of the plain loops to it."""
    topic = create_topic(bootstrap, f"observed-{uuid4().hex}", 1)
    send(bootstrap, topic, records, per_second=None)
    readings: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for order in orders(list(LOOPS), rounds):
        for name in order:
            loop = _child(name, bootstrap, topic, str(folder / uuid4().hex), str(records))
            readings[name].append(_end(loop, name))
    return {
        ratio: {
            name: round(
                median(a[what] / b[what] for a, b in zip(readings[base], readings[name], strict=True)), 3
            )
            for name, base in LOOPS.items()
            if name != base
        }
        for ratio, what in (("ratio", "seconds"), ("cpu_ratio", "cpu_us"))
    }


def steady(bootstrap: str, folder: Path, seconds: int) -> dict[str, float]:
    """Have the loops read at the same time while messages are sent; return their CPU time beyond the plain one's."""
    topic = create_topic(bootstrap, f"observed-{uuid4().hex}", 1)
    records = seconds * RATE
    loops = {name: _child(name, bootstrap, topic, str(folder / uuid4().hex), str(records)) for name in STEADY}
    for loop in loops.values():
        assert loop.stdout is not None
        loop.stdout.readline()
    send(bootstrap, topic, records, per_second=RATE)
    spent = {name: _end(loop, name)["cpu_us"] for name, loop in loops.items()}
    return {name: round(us - spent["plain"], 2) for name, us in spent.items() if name != "plain"} | {
        "plain_us": round(spent["plain"], 2)
    }


def _child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )


def _end(child: subprocess.Popen[str], name: str) -> dict[str, float]:
    out, _ = child.communicate(timeout=_PATIENCE_S)
    if child.returncode:
        raise ObservedError(f"{name} ended with status {child.returncode}: its error is above")
    reading: dict[str, float] = json.loads(out.splitlines()[-1])
    return reading


def send(bootstrap: str, topic: str, records: int, *, per_second: int | None) -> None:
    """Send records with IDs and the context of a producer's span, of which one in a hundred was sampled."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0 if per_second else 20})
    began = time.perf_counter()
    for number in range(records):
        parent = f"00-{number + 1:032x}-{number + 1:016x}-{int(number % SAMPLED_EVERY == 0):02x}"
        headers: dict[str, str | bytes | None] = {
            "dedup-id": uuid4().hex.encode(),
            "traceparent": parent.encode(),
        }
        while True:
            try:
                producer.produce(topic, _VALUE, headers=headers, partition=0)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
        if per_second:
            time.sleep(max(0.0, number / per_second - (time.perf_counter() - began)))
    if left := producer.flush(_PATIENCE_S):
        raise ObservedError(f"{left} messages could not be sent")


def read(name: str, bootstrap: str, topic: str, store: str, records: int) -> None:
    """Read so many records, and print the seconds and the CPU time from the first to the last as JSON."""
    consumer = DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest"},
        dedup=Lookup(id="header:dedup-id", window="7d"),
        store=store,
    )
    tracing = _tracing(consumer) if name.endswith("traced") else None
    over = Event()
    if name.endswith("scraped"):
        Thread(target=_scrape, args=(consumer, over), daemon=True).start()
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.0)
    print("reading", flush=True)
    one_by_one = LOOPS[name] == "plain"
    handled = _handle_each(consumer, tracing) if one_by_one else _handle_batches(consumer, tracing)
    count = began = cpu_began = 0.0
    for number in handled:
        if not count:
            began, cpu_began = time.perf_counter(), time.process_time()
        count += number
        if count >= records:
            break
    reading = {
        "seconds": time.perf_counter() - began,
        "cpu_us": (time.process_time() - cpu_began) / records * 1e6,
    }
    handled.close()  # type: ignore[attr-defined]
    over.set()
    consumer.close()
    print(json.dumps(reading))


def _handle_each(consumer: DedupConsumer, tracing: Tracing | None) -> Iterator[int]:
    messages: Iterator[Message] = iter(consumer) if tracing is None else tracing.iterate(consumer)
    for _ in messages:
        yield 1


def _handle_batches(consumer: DedupConsumer, tracing: Tracing | None) -> Iterator[int]:
    while True:
        messages = consumer.consume(_BATCH, 0.05)
        if not messages:
            continue
        if tracing is None:
            yield len(messages)
            continue
        with tracing.span(*messages):
            pass
        yield len(messages)


def _tracing(consumer: DedupConsumer) -> Tracing:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    from dedup_adapters.opentelemetry import Tracing

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(1 / SAMPLED_EVERY))
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return Tracing(consumer, tracer_provider=provider)


def _scrape(consumer: DedupConsumer, over: Event) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from dedup_adapters.prometheus import DedupCollector

    registry = CollectorRegistry()
    registry.register(DedupCollector(consumer))
    while not over.wait(_SCRAPE_S):
        generate_latest(registry)


def text(given: dict[str, int], ratios: dict[str, dict[str, float]], extra: dict[str, float]) -> str:
    """The result for people."""
    rows = [f"{'loop':16}{'ratio':>8}{'cpu_ratio':>11}"]
    for name, ratio in ratios["ratio"].items():
        rows.append(f"{name:16}{ratio:8.3f}{ratios['cpu_ratio'][name]:11.3f}")
    rows.append(f"{f'at {RATE:,}/s':16}{'extra us':>8}")
    rows += [f"{name:16}{us:8.2f}" for name, us in extra.items()]
    rows.append(f"{given['records']:,} records, {given['rounds']} rounds, medians")
    return "\n".join(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The price of being watched.")
    parser.add_argument("--bootstrap", help="host:port of a broker to measure on (a broker is started)")
    parser.add_argument("--records", type=at_least(_BATCH), default=500_000, help="records (500000)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds (3)")
    parser.add_argument("--seconds", type=at_least(1), default=20, help="seconds at a steady rate (20)")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
