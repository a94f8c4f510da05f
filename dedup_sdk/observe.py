"""What can be seen of the engine: counters by verdict, and an event for every verdict.

Duplicates (another offset, the same ID: made before the topic) and redeliveries (the same offset: made by a crash or a
rebalance of this group) are counted apart, because they have different causes and different cures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from dedup_sdk.record import Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class VerdictEvent:
    """A final verdict of one record, as observers get it."""

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
    """Something that happened to a partition's log or store, beside the verdicts.

    ``name`` says what; ``offset`` is where reading goes on, ``detail`` one line for people. The page on recovery has, for each
    name, what it means and what is done.
    """

    name: EventName
    topic: str
    partition: int
    offset: int
    detail: str


class PartitionObserver(Protocol):
    """What an observer of verdicts may be besides: it is then told of partition events too."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Take note; runs on the consuming thread, and an exception is logged and goes no further."""


Hindrance = Literal[
    "offsets", "broker", "lock", "transaction", "beginning", "store", "backlog", "elsewhere", "outage", "uncompleted", "paused", "uncovered"
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """What one partition of a consumer is doing at this moment.

    - ``state``: ``recovering`` (comes up to date, delivers nothing), ``active``, or one of the short ones on the way out.
    - ``hindrances``: what stands in its way, none as a rule; the page on operations has what each means and what to do.
    - ``position``: the offset after the last record that was judged, None before it is known.
    - ``in_flight``: how many records are judged and not completed, parked ones included.
    - ``effective_window_ms``: how far back its marks are known, None before it has begun or without a window by time.
    - ``detail``: how it came up to date, as the line in the log says; while it recovers, how far that is, at which rate, and
      for how long still.
    """

    topic: str
    partition: int
    state: str
    hindrances: tuple[Hindrance, ...]
    position: int | None
    in_flight: int
    effective_window_ms: int | None
    detail: str


Observer = Callable[[VerdictEvent], None]
"""Called on the consuming thread, before the record is delivered; an exception is logged and goes no further."""


@dataclass(slots=True)
class Counters:
    """Running totals since the engine was made.

    ``verdicts`` has one total for each final verdict; ``reasons`` splits those that have a reason. ``released`` counts
    records released, ``retried`` calls of a handler after its first for a message, ``dead_lettered`` records that were
    completed by a dead letter, ``stale`` completions that came for a partition or record that was no longer open (they change
    nothing), ``abandoned`` messages whose handler was still busy when their partition went: their next owner sees them
    again; ``left_out`` completions that the commit of a partition which went had no room for: its next owner handles
    these messages again; ``stores_set_aside`` key stores that were damaged,
    ``generations_shed`` how often the oldest marks were dropped for want of room; ``events`` partition events by name; ``shared`` what became
    of IDs in a shared memory: the page on it has the names.
    """

    verdicts: dict[str, int] = field(
        default_factory=lambda: {kind.value: 0 for kind in VerdictKind if kind is not VerdictKind.PARKED}
    )
    reasons: dict[str, int] = field(default_factory=dict)
    released: int = 0
    retried: int = 0
    dead_lettered: int = 0
    stale: int = 0
    abandoned: int = 0
    left_out: int = 0
    observer_errors: int = 0
    stores_set_aside: int = 0
    generations_shed: int = 0
    events: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, int]:
        """Return every total under one flat name, e.g. ``duplicate``, ``unkeyed.oversized``, ``stale``."""
        reasons = dict(self.reasons.items())
        return {
            **self.verdicts, **reasons, "released": self.released, "retried": self.retried,
            "dead_lettered": self.dead_lettered, "stale": self.stale, "abandoned": self.abandoned, "left_out": self.left_out,
            "stores_set_aside": self.stores_set_aside, "generations_shed": self.generations_shed,
            **{f"event.{name}": total for name, total in self.events.items()},
            **{f"shared.{name}": total for name, total in self.shared.items()},
        }  # fmt: skip
