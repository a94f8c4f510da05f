"""How long the way of one record is: calls of this package's functions, and modules that they lie in.

    python benchmarks/path.py
    python benchmarks/path.py --trace assignment

record
    one new record, with `Lookup`, one partition and a store on disk, through ``consume()``, and completed by the next
    call
alone
    the same through ``poll()``, where it comes alone and is judged by itself; with the completion of the one before
housekeeping
    a ``poll()`` that brings nothing, when all that is on a timer is due
assignment
    from the client's callback up to the first message, with a store that an orderly ``close()`` of a consumer with the
    same settings left, whose last commit the group has

A generator's step and a lambda count as calls; a comprehension does not, because Python 3.12 and later make none
of it. Runs on librdkafka's mock cluster. The result goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

import dedup_sdk
from dedup_sdk import DedupConsumer, Lookup, Window, header
from dedup_sdk.testing import MockKafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PACKAGE: Final = str(Path(dedup_sdk.__file__).parent)
_PATIENCE_S: Final = 30.0
_ARRIVES_S: Final = 0.03
"""Seconds in which a record that was produced is in the client's queue; less than the wait of work on a timer."""
_DUE_S: Final = 0.3
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
_TRIES: Final = 5
"""The shortest counts: now and then other work is due as well."""


@dataclass(slots=True)
class Trail:
    """Calls by module; and the calls themselves, in order, indented by their depth."""

    calls: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)

    def begin_with(self, call: str) -> None:
        """Leave out the lines before a call."""
        first = [line.strip() for line in self.trace].index(call)
        self.trace = self.trace[first:]
        self.calls = Counter(line.strip().partition(":")[0] for line in self.trace)

    def count(self, part: str = "") -> int:
        """Return the number of calls, of modules whose name begins with ``part``."""
        return sum(calls for module, calls in self.calls.items() if module.startswith(part))

    @property
    def modules(self) -> int:
        """In how many modules."""
        return len(self.calls)


@contextmanager
def traced(trail: Trail) -> Iterator[None]:
    """Note every call of a function of the package, by this thread."""
    depth = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or frame.f_code.co_name in _COMPREHENSIONS:
            return
        if event == "call":
            module = name.removeprefix(PACKAGE).removesuffix(".py").strip("/")
            trail.calls[module] += 1
            trail.trace.append(f"{'  ' * depth}{module}:{frame.f_code.co_qualname}")
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def _shortest(measure: Callable[[DedupConsumer, Callable[[], None]], Trail]) -> Trail:
    """Measure some times, with a consumer that has had a record and a function that sends one; return the shortest."""
    with _consumer() as (consumer, send):
        send()
        _poll(consumer)
        return min((measure(consumer, send) for _ in range(_TRIES)), key=Trail.count)


def record_path() -> Trail:
    """Return the way of one record."""
    return _shortest(_one_record)


def _one_record(consumer: DedupConsumer, send: Callable[[], None]) -> Trail:
    while True:
        consumer.poll(0)
        time.sleep(_DUE_S)
        consumer.poll(0)
        send()
        time.sleep(_ARRIVES_S)
        trail = Trail()
        with traced(trail):
            at_once, late = consumer.consume(2, 0), consumer.consume(2, 0)
        if at_once:
            return trail
        if not late:
            # Otherwise it would be completed in the middle of the next measurement.
            _poll(consumer)


def alone_path() -> Trail:
    """Return the way of one record that comes alone."""
    return _shortest(_one_alone)


def _one_alone(consumer: DedupConsumer, send: Callable[[], None]) -> Trail:
    while True:
        for _ in range(3):
            sending = Timer(_ARRIVES_S, send)
            sending.start()
            _poll(consumer)
            sending.join()
        send()
        time.sleep(_ARRIVES_S)
        trail = Trail()
        with traced(trail):
            _poll(consumer)
        # On a busy machine the work on a timer is due before the record is there.
        if not any(line.endswith("Maintenance.run") for line in trail.trace):
            return trail


def housekeeping_path() -> Trail:
    """Return the way of a call for which nothing has come."""
    return _shortest(_one_idle)


def _one_idle(consumer: DedupConsumer, _: Callable[[], None]) -> Trail:
    time.sleep(_DUE_S)
    trail = Trail()
    with traced(trail):
        consumer.poll(0)
    return trail


def assignment_path() -> Trail:
    """Return the way of an assignment with an existing store, from the client's callback to the first message."""
    return min((_one_assignment() for _ in range(_TRIES)), key=Trail.count)


def _one_assignment() -> Trail:
    trail = Trail()
    with _topic() as (make, send):
        with make() as before:
            before.subscribe(["orders"])
            send()
            _poll(before)
        send()
        with make() as consumer:
            consumer.subscribe(["orders"])
            with traced(trail):
                _poll(consumer)
    # The rounds in which the group was joined are no part of it.
    trail.begin_with("_kafka/deliver/assignment_api:AssignmentApi.subscribe.<locals>.assign")
    return trail


@contextmanager
def _consumer() -> Iterator[tuple[DedupConsumer, Callable[[], None]]]:
    with _topic() as (make, send), make() as consumer:
        consumer.subscribe(["orders"])
        yield consumer, send


@contextmanager
def _topic() -> Iterator[tuple[Callable[[], DedupConsumer], Callable[[], None]]]:
    """Have a topic of one partition; yield functions that make a consumer of it, with one store, and send a record."""
    config = {
        "group.id": "path", "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50, "log_level": 0,
        # The mock cluster's later rebalances take as long, but for a second.
        "session.timeout.ms": 1_200, "heartbeat.interval.ms": 100,
    }  # fmt: skip
    with MockKafka() as kafka, tempfile.TemporaryDirectory(prefix="dedup-path-") as folder:
        kafka.create_topic("orders")
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        numbers = iter(range(sys.maxsize))

        def send() -> None:
            producer.produce("orders", b"", headers={"dedup-id": str(next(numbers))})
            producer.flush()

        def make() -> DedupConsumer:
            strategy = Lookup(id=header("dedup-id"), window=Window(days=7))
            return DedupConsumer(
                {**config, "bootstrap.servers": kafka.bootstrap}, dedup=strategy, store=folder
            )

        yield make, send


def _poll(consumer: DedupConsumer) -> Any:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        message = consumer.poll(1.0)
        if message is not None:
            return message
    raise TimeoutError(f"no message came in {_PATIENCE_S:g} s")


_PATHS: Final[dict[str, Callable[[], Trail]]] = {
    "record": record_path,
    "alone": alone_path,
    "housekeeping": housekeeping_path,
    "assignment": assignment_path,
}


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="How long the way of one record is.")
    parser.add_argument("--trace", choices=_PATHS, help="print the calls of one of them, one a line")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    trails = {name: measure() for name, measure in _PATHS.items()}
    if arguments.json:
        print(
            json.dumps(
                {
                    name: {"calls": trail.count(), "modules": dict(trail.calls)}
                    for name, trail in trails.items()
                }
            )
        )
        return 0
    if arguments.trace:
        print("\n".join(trails[arguments.trace].trace))
    for name, trail in trails.items():
        kafka = trail.count("_kafka/")
        rest = trail.count() - kafka
        print(
            f"{name:<12} {trail.count():4} calls in {trail.modules} modules; kafka/ {kafka}, the rest {rest}"
        )
    listed = trails[arguments.trace or "record"].calls
    print("\n".join(f"{calls:5} {module}" for module, calls in listed.most_common()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
