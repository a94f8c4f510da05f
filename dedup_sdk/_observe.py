"""Counters by verdict, and events for verdicts and partitions.

Duplicates (another offset, the same ID: sent twice by a producer) and redeliveries (the same offset: after a crash or a
rebalance of this group) are counted separately, because they have different causes and remedies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dedup_sdk._record import Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class VerdictEvent:
    """A final verdict of one record, for observers."""

    topic: str
    partition: int
    offset: int
    verdict: Verdict


EventName = Literal[
    "topic-recreated", "rule-changed", "log-truncated", "offset-out-of-range", "recovery-timeout", "store-locked",
    "window-beyond-retention", "window-too-short",
    "unit-crosses", "recovery-started", "recovery-progress", "recovery-ended", "rewound", "store-damaged",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """An event of a partition's log or store.

    ``name`` is its kind; ``offset`` the offset at which reading continues, ``detail`` one line for people.
    The reference explains each name.
    """

    name: EventName
    topic: str
    partition: int
    offset: int
    detail: str


class PartitionObserver(Protocol):
    """The optional method of an observer, by which it gets partition events, too."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Receive an event, on the consuming thread; an exception is logged and ignored."""


Hindrance = Literal[
    "offsets", "broker", "lock", "transaction", "beginning", "store", "backlog", "elsewhere", "outage",
    "uncompleted", "failed", "paused", "uncovered",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The current status of one partition of a consumer.

    - ``state``: ``recovering`` (delivers nothing yet, or never will: hindrance ``failed``), ``active``, or briefly
      ``revoking``, ``lost`` or ``closed``.
    - ``hindrances``: the reasons why it does not progress, usually none; the page on operations explains
      each, with the next step.
    - ``position``: the offset after the last judged record, None before it is known.
    - ``in_flight``: the number of judged and not completed records, waiting ones included.
    - ``waiting``: the number of records that wait for another one, e.g. with the same ID.
    - ``committed``: the group's offset that the broker confirmed last, None before one is known.
    - ``lag``: the number of offsets from there (else from ``position``) to the end of the log as the client knows it,
      None before the first fetch.
    - ``effective_window_ms``: how far back its marks are known, None before it is active or without a window by time.
    - ``detail``: the result of its recovery, as in the log; during recovery its progress, rate and remaining time.
    """

    topic: str
    partition: int
    state: str
    hindrances: tuple[Hindrance, ...]
    position: int | None
    in_flight: int
    waiting: int
    committed: int | None
    lag: int | None
    effective_window_ms: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a consumer works, for the probes of whoever runs it.

    - ``live``: False if only a restart of the process helps.
    - ``ready``: False while the consumer delivers nothing, or less: it has no assignment yet, assigned partitions
      recover, no broker answers, or it is closed. Also False if it is not ``live``.
    - ``reasons``: sentences that say why, each with the next step; empty if it is ready.
    """

    live: bool
    ready: bool
    reasons: tuple[str, ...]


Observer = Callable[[VerdictEvent], None]
"""Called on the consuming thread, before the record is delivered; an exception is logged and ignored."""


@dataclass(slots=True)
class Counters:
    """Running totals since the engine was made.

    ``verdicts`` has one total for each final verdict; ``reasons`` splits those that have a reason. A message is judged
    before your program gets it, so that one which waits for your next call is counted there already. ``delivered``
    counts deliveries: `poll`, `consume` or an iteration returned a message, or `run` called its handler with it
    (counted when the message leaves the run). A released message is delivered once more. Its sum over the lives of a
    consumer is the number of deliveries.
    ``released`` counts released records, ``retried`` calls of a handler after its first for a message,
    ``dead_lettered`` records that were completed by a dead letter, ``stale`` completions for a partition or
    record that was no longer open (they change nothing), ``abandoned`` messages whose handler was still
    running when their partition was revoked (the next owner gets them again), ``left_out`` completions that
    did not fit into the last commit of a revoked partition (the next owner handles these messages again),
    ``refetched`` messages that the client returned a second time in one assignment (they are dropped, and not judged),
    ``stores_set_aside`` damaged key stores, ``generations_shed`` how often the oldest marks were dropped
    for lack of room; ``events`` partition events by name; ``shared`` the totals of a shared memory, whose
    page has the names.
    """

    verdicts: dict[str, int] = field(
        default_factory=lambda: {kind.value: 0 for kind in VerdictKind if kind is not VerdictKind.PARKED}
    )
    reasons: dict[str, int] = field(default_factory=dict)
    delivered: int = 0
    released: int = 0
    retried: int = 0
    dead_lettered: int = 0
    stale: int = 0
    abandoned: int = 0
    left_out: int = 0
    refetched: int = 0
    observer_errors: int = 0
    stores_set_aside: int = 0
    generations_shed: int = 0
    events: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, int]:
        """Return every total under one flat name, e.g. ``duplicate``, ``unkeyed.oversized``, ``stale``."""
        totals = {
            **self.verdicts, **self.reasons, "delivered": self.delivered, "released": self.released,
            "retried": self.retried, "dead_lettered": self.dead_lettered, "stale": self.stale,
            "abandoned": self.abandoned, "left_out": self.left_out, "refetched": self.refetched,
            "stores_set_aside": self.stores_set_aside, "generations_shed": self.generations_shed,
        }  # fmt: skip
        for kind, named in (("event", self.events), ("shared", self.shared)):
            for name, total in dict(named).items():
                totals[f"{kind}.{name}"] = total
        return totals
