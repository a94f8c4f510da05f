"""The metrics of consumers for Prometheus (extra ``[prometheus]``).

    from dedup_adapters.prometheus import DedupCollector
    from prometheus_client import REGISTRY, start_http_server

    REGISTRY.register(DedupCollector(consumer))
    start_http_server(8000)

Names, units and help texts are those of `dedup_sdk.METRICS`, with the prefix ``dedup_`` and the label ``group``.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.registry import Collector as PrometheusCollector
    from prometheus_client.utils import floatToGoString
except ImportError as error:  # pragma: no cover (the environment has it)
    raise ImportError(
        "dedup_adapters.prometheus needs prometheus-client: pip install 'dedup-sdk[prometheus]'"
    ) from error

from dedup_adapters._consumer_totals import GROUP, ConsumerTotals, Total
from dedup_adapters._looks import AnyConsumer
from dedup_adapters._prometheus_text import PREFIX, help_of
from dedup_sdk import METRICS, Metric

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class DedupCollector(PrometheusCollector):
    """Collects the metrics of consumers when Prometheus asks for them.

    One collector is enough for all consumers of a process; a registry refuses a second one, whose names would be the
    same. The values of consumers with the same group are added up. The collector keeps no consumer alive; the counts of
    one that is gone stay, as of the last collection. A collection waits for no lock of a consumer.
    """

    def __init__(self, *consumers: AnyConsumer) -> None:
        self._consumers = ConsumerTotals(consumers)

    def add(self, consumer: AnyConsumer) -> None:
        """Collect the metrics of a consumer, too; harmless if repeated. From any thread."""
        self._consumers.add(consumer)

    def describe(self) -> Iterable[_Family]:
        """Return all metrics, without values: their names, which a registry wants to know."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterable[_Family]:
        """Return all metrics with their values at this moment. From any thread."""
        families = {metric.full_name: _family(metric) for metric in METRICS}
        for total in self._consumers.totals():
            _add(families[total.metric.full_name], total)
        return families.values()


def _family(metric: Metric) -> _Family:
    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    family: _Family = kinds[metric.kind](
        f"{PREFIX}{metric.full_name}", help_of(metric), labels=[GROUP, *metric.labels], unit=metric.unit
    )
    return family


def _add(family: _Family, total: Total) -> None:
    if isinstance(family, HistogramMetricFamily):
        bounds = [*map(floatToGoString, total.metric.buckets), "+Inf"]
        counts = list(zip(bounds, accumulate(total.buckets), strict=True))
        family.add_metric(total.labels, buckets=counts, sum_value=total.value)
    else:
        family.add_metric(total.labels, total.value)
