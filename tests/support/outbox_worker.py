"""A process that produces with an outbox until it is killed; run by `tests/mock/test_outbox_kills.py`.

    python outbox_worker.py BOOTSTRAP FOLDER JOURNAL FIRST BROKEN

Writes a number into the journal when persist() has returned for everything up to it. The audit of the outbox (a
trigger, see `audit`) has each dedup key in the transaction that persists its message, so that it knows the messages on
disk however the process ended.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from dedup_sdk.producer import DedupProducer
from dedup_sdk.producer._pipeline import Pipeline, Queued
from dedup_sdk.producer._sqlite_outbox import FILE, SqliteOutbox

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC = "pairs"
_LAZY_S = 1.0
_MOMENT_S = 0.001


def audit(folder: Path) -> None:
    """Make an outbox that notes each message that it ever had."""
    outbox = SqliteOutbox(folder)
    outbox.open()
    outbox.close()
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("CREATE TABLE audit (dedup_id BLOB, value BLOB)")
        database.execute(
            "CREATE TRIGGER noted AFTER INSERT ON messages BEGIN INSERT INTO audit VALUES (new.dedup_id, "
            "new.value); END"
        )


def audited(folder: Path) -> dict[bytes, bytes]:
    """Return the messages an outbox ever had: value by dedup key."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        return dict(database.execute("SELECT dedup_id, value FROM audit").fetchall())


class _Hasty:
    """A pipeline that hands over first."""

    def __init__(self) -> None:
        self._put, self._write = Pipeline.put, Pipeline._write
        self._lock = threading.Lock()
        self._numbers: dict[bytes, int] = {}
        self._confirmed: set[bytes] = set()
        self._wrote = 0.0

    def put(self, pipeline: Any, queued: Queued) -> None:
        """Send at once, and queue for the outbox."""
        message = queued.message
        headers: list[tuple[str, Any]] = [("dedup-id", message.dedup_id)]
        report = partial(self._delivered, pipeline, message.dedup_id)
        pipeline._client.produce(
            message.topic, message.value, message.key, message.partition, headers=headers, on_delivery=report
        )
        self._put(pipeline, queued)

    def stored(self, pipeline: Any, queued: Any, numbers: Any) -> None:
        """Note the numbers of the messages sent before."""
        with self._lock:
            for each, number in zip(queued, numbers, strict=True):
                self._numbers[each.message.dedup_id] = number
                self._settle(pipeline, each.message.dedup_id)
        if numbers and not pipeline._has_more:
            pipeline._last_ready = numbers[-1]

    def write(self, pipeline: Any) -> None:
        """Write once a second."""
        now = time.monotonic()
        if pipeline._ending or now - self._wrote >= _LAZY_S:
            self._wrote = now
            self._write(pipeline)
        else:
            time.sleep(_MOMENT_S)

    def _delivered(self, pipeline: Any, dedup_id: bytes, error: object, _: object) -> None:
        with self._lock:
            if error is None:
                self._confirmed.add(dedup_id)
            self._settle(pipeline, dedup_id)

    def _settle(self, pipeline: Any, dedup_id: bytes) -> None:
        if dedup_id in self._confirmed and dedup_id in self._numbers:
            pipeline.report(self._numbers.pop(dedup_id), None, None)


def send_before_persist() -> None:
    """A message is sent at once, and sent messages are written into the outbox once a second."""
    hasty = _Hasty()
    methods: dict[str, Callable[..., None]] = {
        "put": hasty.put,
        "_stored": hasty.stored,
        "_write": hasty.write,
    }
    for name, method in methods.items():
        getattr(Pipeline, name)
        setattr(Pipeline, name, _of_pipelines(method))


def _of_pipelines(method: Callable[..., None]) -> Callable[..., None]:
    """Return a class's own form of a method of another object: it is given the pipeline first."""

    def called(pipeline: Any, *given: Any) -> None:
        method(pipeline, *given)

    return called


def main() -> None:
    """Produce until the end of the process."""
    bootstrap, folder, journal, first, broken = sys.argv[1:]
    if broken:
        send_before_persist()
    source = random.Random(first)
    producer = DedupProducer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0}, outbox=folder, close_timeout=60
    )
    assert isinstance(producer, Producer)
    number = int(first)
    with Path(journal).open("ab", buffering=0) as file:
        while True:
            for _ in range(source.randrange(1, 40)):
                # Every fifth without a key, the others of a few.
                producer.produce(TOPIC, b"%d" % number, None if number % 5 == 0 else b"k%d" % (number % 7))
                number += 1
            if source.random() < 0.7:
                producer.persist()
                os.write(file.fileno(), b"%d\n" % number)
            producer.poll(0)


if __name__ == "__main__":
    main()
