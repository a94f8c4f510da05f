"""How long a look at a consumer takes while its thread is busy: `health()`, a scrape, and the pages over HTTP.

    python benchmarks/looking.py
    python benchmarks/looking.py --records 5000000 --rounds 3 --json

A process consumes; one of its threads asks each 20 milliseconds for `health()` and each tenth of a second for the
text of the collector for Prometheus, and another process reads ``/metrics`` and ``/readyz``. Beside them are the
controls, which ask no consumer: how late the thread wakes, and the text of metrics that were collected before, in the
thread and as a page. Other work on the machine is in all of them, so that a figure says something only beside its
control. The result goes to stdout, progress to stderr. Exit status 1: a phase failed; 2: wrong usage.

recovery
    the key store is lost, and is replayed from the topic: all records, in 4 partitions.
flush
    the topic is read, with stores that write a sorted file after each 20,000 marks.
rebalance
    another member joins the group and leaves it, again and again.
hanging
    the broker is stopped (SIGSTOP): connections stay, and nobody answers.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count, cycle
from pathlib import Path
from statistics import median
from threading import Event, Thread
from typing import IO, TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaException
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector

from benchmarks.arguments import at_least
from benchmarks.contender import strategy
from benchmarks.recovery import commit_end
from benchmarks.workload import PARTITIONS, TOPIC, Workload, WorkloadError, ensure_topic
from dedup_adapters.health import serve
from dedup_adapters.prometheus import DedupCollector
from dedup_sdk import DedupConsumer, RocksStore
from dedup_sdk.errors import DedupError
from dedup_sdk.testing import LocalKafka

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

PHASES: Final = ("recovery", "flush", "rebalance", "hanging")
LOOKS: Final = {
    "wake": "how late a thread wakes that sleeps 20 ms (control)", "health": "health()",
    "text": "prometheus-client's text of the metrics of before (control)", "scrape": "its text of the collector",
    "page": "GET a text of before (control)", "readyz": "GET /readyz", "metrics": "GET /metrics",
}  # fmt: skip
"""What is timed."""
AIM_MS: Final = 50.0
_EACH_S: Final = 0.02
_SCRAPE_EACH: Final = 5
_GET_EACH_S: Final = 0.05
_SETTLE_S: Final = 1.0
_FLUSH_MARKS: Final = 20_000
_PATIENCE_S: Final = 600.0
_Times = dict[str, list[float]]


class LookingError(Exception):
    """A phase failed; one line."""


def main() -> int:
    """Measure, print, and return the exit status."""
    if len(sys.argv) > 1 and sys.argv[1] in PHASES:
        consume(*sys.argv[1:5], seconds=float(sys.argv[5]))
        return 0
    options = _options()
    try:
        with LocalKafka() as kafka:
            ensure_topic(kafka.bootstrap, TOPIC, Workload(records=options.records))
            result = measured(kafka, options.records, options.rounds, options.seconds)
    except (LookingError, WorkloadError, DedupError, KafkaException, OSError) as error:
        print(f"looking: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    given = {
        "records": options.records,
        "rounds": options.rounds,
        "load": Path("/proc/loadavg").read_text().split()[0],
    }
    print(json.dumps({**given, **result}) if options.json else text(given, result))
    return 0


def measured(
    kafka: LocalKafka, records: int, rounds: int, seconds: float
) -> dict[str, dict[str, list[float]]]:
    """Return the median, the 99th percentile and the longest in milliseconds, of each look in each phase."""
    times: dict[str, _Times] = {phase: {look: [] for look in LOOKS} for phase in PHASES}
    for turn in range(rounds):
        for phase in PHASES:
            for look, each in one_phase(kafka, phase, f"{phase}-{turn}", records, seconds).items():
                times[phase][look] += each
            print(f"round {turn + 1}/{rounds} {phase}: {_line(times[phase])}", file=sys.stderr)
    return {phase: {look: _figures(each) for look, each in of.items()} for phase, of in times.items()}


def one_phase(kafka: LocalKafka, phase: str, group: str, records: int, seconds: float) -> _Times:
    """Have a process consume, and look at it from here until it ends; return the times of all looks, in ms."""
    if phase in ("recovery", "rebalance", "hanging"):
        commit_end(kafka.bootstrap, group, records if phase == "recovery" else PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="dedup-looking-") as folder:
        child = subprocess.Popen(
            [sys.executable, __file__, phase, kafka.bootstrap, group, folder, str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        began = child.stdout.readline()
        if not began:
            raise LookingError(f"{phase} ended before it began: its error is above")
        disturb = {"rebalance": _rebalances, "hanging": _hangs}.get(phase, _nothing)
        times: _Times = {"page": [], "readyz": [], "metrics": []}
        with disturb(kafka, group):
            _get_until(child.stdout, json.loads(began), times)
        out, _ = child.communicate(timeout=_PATIENCE_S)
        if child.returncode:
            raise LookingError(f"{phase} ended with status {child.returncode}: its error is above")
        own: _Times = json.loads(out.splitlines()[-1])
        return own | times


def _get_until(child: IO[str], ports: dict[str, int], times: _Times) -> None:
    """Get one page after the other until the child has more to say."""
    for look in cycle(times):
        if select.select([child], [], [], 0)[0]:
            return
        time.sleep(_GET_EACH_S)
        began = time.perf_counter()
        try:
            connection = HTTPConnection(
                "127.0.0.1", ports["page" if look == "page" else "pages"], timeout=_PATIENCE_S
            )
            connection.request("GET", f"/{look}")
            connection.getresponse().read()
            connection.close()
        except OSError:
            # The process has ended meanwhile.
            continue
        times[look].append((time.perf_counter() - began) * 1e3)


@contextmanager
def _nothing(kafka: LocalKafka, group: str) -> Iterator[None]:
    del kafka, group
    yield


@contextmanager
def _rebalances(kafka: LocalKafka, group: str) -> Iterator[None]:
    """Have another member join and leave meanwhile."""
    over = Event()

    def join_and_leave() -> None:
        while not over.is_set():
            member = Consumer(
                {"bootstrap.servers": kafka.bootstrap, "group.id": group, "enable.auto.commit": False}
            )
            member.subscribe([TOPIC])
            member.poll(2.0)
            member.close()

    thread = Thread(target=join_and_leave)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _hangs(kafka: LocalKafka, group: str) -> Iterator[None]:
    del group
    kafka.pause()
    try:
        yield
    finally:
        kafka.resume()


def consume(phase: str, bootstrap: str, group: str, folder: str, *, seconds: float) -> None:
    """Consume as a phase wants it, and print the ports of the pages, then the times of the looks of a thread."""
    store = RocksStore(folder, recent_marks=_FLUSH_MARKS) if phase == "flush" else RocksStore(folder)
    # So long that a hanging broker does not end the membership.
    config = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    consumer = DedupConsumer(config, dedup=strategy(None), store=store)
    over = Event()
    times: _Times = {"wake": [], "health": [], "text": [], "scrape": []}
    with serve(consumer, port=0, host="127.0.0.1") as pages:
        consumer.subscribe([TOPIC])
        while len(consumer.assignment()) < PARTITIONS:
            consumer.poll(0.05)
        if phase in ("rebalance", "hanging"):
            _poll_for(consumer, _SETTLE_S)
        control = _Control(("127.0.0.1", 0), _Page)
        Thread(target=control.serve_forever, daemon=True).start()
        looks = Thread(target=_look, args=(consumer, control, over, times), daemon=True)
        print(json.dumps({"page": control.server_address[1], "pages": pages.port}), flush=True)
        looks.start()
        if phase == "recovery":
            until = time.monotonic() + _PATIENCE_S
            while _is_recovering(consumer):
                consumer.poll(0.05)
                if time.monotonic() > until:
                    raise LookingError(f"the records were not recovered within {_PATIENCE_S:.0f} s")
        else:
            _poll_for(consumer, seconds)
        over.set()
        looks.join()
        print(json.dumps(times), flush=True)
    if phase == "hanging":
        # Its `close()` would wait for the broker.
        os._exit(0)
    consumer.close()


def _poll_for(consumer: DedupConsumer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        consumer.consume(1000, 0.05)


def _is_recovering(consumer: DedupConsumer) -> bool:
    return any(each.state == "recovering" for each in consumer.partition_statuses)


def _look(consumer: DedupConsumer, control: _Control, over: Event, times: _Times) -> None:
    collector, before = DedupCollector(consumer), _Before()
    registry, registry_before = CollectorRegistry(), CollectorRegistry()
    registry.register(collector)
    registry_before.register(before)
    for number in count():
        began = time.perf_counter()
        time.sleep(_EACH_S)
        woke = time.perf_counter()
        consumer.health()
        asked = time.perf_counter()
        times["wake"].append((woke - began - _EACH_S) * 1e3)
        times["health"].append((asked - woke) * 1e3)
        if number % _SCRAPE_EACH == 0:
            began = time.perf_counter()
            control.text = generate_latest(registry)
            scraped = time.perf_counter()
            generate_latest(registry_before)
            times["text"].append((time.perf_counter() - scraped) * 1e3)
            times["scrape"].append((scraped - began) * 1e3)
            before.families = list(collector.collect())
        if over.is_set():
            return


class _Before(Collector):
    """Metrics as they were at the last scrape."""

    families: Iterable[Metric] = ()

    def collect(self) -> Iterable[Metric]:
        """Return them."""
        return self.families


class _Control(ThreadingHTTPServer):
    """A page that asks no consumer, and has a text that was made before."""

    text = b""


class _Page(BaseHTTPRequestHandler):
    server: _Control

    def do_GET(self) -> None:
        body = self.server.text
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name of the base class)
        pass


def _figures(times: list[float]) -> list[float]:
    ordered = sorted(times) or [0.0]
    return [round(each, 1) for each in (median(ordered), ordered[int(len(ordered) * 0.99)], ordered[-1])]


def _line(times: _Times) -> str:
    return ", ".join(f"{look} {_figures(each)[-1]:.0f} ms ({len(each)})" for look, each in times.items())


def text(given: dict[str, Any], result: dict[str, dict[str, list[float]]]) -> str:
    """The result for people."""
    rows = [f"{'longest, ms':12}" + "".join(f"{look:>9}" for look in LOOKS)]
    for at, name in ((2, ""), (1, "99 % of them"), (0, "median")):
        rows += [f"{name}"] if name else []
        rows += [
            f"{phase:12}" + "".join(f"{of[look][at]:9.1f}" for look in LOOKS) for phase, of in result.items()
        ]
    rows += [f"{look}: {what}" for look, what in LOOKS.items()]
    rows.append(
        f"{given['records']:,} records, {given['rounds']} rounds, load {given['load']}; the aim is {AIM_MS:.0f}"
    )
    return "\n".join(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="How long a look at a busy consumer takes.")
    parser.add_argument(
        "--records", type=at_least(1000), default=1_000_000, help="records to recover (1000000)"
    )
    parser.add_argument("--rounds", type=at_least(1), default=1, help="rounds (1)")
    parser.add_argument("--seconds", type=at_least(1), default=10, help="seconds of the other phases (10)")
    parser.add_argument("--json", action="store_true", help="print one object")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
