"""The metrics of consumers in the text format of Prometheus, version 0.0.4.

The page ``/metrics`` has a registry of nothing else, so that it needs no client of Prometheus: with 32 partitions the
page takes 5 ms of CPU time, and 20 with ``prometheus-client``. A scrape shares the interpreter with the consumer's
thread, so that each of these milliseconds lasts several during a recovery (`benchmarks/looking.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Final

from dedup_adapters._consumer_totals import GROUP, Total
from dedup_sdk import METRICS, Metric

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
PREFIX: Final = "dedup_"

_FIRST_POWER: Final = 7
"""From so many digits on a bound is written as a power of ten."""
_LABELS: Final = {
    metric.full_name: ",".join(f'{label}="%s"' for label in (GROUP, *metric.labels)) for metric in METRICS
}
_NAMES: Final = {
    metric.full_name: f"{PREFIX}{metric.full_name}{'_total' * (metric.kind == 'counter')}"
    for metric in METRICS
}
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def help_of(metric: Metric) -> str:
    """Return the help text of a metric: its meaning, and the next step."""
    return f"{metric.meaning}. When it grows: {metric.advice}."


def text_of(totals: Iterable[Total]) -> str:
    """Return all metrics of the registry as text; a metric without a value has its help text alone."""
    lines = {metric.full_name: [_head(metric)] for metric in METRICS}
    for total in totals:
        name = total.metric.full_name
        labels = _LABELS[name] % total.labels
        if "\\" in labels or "\n" in labels or labels.count('"') > 2 * len(total.labels):
            labels = _LABELS[name] % tuple(value.translate(_ESCAPED) for value in total.labels)
        if total.buckets:
            lines[name] += _histogram(f"{PREFIX}{name}", labels, total)
        else:
            lines[name].append(f"{_NAMES[name]}{{{labels}}} {total.value}\n")
    return "".join(["".join(of_metric) for of_metric in lines.values()])


def _head(metric: Metric) -> str:
    name = _NAMES[metric.full_name]
    text = help_of(metric).replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {name} {text}\n# TYPE {name} {metric.kind}\n"


def _histogram(name: str, labels: str, total: Total) -> Iterator[str]:
    bounds = [*map(_bound, total.metric.buckets), "+Inf"]
    for bound, count in zip(bounds, accumulate(total.buckets), strict=True):
        yield f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
    yield f"{name}_count{{{labels}}} {sum(total.buckets)}\n"
    yield f"{name}_sum{{{labels}}} {total.value}\n"


def _bound(value: float) -> str:
    """Return the upper bound of a bucket as Prometheus' clients write it: a label, so that 1e+06 is not 1000000.0."""
    digits, _, fraction = str(value).partition(".")
    if len(digits) < _FIRST_POWER:
        return str(value)
    return f"{digits[0]}.{digits[1:]}{fraction}".rstrip("0.") + f"e+{len(digits) - 1:02}"
