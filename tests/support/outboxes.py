"""Outboxes that stop on request, and the messages in them and in the topic."""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from dedup_sdk.producer import DedupProducer, OutboxDamagedError, OutboxFullError
from dedup_sdk.producer._sqlite_outbox import FILE, SqliteOutbox
from tests.support.consuming import PATIENCE_S
from tests.support.topic_records import topic_records

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from dedup_sdk.producer._outbox import Step


class Seen(NamedTuple):
    """A record of a topic."""

    partition: int
    dedup_id: bytes
    value: bytes
    key: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class GatedOutbox(SqliteOutbox):
    """An outbox whose transactions wait while the gate is closed, and fail while it is ``full`` or ``lost``."""

    full = lost = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.gate = threading.Event()
        self.waiting = threading.Event()

    def apply(self, step: Step) -> Sequence[int]:
        """See `Outbox`."""
        self.waiting.set()
        assert self.gate.wait(PATIENCE_S)
        if self.full:
            raise OutboxFullError("there is no room")
        if self.lost:
            raise OutboxDamagedError("it is gone")
        return super().apply(step)


def make_producer(
    bootstrap: str, outbox: Any, config: dict[str, Any] | None = None, **options: Any
) -> DedupProducer:
    """A producer that says nothing to stderr, and does not wait long for anybody."""
    common = {"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0, "reconnect.backoff.max.ms": 100}
    return DedupProducer({**common, **(config or {})}, outbox=outbox, **{"lock_wait": 0, **options})


def records(bootstrap: str, topic: str, partitions: int = 1) -> list[Seen]:
    """Every record of a topic, partition by partition."""
    return [_seen(message) for message in topic_records(bootstrap, topic, partitions)]


def _seen(message: Any) -> Seen:
    headers = tuple(message.headers() or ())
    found = dict(headers).get("dedup-id") or b""
    others = tuple(pair for pair in headers if pair[0] != "dedup-id")
    return Seen(
        message.partition(), found, message.value() or b"", message.key(), message.timestamp()[1], others
    )


def stored(folder: Path, columns: str = "dedup_id") -> list[Any]:
    """The messages of an outbox that nobody has open: one column as it is, several as tuples."""
    with closing(sqlite3.connect(folder / FILE)) as database:
        rows = database.execute(f"SELECT {columns} FROM messages ORDER BY id").fetchall()  # noqa: S608 (a test's own)
    return [row[0] if len(row) == 1 else row for row in rows]


def poll_until(producer: DedupProducer, condition: Callable[[], bool], what: str) -> None:
    """Poll until a condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        producer.poll(0.01)
        assert time.monotonic() < until, f"waited in vain for: {what}; {producer.counters}"
