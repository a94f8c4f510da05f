"""The registry of metrics as observable instruments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from threading import Lock

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from dedup_adapters._consumer_totals import GROUP, ConsumerTotals, Total
from dedup_adapters._looks import AnyConsumer
from dedup_adapters.opentelemetry._names import OF_LABELS, OURS, SCOPE, UNITS
from dedup_sdk import METRICS, Metric


class DedupInstruments:
    """Observable instruments for all metrics of `dedup_sdk.METRICS`, which are read when a reader collects.

    Make it once in a process: instruments cannot be taken back. The values of consumers with the same group are added
    up. It keeps no consumer alive; the counts of one that is gone stay. A collection waits for no lock of a consumer.

    OpenTelemetry has no observable histogram, so that each histogram is three counters: ``.bucket`` with the attribute
    ``dedup.le`` (the upper bound; each bucket has the smaller ones in it), ``.count`` and ``.sum``.

    Args:
        consumers: the consumers of this process; more by `add`.
        meter_provider: None: the global one.
    """

    def __init__(self, *consumers: AnyConsumer, meter_provider: MeterProvider | None = None) -> None:
        self._snapshots = _Snapshots(ConsumerTotals(consumers))
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        for metric in METRICS:
            self._make(meter, metric)

    def add(self, consumer: AnyConsumer) -> None:
        """Read a consumer, too; harmless if repeated. From any thread."""
        self._snapshots.consumers.add(consumer)

    def _make(self, meter: Meter, metric: Metric) -> None:
        about = f"{metric.meaning}. When it grows: {metric.advice}."
        name, unit = f"{OURS}{metric.name}", UNITS[metric.unit]
        if metric.kind == "histogram":
            for part, of_part in (("bucket", ""), ("count", ""), ("sum", unit)):
                full_name = f"{OURS}{metric.full_name}.{part}"
                callback = self._callback(metric, full_name, _PARTS[part])
                meter.create_observable_counter(full_name, [callback], of_part, about)
            return
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(name, [self._callback(metric, name, _value)], unit, about)

    def _callback(
        self, metric: Metric, instrument: str, observe: Callable[[Total], Iterable[Observation]]
    ) -> Callable[[CallbackOptions], list[Observation]]:
        def callback(_: CallbackOptions) -> list[Observation]:
            return [each for total in self._snapshots.of(metric, instrument) for each in observe(total)]

        return callback


class _Snapshots:
    """One look at the consumers serves each instrument once, so that a collection has one look."""

    def __init__(self, consumers: ConsumerTotals) -> None:
        self.consumers = consumers
        self._lock = Lock()
        self._served: set[str] = set()
        self._totals: dict[str, list[Total]] | None = None

    def of(self, metric: Metric, instrument: str) -> list[Total]:
        with self._lock:
            if self._totals is None or instrument in self._served:
                self._served.clear()
                self._totals = {}
                for each in self.consumers.totals():
                    self._totals.setdefault(each.metric.full_name, []).append(each)
            self._served.add(instrument)
            return self._totals.get(metric.full_name, [])


def _attributes(total: Total) -> dict[str, str]:
    names = (GROUP, *total.metric.labels)
    return {
        OF_LABELS.get(name, f"{OURS}{name}"): value for name, value in zip(names, total.labels, strict=True)
    }


def _value(total: Total) -> Iterator[Observation]:
    yield Observation(total.value, _attributes(total))


def _buckets(total: Total) -> Iterator[Observation]:
    attributes = _attributes(total)
    bounds = [*map(str, total.metric.buckets), "+Inf"]
    for bound, count in zip(bounds, accumulate(total.buckets), strict=True):
        yield Observation(count, {**attributes, f"{OURS}le": bound})


def _count(total: Total) -> Iterator[Observation]:
    yield Observation(sum(total.buckets), _attributes(total))


_PARTS = {"bucket": _buckets, "count": _count, "sum": _value}
