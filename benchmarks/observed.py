"""The price of being watched: loops with a collector that is scraped each second, and with traces sampled at 1 %.

    python benchmarks/observed.py
    python benchmarks/observed.py --records 1000000 --rounds 5 --json

Each loop is a process of its own. In the first part each reads the same topic as quickly as it can, one after the
other, in an order that changes from round to round; in the second each reads at a steady rate beside a plain one; the
third has no Kafka. The handler does nothing, so that nothing but the price is measured. The result goes to stdout,
everything else to stderr. Exit status 1: a loop failed; 2: wrong usage.

scraped
    the collector for Prometheus is scraped each second.
traced
    `Tracing(consumer)`; one message in a hundred has a producer that was sampled.
ratio
    `Tracing(consumer, ratio=0.01)`; all producers were sampled.
sdk
    the floor: for one message in a hundred a span is begun and ended by OpenTelemetry's SDK alone, without attributes,
    a producer's context, and this package.

ratio
    throughput over that of the same loop without anything, median of the rounds.
cpu_ratio
    the same of the CPU time of the whole process, which other work on the machine changes less.
thread_ratio
    the same of the CPU time of the polling thread, by slices of one process that follow each other: the steadiest one.
extra_us
    CPU time of the whole process for one message beyond that of the plain loop, at the steady rate, microseconds.
span_us
    CPU time of a thread that iterates over constructed messages, for one message, microseconds: with a producer that
    was ``sampled``, one that was ``not_sampled``, or none (``no_producer``; the sampler takes 1 %); of a message that
    a ratio leaves out (``not_taken``); and of a span that the ``sdk`` begins and ends alone.
scrape_ms
    CPU time of a thread for a scrape of 4 partitions, milliseconds: once a second, at 1,000 messages a second, it is as
    many microseconds a message. ``page``: the text of ``/metrics``; ``collector``: that of `DedupCollector` by
    ``prometheus-client``.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
from functools import cache, partial
from itertools import islice
from operator import truediv
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import uuid4

from confluent_kafka import Message, Producer

from benchmarks.arguments import at_least
from benchmarks.broker import broker_at
from benchmarks.rounds import orders
from dedup_sdk import (
    Counters,
    DedupConsumer,
    Lookup,
    Metrics,
    PartitionStatus,
    Verdict,
    VerdictKind,
)
from dedup_sdk._metrics import samples_of
from dedup_sdk._observe import by_partition, of_partition
from dedup_sdk.errors import DedupError
from dedup_sdk.testing._local_kafka import create_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider

    from dedup_adapters.opentelemetry import Tracing

T = TypeVar("T")

LOOPS: Final = {
    "plain": "plain", "scraped": "plain", "traced": "plain", "ratio": "plain", "sdk": "plain",
    "batch": "batch", "batch_scraped": "batch", "batch_traced": "batch",
}  # fmt: skip
"""The loops, and what each is compared with; `iterate`, and `consume(1000)`."""
STEADY: Final = ("scraped", "traced", "ratio")
ALL_SAMPLED: Final = "ratio"
"""The loop that reads the topic whose producers were all sampled."""
RATE: Final = 1_000
SAMPLED_EVERY: Final = 100
_BATCH: Final = 1_000
_SCRAPE_S: Final = 1.0
_VALUE: Final = b"x" * 200
_SPAN_MESSAGES: Final = 10_000
_SPAN_ROUNDS: Final = 15
_SCRAPES: Final = 200
_SLICE: Final = 5_000
_LEAST_RATIO: Final = 1e-9
_FRESH: Final = Verdict(VerdictKind.FRESH, deliver=True)
_PATIENCE_S: Final = 600.0


class ObservedError(Exception):
    """A loop failed, or a message could not be sent; one line."""


def main() -> int:
    """Measure, print, and return the exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in LOOPS:
        read(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return 0
    if len(sys.argv) > 1 and sys.argv[1] == "slices":
        read_slices(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]))
        return 0
    options = _options()
    try:
        with (
            broker_at(options.bootstrap) as bootstrap,
            tempfile.TemporaryDirectory(prefix="dedup-benchmark-") as folder,
        ):
            result = throughput(bootstrap, Path(folder), options.records, options.rounds)
            thread = slices(bootstrap, Path(folder), options.records)
            extra = steady(bootstrap, Path(folder), options.seconds, options.steady_rounds)
        us, scrape_ms = spans(), scrapes()
    except (ObservedError, DedupError, OSError) as error:
        print(f"observed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = {"records": options.records, "rounds": options.rounds}
    result["thread_ratio"] = thread
    whole = {**given, **result, "extra_us": extra, "span_us": us, "scrape_ms": scrape_ms}
    print(json.dumps(whole) if options.json else text(given, result, extra, us, scrape_ms))
    return 0


def throughput(bootstrap: str, folder: Path, records: int, rounds: int) -> dict[str, dict[str, float]]:
    """Have each loop read the same records, round by round; return the ratios of the plain loops to it."""
    topics = {every: create_topic(bootstrap, f"observed-{uuid4().hex}", 1) for every in (1, SAMPLED_EVERY)}
    for every, topic in topics.items():
        send(bootstrap, topic, records, every=every)
    readings: dict[str, list[dict[str, float]]] = {name: [] for name in LOOPS}
    for order in orders(list(LOOPS), rounds):
        for name in order:
            topic = topics[_sampled_every(name)]
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


def slices(bootstrap: str, folder: Path, records: int) -> dict[str, float]:
    """Have one process read plainly and with spans by turns; return the ratios of the CPU time of its thread."""
    topic = create_topic(bootstrap, f"observed-{uuid4().hex}", 1)
    send(bootstrap, topic, records, every=1)
    return _end(_child("slices", bootstrap, topic, str(folder / uuid4().hex), str(records)), "slices")


def read_slices(bootstrap: str, topic: str, store: str, records: int) -> None:
    """Read slices of the topic by turns, and print the median of the ratios of slices beside each other as JSON."""
    consumer = _consumer(bootstrap, store)
    consumer.subscribe([topic])
    tracing, messages = _tracing(consumer, "ratio"), iter(consumer)
    assert tracing is not None
    loops: dict[str, Callable[[Iterator[Message]], object]] = {
        "plain": _exhaust,
        "ratio": lambda some: _exhaust(tracing.iterate(some)),
        "sdk": lambda some: _exhaust(_with_spans_alone(some)),
    }
    next(messages)
    spent: dict[str, list[float]] = {name: [] for name in loops}
    for order in orders(list(loops), (records - 1) // (_SLICE * len(loops))):
        for name in order:
            began = time.thread_time()
            loops[name](islice(messages, _SLICE))
            spent[name].append(time.thread_time() - began)
    consumer.close()
    plain = spent.pop("plain")
    paired = {name: map(truediv, plain, each) for name, each in spent.items()}
    print(json.dumps({name: round(median(each), 3) for name, each in paired.items()}))


def steady(bootstrap: str, folder: Path, seconds: int, rounds: int) -> dict[str, float]:
    """Have each loop read beside a plain one while messages are sent; return its CPU time beyond that one's."""
    extra: dict[str, list[float]] = {name: [] for name in STEADY}
    plain: list[float] = []
    records = seconds * RATE
    for _ in range(rounds):
        for name, found in extra.items():
            topic = create_topic(bootstrap, f"observed-{uuid4().hex}", 1)
            pair = [
                _child(each, bootstrap, topic, str(folder / uuid4().hex), str(records))
                for each in ("plain", name)
            ]
            for loop in pair:
                assert loop.stdout is not None
                loop.stdout.readline()
            send(bootstrap, topic, records, every=_sampled_every(name), per_second=RATE)
            alone, observed = (_end(loop, name)["cpu_us"] for loop in pair)
            found.append(observed - alone)
            plain.append(alone)
    return {name: round(median(found), 2) for name, found in extra.items()} | {
        "plain_us": round(median(plain), 2)
    }


def _sampled_every(name: str) -> int:
    return 1 if name == ALL_SAMPLED else SAMPLED_EVERY


def spans() -> dict[str, float]:
    """Return the CPU time of a thread for one message, in microseconds, without Kafka: beside an empty loop."""
    from dedup_adapters.opentelemetry import Tracing

    consumer: Any = _NoConsumer()
    tracing = Tracing(consumer, tracer_provider=_provider())
    rest = Tracing(consumer, tracer_provider=_provider(), ratio=_LEAST_RATIO)
    loops: dict[str, Callable[[], object]] = {
        "empty": partial(_exhaust, _messages(b"01")),
        "sampled": lambda: _exhaust(tracing.iterate(_messages(b"01"))),
        "not_sampled": lambda: _exhaust(tracing.iterate(_messages(b"00"))),
        "no_producer": lambda: _exhaust(tracing.iterate(_messages(None))),
        "not_taken": lambda: _exhaust(rest.iterate(_messages(b"01"))),
        "sdk": lambda: _exhaust(_with_spans_alone(iter(_messages(b"01")), every=1)),
    }
    # Else each collection of garbage looks through all messages.
    gc.collect()
    gc.freeze()
    spent: dict[str, list[float]] = {name: [] for name in loops}
    for order in orders(list(loops), _SPAN_ROUNDS):
        for name in order:
            began = time.thread_time()
            loops[name]()
            spent[name].append((time.thread_time() - began) / _SPAN_MESSAGES * 1e6)
    least = median(spent.pop("empty"))
    return {name: round(median(each) - least, 2) for name, each in spent.items()}


def scrapes() -> dict[str, float]:
    """Return the CPU time of a thread for one scrape of 4 partitions, in milliseconds, as a page and by the library."""
    from prometheus_client import CollectorRegistry, generate_latest

    from dedup_adapters._consumer_totals import ConsumerTotals
    from dedup_adapters._prometheus_text import text_of
    from dedup_adapters.prometheus import DedupCollector

    consumer: Any = _FourPartitions()
    totals, registry = ConsumerTotals([consumer]), CollectorRegistry()
    registry.register(DedupCollector(consumer))
    looks: dict[str, Callable[[], object]] = {
        "page": lambda: text_of(totals.totals()),
        "collector": lambda: generate_latest(registry),
    }
    spent: dict[str, list[float]] = {name: [] for name in looks}
    for order in orders(list(looks), _SCRAPES):
        for name in order:
            began = time.thread_time()
            looks[name]()
            spent[name].append((time.thread_time() - began) * 1e3)
    return {name: round(median(each), 2) for name, each in spent.items()}


class _FourPartitions:
    """As much of a consumer as a scrape asks for."""

    def __init__(self) -> None:
        self._counters = Counters()
        for number in range(4):
            of_partition(self._counters, "orders", number).verdicts["fresh"] += 1_000_000
        self._statuses = [
            PartitionStatus(
                topic="orders", partition=number, state="active", hindrances=(), position=1_000_000, in_flight=1,
                waiting=0, committed=999_000, lag=1_000, recovery_seconds=0.1, recovery_left=0, store_bytes=10**8,
                store_marks=10**6, store_files=3, effective_window_ms=6 * 10**8, detail="resumed",
            )
            for number in range(4)
        ]  # fmt: skip

    def metrics(self) -> Metrics:
        """All samples of four partitions."""
        counters = self._counters
        return Metrics("g", tuple(samples_of(counters, by_partition(counters), self._statuses)))


def _exhaust(messages: Iterable[object]) -> None:
    for _ in messages:
        pass


@cache
def _messages(flags: bytes | None) -> list[Message]:
    """Messages whose producers' spans have these flags; None: they had no span."""
    parent = [] if flags is None else [("traceparent", b"00-%032x-%016x-%b" % (1, 1, flags))]
    return [
        Message(topic="orders", partition=0, offset=offset, headers=[("dedup-id", _VALUE[:32]), *parent])
        for offset in range(_SPAN_MESSAGES)
    ]


class _NoConsumer:
    """As much of a consumer as spans ask for."""

    @staticmethod
    def metrics() -> Metrics:
        """Its group."""
        return Metrics("g", ())

    @staticmethod
    def verdict(message: Message) -> Verdict:
        """The verdict of each message."""
        del message
        return _FRESH


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


def send(bootstrap: str, topic: str, records: int, *, every: int, per_second: int | None = None) -> None:
    """Send records with IDs and the context of a producer's span, of which one in ``every`` was sampled."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0 if per_second else 20})
    began = time.perf_counter()
    for number in range(records):
        parent = f"00-{number + 1:032x}-{number + 1:016x}-{int(number % every == 0):02x}"
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
    consumer = _consumer(bootstrap, store)
    tracing = _tracing(consumer, name)
    over = Event()
    if name.endswith("scraped"):
        Thread(target=_scrape, args=(consumer, over), daemon=True).start()
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.0)
    print("reading", flush=True)
    one_by_one = LOOPS[name] == "plain"
    handled = _handle_each(consumer, tracing) if one_by_one else _handle_batches(consumer, tracing)
    if name == "sdk":
        handled = _with_spans_alone(handled)
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
    handled.close()
    over.set()
    consumer.close()
    print(json.dumps(reading))


def _consumer(bootstrap: str, store: str) -> DedupConsumer:
    return DedupConsumer(
        {"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "auto.offset.reset": "earliest"},
        dedup=Lookup(id="header:dedup-id", window="7d"),
        store=store,
    )


def _handle_each(consumer: DedupConsumer, tracing: Tracing | None) -> Generator[int]:
    messages: Iterator[Message] = iter(consumer) if tracing is None else tracing.iterate(consumer)
    for _ in messages:
        yield 1


def _handle_batches(consumer: DedupConsumer, tracing: Tracing | None) -> Generator[int]:
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


def _tracing(consumer: DedupConsumer, name: str) -> Tracing | None:
    from dedup_adapters.opentelemetry import Tracing

    if name == "ratio":
        return Tracing(consumer, tracer_provider=_provider(), ratio=1 / SAMPLED_EVERY)
    return Tracing(consumer, tracer_provider=_provider()) if name.endswith("traced") else None


def _provider() -> TracerProvider:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

    class Nowhere(SpanExporter):
        """Keeps no span, as one that has sent it: kept ones would cost each collection of garbage."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            """Forget them."""
            del spans
            return SpanExportResult.SUCCESS

    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(1 / SAMPLED_EVERY))
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    return provider


def _with_spans_alone(handled: Iterator[T], every: int = SAMPLED_EVERY) -> Generator[T]:
    from opentelemetry.propagate import extract
    from opentelemetry.trace import SpanKind

    tracer = _provider().get_tracer("sdk")
    sampled = extract({"traceparent": f"00-{1:032x}-{1:016x}-01"})
    for count, number in enumerate(handled):
        if count % every == 0:
            tracer.start_span("process", sampled, SpanKind.CONSUMER).end()
        yield number


def _scrape(consumer: DedupConsumer, over: Event) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from dedup_adapters.prometheus import DedupCollector

    registry = CollectorRegistry()
    registry.register(DedupCollector(consumer))
    while not over.wait(_SCRAPE_S):
        generate_latest(registry)


def text(
    given: dict[str, int],
    ratios: dict[str, dict[str, float]],
    extra: dict[str, float],
    us: dict[str, float],
    scrape_ms: dict[str, float],
) -> str:
    """The result for people."""
    rows = [f"{'loop':16}{'ratio':>8}{'cpu_ratio':>11}"]
    for name, ratio in ratios["ratio"].items():
        rows.append(f"{name:16}{ratio:8.3f}{ratios['cpu_ratio'][name]:11.3f}")
    rows.append(f"{'its thread':16}{'ratio':>8}")
    rows += [f"{name:16}{each:8.3f}" for name, each in ratios["thread_ratio"].items()]
    rows.append(f"{f'at {RATE:,}/s':16}{'extra us':>8}")
    rows += [f"{name:16}{each:8.2f}" for name, each in extra.items()]
    rows.append(f"{'a span':16}{'us':>8}")
    rows += [f"{name:16}{each:8.2f}" for name, each in us.items()]
    rows.append(f"{'a scrape':16}{'ms':>8}")
    rows += [f"{name:16}{each:8.2f}" for name, each in scrape_ms.items()]
    rows.append(f"{given['records']:,} records, {given['rounds']} rounds, medians")
    return "\n".join(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The price of being watched.")
    parser.add_argument("--bootstrap", help="host:port of a broker to measure on (a broker is started)")
    parser.add_argument("--records", type=at_least(_BATCH), default=500_000, help="records (500000)")
    parser.add_argument("--rounds", type=at_least(1), default=3, help="rounds (3)")
    parser.add_argument("--seconds", type=at_least(1), default=20, help="seconds at a steady rate (20)")
    parser.add_argument("--steady-rounds", type=at_least(1), default=3, help="rounds at a steady rate (3)")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
