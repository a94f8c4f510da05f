"""Counters by verdict, and events for verdicts and partitions.

Duplicates (another offset, the same ID: sent twice by a producer) and redeliveries (the same offset: after a crash or a
rebalance of this group) are counted separately, because they have different causes and remedies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._metrics import (
    AGE_BUCKETS_S,
    CALL_BUCKETS_S,
    OF_CONSUMER,
    OF_PARTITIONS,
    EventName,
    Hindrance,
    flat_names,
)
from dedup_sdk._record import Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class VerdictEvent:
    """A final verdict of one record, for observers."""

    topic: str
    partition: int
    offset: int
    verdict: Verdict


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
    - ``recovery_seconds``: how long its recovery lasts, or has lasted; ``recovery_left``: the number of offsets that it
      has still to replay.
    - ``store_bytes``, ``store_marks``, ``store_files``: sizes of its key store, None until `DedupConsumer.metrics` was
      called and the polling thread has looked them up.
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
    recovery_seconds: float
    recovery_left: int
    store_bytes: int | None
    store_marks: int | None
    store_files: int | None
    effective_window_ms: int | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Whether a consumer works, for the probes of whoever runs it.

    - ``live``: False if only a restart of the process helps.
    - ``ready``: False while the consumer delivers nothing, or less: it has no assignment yet, assigned partitions
      recover, the broker refuses commits, no broker answers, or it is closed. Also False if it is not ``live``.
    - ``reasons``: sentences that say why, each with the next step; empty if it is ready.
    - ``closed``: True once the consumer is closed: nothing of it changes any more.
    """

    live: bool
    ready: bool
    reasons: tuple[str, ...]
    closed: bool = False


Observer = Callable[[VerdictEvent], None]
"""Called on the consuming thread, before the record is delivered; an exception is logged and ignored."""


class Histogram:
    """How many observed values lie in each bucket, and their sum.

    ``bounds``: the upper bounds of the buckets, ascending; the last bucket has none. Values below 0 count as 0.
    """

    __slots__ = ("_bounds", "_column", "_state")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._column = np.array(bounds)
        # One value, so that a reader of another thread never sees the counts without their sum.
        self._state = ((0,) * (len(bounds) + 1), 0.0)

    def observe(self, value: float) -> None:
        """Count a value."""
        counts, total = self._state
        at = bisect_left(self._bounds, value)
        self._state = (*counts[:at], counts[at] + 1, *counts[at + 1 :]), total + max(0.0, value)

    def observe_all(self, values: NDArray[np.float64]) -> None:
        """Count many values, shape ``(n,)``."""
        counts, total = self._state
        came = np.bincount(np.searchsorted(self._column, values), minlength=len(counts)).tolist()
        added = tuple(map(int.__add__, counts, came))
        self._state = added, total + float(np.maximum(values, 0.0).sum())

    def taken(self) -> tuple[tuple[int, ...], float]:
        """Return the number of values in each bucket alone, and the sum of all values; from any thread."""
        return self._state


@dataclass(slots=True)
class PartitionCounters:
    """Running totals of one partition since the engine was made, whoever had the partition meanwhile.

    ``verdicts`` and ``reasons`` as in `Counters`; ``ages``: the ages of duplicates in seconds; the others are explained
    by the registry of metrics.
    """

    verdicts: dict[str, int] = field(
        default_factory=lambda: {kind.value: 0 for kind in VerdictKind if kind is not VerdictKind.HELD}
    )
    reasons: dict[str, int] = field(default_factory=dict)
    ages: Histogram = field(default_factory=lambda: Histogram(AGE_BUCKETS_S))
    delivered: int = 0
    completed: int = 0
    released: int = 0
    retried: int = 0
    dead_lettered: int = 0
    left_out: int = 0
    generations_shed: int = 0
    failed_commits: int = 0


class _Totals(Mapping[str, int]):
    """The sums of one dictionary of all partitions, whenever they are read."""

    __slots__ = ("_counters", "_of")

    def __init__(self, counters: Counters, of: Callable[[PartitionCounters], dict[str, int]]) -> None:
        self._counters, self._of = counters, of

    def _sums(self) -> dict[str, int]:
        # The names of verdicts are there without a partition, too.
        totals = dict(self._of(PartitionCounters()))
        for each in map(self._of, by_partition(self._counters).values()):
            for name, count in dict(each).items():
                totals[name] = totals.get(name, 0) + count
        return totals

    def __getitem__(self, name: str) -> int:
        return self._sums()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums())

    def __len__(self) -> int:
        return len(self._sums())

    def __repr__(self) -> str:
        return str(self._sums())


def _times() -> Histogram:
    return Histogram(CALL_BUCKETS_S)


@dataclass(slots=True)
class Counters:
    """Running totals since the engine was made; the reference explains each. `Metrics` has them by partition.

    ``verdicts`` has one total for each final verdict; ``reasons`` splits those that have a reason. A message is judged
    before your program gets it, so that one which waits for your next call is counted there already. ``delivered``
    counts messages that `poll`, `consume` or an iteration returned, or that left `run` after a handler had them. A
    released message is delivered once more. The sum over the lives of a consumer is the number of deliveries.
    ``events`` and ``shared`` have the partition events and the totals of a shared memory, by name; they and
    ``reasons`` have only the names that were counted, `as_dict` has all.
    """

    stale: int = 0
    abandoned: int = 0
    refetched: int = 0
    observer_errors: int = 0
    stores_set_aside: int = 0
    events: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    journal: Histogram = field(default_factory=_times, repr=False)
    flush: Histogram = field(default_factory=_times, repr=False)
    commit: Histogram = field(default_factory=_times, repr=False)
    shared_call: Histogram = field(default_factory=_times, repr=False)
    _partitions: dict[tuple[str, int], PartitionCounters] = field(default_factory=dict, repr=False)

    @property
    def verdicts(self) -> Mapping[str, int]:
        """Totals by verdict; a view, which goes on counting."""
        return _Totals(self, attrgetter("verdicts"))

    @property
    def reasons(self) -> Mapping[str, int]:
        """Totals by verdict and reason, e.g. ``unverified.uncovered``, where there are any; a view."""
        return _Totals(self, attrgetter("reasons"))

    @property
    def delivered(self) -> int:
        """Deliveries to the program."""
        return self._sum("delivered")

    @property
    def completed(self) -> int:
        """Delivered records that were completed."""
        return self._sum("completed")

    @property
    def released(self) -> int:
        """Released records."""
        return self._sum("released")

    @property
    def retried(self) -> int:
        """Calls of a handler after its first for a message."""
        return self._sum("retried")

    @property
    def dead_lettered(self) -> int:
        """Records that were completed by a dead letter."""
        return self._sum("dead_lettered")

    @property
    def left_out(self) -> int:
        """Completions that did not fit into the last commit of a revoked partition."""
        return self._sum("left_out")

    @property
    def generations_shed(self) -> int:
        """How often the oldest marks were dropped for lack of room."""
        return self._sum("generations_shed")

    def _sum(self, name: str) -> int:
        return sum(map(attrgetter(name), by_partition(self).values()))

    def as_dict(self) -> dict[str, int]:
        """Return every total under one flat name, e.g. ``duplicate``, ``unkeyed.oversized``, ``stale``.

        Every name is there from the start.
        """
        totals = {**flat_names(), **self.verdicts, **self.reasons}
        totals |= {metric.name: self._sum(metric.name) for metric in OF_PARTITIONS}
        totals |= {metric.name: getattr(self, metric.name) for metric in OF_CONSUMER}
        for kind, named in (("event", self.events), ("shared", self.shared)):
            totals |= {f"{kind}.{name}": total for name, total in dict(named).items()}
        return totals


def of_partition(counters: Counters, topic: str, partition: int) -> PartitionCounters:
    """Return the totals of one partition, to be counted up."""
    found = counters._partitions  # noqa: SLF001 (users read the sums)
    place = topic, partition
    return found[place] if place in found else found.setdefault(place, PartitionCounters())


def by_partition(counters: Counters) -> dict[tuple[str, int], PartitionCounters]:
    """Return the totals of each partition that was ever assigned; from any thread."""
    return dict(counters._partitions)  # noqa: SLF001 (as above)
