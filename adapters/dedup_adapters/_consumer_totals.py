"""The metrics of several consumers of a process, as one total for each metric and its labels.

Exporters of metrics begin here: two consumers of one group would otherwise give the same series twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from threading import Lock
from typing import Final, NamedTuple
from weakref import ref

from dedup_adapters._looks import AnyConsumer
from dedup_sdk import Metric, Metrics

GROUP: Final = "group"
"""The label that each metric has before its own."""


class Total(NamedTuple):
    """A value of a metric in this process.

    ``labels``: the group, then the values of the metric's own labels. ``value`` and ``buckets`` as in `Sample`.
    """

    metric: Metric
    labels: tuple[str, ...]
    value: float
    buckets: tuple[int, ...]

    def with_other(self, other: Total) -> Total:
        """Return the total of both: counts are added up, of gauges the greatest counts."""
        if self.metric.kind == "gauge":
            return self if self.value >= other.value else other
        # Counters have no buckets.
        buckets = tuple(map(int.__add__, self.buckets, other.buckets))
        return Total(self.metric, self.labels, self.value + other.value, buckets)


_Totals = dict[tuple[str, tuple[str, ...]], Total]


class ConsumerTotals:
    """The totals of consumers, each of which lives as long as its owner wants.

    A consumer that is gone keeps its counts, as of the last look: a sum that falls would be read as a restart.
    """

    def __init__(self, consumers: Iterable[AnyConsumer]) -> None:
        # Of those who look, never of a consumer.
        self._lock = Lock()
        self._taken: dict[ref[AnyConsumer], Metrics | None] = {}
        """The metrics of each consumer at the last look, None before it."""
        self._gone: _Totals = {}
        for each in consumers:
            self.add(each)

    def add(self, consumer: AnyConsumer) -> None:
        """Count a consumer, too; harmless if repeated."""
        with self._lock:
            self._taken.setdefault(ref(consumer), None)

    def totals(self) -> list[Total]:
        """Return the totals of this moment; from any thread, without waiting for a consumer."""
        with self._lock:
            for each in list(self._taken):
                consumer = each()
                if consumer is not None:
                    self._taken[each] = consumer.metrics()
                elif (last := self._taken.pop(each)) is not None:
                    _add(self._gone, (total for total in _of(last) if total.metric.kind != "gauge"))
            there = [taken for taken in self._taken.values() if taken is not None]
            if len(there) == 1 and not self._gone:
                # As mostly: a scrape shares the interpreter with the loop.
                return list(_of(there[0]))
            totals = dict(self._gone)
            for taken in there:
                _add(totals, _of(taken))
            return list(totals.values())


def _of(metrics: Metrics) -> Iterator[Total]:
    for each in metrics.samples:
        yield Total(each.metric, (metrics.group, *each.labels), each.value, each.buckets)


def _add(totals: _Totals, others: Iterable[Total]) -> None:
    for each in others:
        name = each.metric.full_name, each.labels
        known = totals.get(name)
        totals[name] = each if known is None else known.with_other(each)
