"""A process that produces with an outbox until it is killed; run by `tests/mock/test_outbox_kills.py`.

    python outbox_worker.py BOOTSTRAP FOLDER JOURNAL FIRST BROKEN

Writes a number into the journal when persist() has returned for everything up to it. The audit of the outbox (a trigger, see `audit`) has each
dedup key in the transaction that persists its message, so that it knows what was on disk however the process ended.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from dedup_sdk import DedupProducer
from dedup_sdk.producer.pipeline import Pipeline, Queued
from dedup_sdk.producer.sqlite_outbox import FILE, SqliteOutbox

TOPIC = "pairs"


def audit(folder: Path) -> None:
    """Make an outbox that notes each message that it ever had."""
    outbox = SqliteOutbox(folder)
    outbox.open()
    outbox.close()
    with closing(sqlite3.connect(folder / FILE)) as database, database:
        database.execute("CREATE TABLE audit (dedup_id BLOB, value BLOB)")
        database.execute(
            "CREATE TRIGGER noted AFTER INSERT ON messages BEGIN INSERT INTO audit VALUES (new.dedup_id, new.value); END"
        )


def audited(folder: Path) -> dict[bytes, bytes]:
    """Return what an outbox ever had: value by dedup key."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        return dict(database.execute("SELECT dedup_id, value FROM audit").fetchall())


def send_before_persist() -> None:
    """The broken twin: a message is handed to the client at once, and written into the outbox when its turn comes."""
    put, stored = Pipeline.put, Pipeline._stored

    def hasty(self: Any, queued: Queued) -> None:
        message = queued.message
        headers: list[tuple[str, Any]] = [("dedup-id", message.dedup_id)]
        self._produce(message.topic, message.value, message.key, message.partition, headers=headers)
        put(self, queued)

    def believed(self: Any, queued: Any, numbers: Any) -> None:
        stored(self, queued, numbers)
        self._ready.clear()
        for number in numbers:
            self.report(number, None, None)

    Pipeline.put, Pipeline._stored = hasty, believed  # type: ignore[method-assign]


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
