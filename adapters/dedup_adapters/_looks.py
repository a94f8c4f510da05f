"""Looks at consumers: health, statuses and metrics of one moment, and rates since an earlier look."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Final, Protocol
from weakref import ref

from dedup_sdk import Health, Metrics, PartitionStatus, Sample
from dedup_sdk.errors import ConfigurationError

VERDICTS: Final = ("fresh", "duplicate", "redelivered", "unverified", "unkeyed")
RATES_OVER_S: Final = 60.0
"""Seconds over which a rate is taken, as far as there was a look so long ago."""
_LEAST_S: Final = 1.0
"""Seconds between two looks that are kept: a rate over less says nothing."""

Place = tuple[str, int]
Counts = Mapping[tuple[Place, str], float]
"""Records by partition and verdict."""


class AnyConsumer(Protocol):
    """A `DedupConsumer` or `AsyncDedupConsumer`, as far as it is looked at."""

    @property
    def partition_statuses(self) -> Iterable[PartitionStatus]:
        """The status of each assigned partition."""

    def metrics(self) -> Metrics:
        """Return all that is counted and measured."""

    def health(self) -> Health:
        """Return whether it lives, and delivers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One consumer at one moment.

    ``rates``: records a second by partition and verdict, over the last ``rates_over_s`` seconds; empty at the first
    look. ``replayed``: the part of each recovery that was replayed since the first look at it, from 0 to 1.
    """

    health: Health
    statuses: tuple[PartitionStatus, ...]
    metrics: Metrics
    rates: Counts
    rates_over_s: float
    replayed: Mapping[Place, float]

    def samples(self, name: str) -> list[Sample]:
        """Return the samples of a metric."""
        return [each for each in self.metrics.samples if each.metric.full_name == name]


class Watched:
    """A consumer that is looked at, from any thread, and lives as long as its owner wants."""

    def __init__(self, consumer: AnyConsumer) -> None:
        self._consumer = ref(consumer)
        # Of those who look, never of the consumer.
        self._lock = Lock()
        self._counted: deque[tuple[float, Counts]] = deque()
        self._longest: dict[Place, int] = {}
        """The most offsets that each recovery had still to replay."""

    @property
    def consumer(self) -> AnyConsumer | None:
        """The consumer, None if it is gone."""
        return self._consumer()

    def health(self) -> Health:
        """Return its health; a consumer that is gone is closed."""
        consumer = self._consumer()
        if consumer is None:
            return Health(
                live=True, ready=False, reasons=("the consumer is gone: make a new one",), closed=True
            )
        return consumer.health()

    def look(self) -> Look | None:
        """Return all of it at this moment; None if it is gone."""
        consumer = self._consumer()
        if consumer is None:
            return None
        statuses, metrics = tuple(consumer.partition_statuses), consumer.metrics()
        with self._lock:
            rates, seconds = self._rates(metrics)
            replayed = self._replayed(statuses)
        return Look(
            health=consumer.health(),
            statuses=tuple(sorted(statuses, key=lambda each: (each.topic, each.partition))),
            metrics=metrics,
            rates=rates,
            rates_over_s=seconds,
            replayed=replayed,
        )

    def _rates(self, metrics: Metrics) -> tuple[Counts, float]:
        now, counts = time.monotonic(), _counts(metrics.samples)
        kept = self._counted
        while len(kept) > 1 and now - kept[1][0] >= RATES_OVER_S:
            kept.popleft()
        if not kept or now - kept[-1][0] >= _LEAST_S:
            kept.append((now, counts))
        since, before = kept[0]
        seconds = now - since
        if seconds < _LEAST_S:
            return {}, 0.0
        return {each: (count - before.get(each, 0.0)) / seconds for each, count in counts.items()}, seconds

    def _replayed(self, statuses: Iterable[PartitionStatus]) -> dict[Place, float]:
        left = {(each.topic, each.partition): each.recovery_left for each in statuses if each.recovery_left}
        self._longest = {place: max(count, self._longest.get(place, 0)) for place, count in left.items()}
        return {place: 1 - count / self._longest[place] for place, count in left.items()}


def _counts(samples: Iterable[Sample]) -> Counts:
    counts: dict[tuple[Place, str], float] = {}
    for each in samples:
        if each.metric.full_name == "records":
            topic, partition, verdict, _ = each.labels
            counted = (topic, int(partition)), verdict
            counts[counted] = counts.get(counted, 0.0) + each.value
    return counts


def watched(consumers: tuple[AnyConsumer, ...]) -> list[Watched]:
    """Return what is looked at; raises `ConfigurationError` without a consumer."""
    if not consumers:
        raise ConfigurationError("no consumer is given; give at least one")
    return [Watched(each) for each in consumers]


Alive = Callable[[], bool]
