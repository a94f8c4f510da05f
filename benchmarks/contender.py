"""One contender, in a process of its own: reads the workload once and prints its cost as one line of JSON.

Started by throughput.py: ``python benchmarks/contender.py '{"name": "bare_tuned", "bootstrap": ..., ...}'``.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from confluent_kafka import Consumer, Message

from benchmarks import loops
from benchmarks.measure import Stopwatch
from benchmarks.workload import HEADER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.loops import Loop, Reader
    from dedup_sdk import Lookup, Window

TUNED = {"fetch.queue.backoff.ms": 1}

LOOPS: dict[str, Loop] = {
    "bare_default": loops.bare_consume,
    "bare_tuned": loops.bare_consume,
    "bare_tuned_poll": loops.bare_poll,
    "memory_set": loops.memory_set,
    "memory_set_poll": loops.memory_set_poll,
    "dedup_consume": loops.dedup_consume,
    "dedup_poll": loops.dedup_poll,
}

DEDUP = frozenset({"dedup_consume", "dedup_poll"})
FIRST_SIGHTINGS = DEDUP | {"memory_set", "memory_set_poll"}
_UNTUNED = DEDUP | {"bare_default"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one contender.

    ``expected``: the records its loop waits for. ``store``: folder of its key store, empty without one. ``seen``: a
    file for the coordinates of everything that was handled, empty in runs whose time counts.
    """

    name: str
    bootstrap: str
    topic: str
    group: str
    expected: int
    store: str = ""
    seen: str = ""


class Recorder:
    """A reader that notes the partition and offset of all that passes."""

    def __init__(self, reader: Reader) -> None:
        """Read from `reader`."""
        self._reader = reader
        self._seen: list[tuple[int | None, int | None]] = []

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        """Read a batch."""
        batch = self._reader.consume(num_messages, timeout)
        self._seen.extend((message.partition(), message.offset()) for message in batch)
        return batch

    def poll(self, timeout: float) -> Message | None:
        """Read one record."""
        message = self._reader.poll(timeout)
        if message is not None:
            self._seen.append((message.partition(), message.offset()))
        return message

    def commit(self, *, asynchronous: bool) -> object:
        """Commit the records that were read."""
        return self._reader.commit(asynchronous=asynchronous)

    def save(self, path: Path) -> None:
        """Write an array of shape ``(handled, 2)``: partition and offset, in the order of handling."""
        np.save(path, np.array(self._seen, np.int64).reshape(-1, 2))


def strategy(window: Window | None = None) -> Lookup:
    """The strategy that is measured: the one of the README, or with another window."""
    from dedup_sdk import Lookup, Window, header

    return Lookup(id=header(HEADER), window=window or Window(days=7))


def settings(run: Run) -> dict[str, str | int | float | bool]:
    """The settings of a contender's consumer: its own defaults, but for those in its name."""
    base: dict[str, str | int | float | bool] = {
        "bootstrap.servers": run.bootstrap,
        "group.id": run.group,
        "auto.offset.reset": "earliest",
    }
    return base if run.name in _UNTUNED else base | TUNED


@contextmanager
def consumer_of(run: Run) -> Iterator[Consumer]:
    """The consumer of a contender, closed at the end."""
    if run.store:
        from dedup_sdk import DedupConsumer

        consumer: Consumer = DedupConsumer(settings(run), dedup=strategy(), store=run.store)
    else:
        consumer = Consumer(settings(run))
    try:
        yield consumer
    finally:
        consumer.close()


def main() -> None:
    """Run the contender of the only argument."""
    run = Run(**json.loads(sys.argv[1]))
    with consumer_of(run) as consumer:
        consumer.subscribe([run.topic])
        reader = cast("Reader", consumer)
        recorder = Recorder(reader) if run.seen else None
        reading = LOOPS[run.name](recorder or reader, run.expected, Stopwatch())
        partitions = consumer.position(consumer.assignment())
        if recorder is not None:
            recorder.save(Path(run.seen))
    print(json.dumps(asdict(reading) | {"read": sum(each.offset for each in partitions)}))


if __name__ == "__main__":
    main()
