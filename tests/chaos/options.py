"""The options of a worker process, as one argument of its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

Protocol = Literal["classic", "cooperative", "consumer"]
Broker = Literal["jars", "container", "older", "three"]
MemoryKind = Literal["", "redis", "postgresql"]
Mode = Literal["iterate", "consume", "workers", "run", "letters", "inbox", "transactions"]

PROTOCOLS: Final[tuple[Protocol, ...]] = ("classic", "cooperative", "consumer")
BROKERS: Final[tuple[Broker, ...]] = ("jars", "container", "older", "three")
SESSION_MS: Final = 2_000
"""How long a group waits for a member that says nothing; for the protocol ``consumer`` the broker is told so."""
REACH_S: Final = 5.0
"""Seconds within which a client that works reaches a broker that is there."""
ID_HEADER: Final = "dedup-id"
UNIT_HEADER: Final = "dedup-unit"
REJECTED_HEADER: Final = "rejected"
"""Marks a record of a unit that is a duplicate as a whole: nobody handles it."""
SENT_AGAIN_HEADER: Final = "sent-again"
"""Marks a message that was given up and is sent again: now its handler succeeds."""


def is_poison(value: bytes | None) -> bool:
    """Whether a message is one that handlers fail for, by its number."""
    return value is not None and value.isdigit() and int(value) % 25 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """One worker's options.

    Attributes:
        mode: ``iterate`` is the loop of the README, ``consume`` takes lists, ``workers`` completes in any order
            from threads of its own, ``run`` leaves the threads to the consumer, in the order of each key, and
            fails now and then, ``letters`` is the same with dead letters for messages that always fail until they
            are sent again, ``inbox`` works in a database, ``transactions``
            writes to another topic, in transactions of a loop or, by the seed, of ``run``.
        work_ms: the average time of handling, milliseconds.
        slow_s: how long a handler takes, once, after SIGUSR1.
        broken: the protection that is taken away (see `sabotage`); empty: none.
        on_full_disk: as of `Recovery`.
        snapshot: where snapshots are; empty: nowhere.
        database: the URL of the database that the work is in; empty: it is in none.
        kept_offsets: whether the offsets are there, too.
        units: whether records may belong to units.
        memory: the URL of the memory that workers share; empty: none.
        on_outage: as of `Shared`.
        by_key: whether the key is the ID, instead of the header.
        piped: whether the journal is written by another process, because this one's files may not grow for a while.
        refused: whether the disk may fail (see `bad_disk`).
        output: the topic that messages are copied to in transactions; empty: none.
        transaction: the most messages of one.
        failing: the share of calls in which a handler of ``run`` fails.
    """

    bootstrap: str
    group: str
    topic: str
    store: str
    journal: str
    protocol: Protocol = "classic"
    mode: Mode = "iterate"
    window: str = "7d"
    work_ms: float = 5.0
    slow_s: float = 0.0
    max_poll_ms: int = 60_000
    commit_ms: int = 1_000
    recent_marks: int = 2_000
    seed: int = 0
    broken: str = ""
    on_full_disk: Literal["pause", "unverified"] = "pause"
    snapshot: str = ""
    database: str = ""
    kept_offsets: bool = False
    memory: str = ""
    on_outage: Literal["deliver", "pause"] = "deliver"
    piped: bool = False
    refused: bool = False
    units: bool = False
    by_key: bool = False
    output: str = ""
    transaction: int = 50
    failing: float = 0.03

    def client(self) -> dict[str, Any]:
        """Return the client's configuration."""
        config: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": self.commit_ms,
            "max.poll.interval.ms": self.max_poll_ms,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1_000,
            "socket.timeout.ms": 5_000,
            # This is about brokers that are down.
            "log_level": 0,
        }
        if self.protocol == "consumer":
            return {**config, "group.protocol": "consumer"}
        strategy = "cooperative-sticky" if self.protocol == "cooperative" else "range"
        return {
            **config,
            "partition.assignment.strategy": strategy,
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": SESSION_MS // 10,
        }

    def dumps(self) -> str:
        """The text that `loads` reads."""
        return json.dumps(asdict(self))


def loads(text: str) -> WorkerOptions:
    """Read a worker's options."""
    return WorkerOptions(**json.loads(text))
