"""Writes Grafana's dashboard from the registry of metrics: ``python docs/site/dashboard.py``.

Each metric has a panel: its meaning is the title, and its advice the description.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from dedup_sdk._metrics import (
    DUPLICATE_AGES,
    EVENTS,
    GAUGES,
    HINDRANCES,
    OF_CONSUMER,
    OF_PARTITIONS,
    RECORDS,
    SHARED,
    STATE,
    TIMES,
    Metric,
)

FILE: Final = Path(__file__).parents[2] / "examples" / "monitoring" / "dashboard.json"
ROWS: Final[Sequence[tuple[str, Sequence[Metric]]]] = (
    ("Records", (RECORDS, DUPLICATE_AGES)),
    ("Partitions", (STATE, HINDRANCES, *GAUGES)),
    ("Counters", (*OF_PARTITIONS, *OF_CONSUMER, EVENTS, SHARED)),
    ("Times", TIMES),
)
_SOURCE: Final = {"type": "prometheus", "uid": "${source}"}
_COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHT: Final = 8
_QUANTILE: Final = 0.99
_RATE: Final = "[$__rate_interval]"
_ONE_OF_MANY: Final = frozenset({STATE, HINDRANCES})
"""Gauges that have a sample for each word, of which only those with 1 are shown."""


def dashboard() -> str:
    """Return the dashboard as JSON."""
    shown = {
        "title": "Dedup consumers",
        "uid": "dedup-sdk",
        "schemaVersion": 39,
        "tags": ["kafka", "dedup-sdk"],
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "editable": True,
        "templating": {"list": [_source(), _choice("group"), _choice("topic")]},
        "panels": list(_panels()),
    }
    return json.dumps(shown, indent=1, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _choice(label: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values(dedup_records_total, {label})", "refId": label},
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, y = 1, 0
    for title, metrics in ROWS:
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _COLUMNS, "h": 1},
        }
        number, y, x = number + 1, y + 1, 0
        for metric in metrics:
            place = {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT}
            yield {"id": number, "gridPos": place, **_panel(metric)}
            number, x = number + 1, x + _WIDTH
            if x == _COLUMNS:
                x, y = 0, y + _HEIGHT
        y += _HEIGHT if x else 0


def _panel(metric: Metric) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": metric.meaning[0].upper() + metric.meaning[1:],
        "description": f"{metric.full_name}. When it grows: {metric.advice}.",
        "datasource": _SOURCE,
        "targets": [
            {"refId": "A", "datasource": _SOURCE, "expr": expression(metric), "legendFormat": _legend(metric)}
        ],
        "fieldConfig": {"defaults": {"unit": _unit(metric), "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    }


def expression(metric: Metric) -> str:
    """Return the query of a metric's panel, of the chosen groups and topics."""
    chosen = 'group=~"$group"' + (', topic=~"$topic"' if "topic" in metric.labels else "")
    name, labels = f"dedup_{metric.full_name}", ", ".join(("group", *metric.labels))
    if metric.kind == "counter":
        return f"sum by ({labels}) (rate({name}_total{{{chosen}}}{_RATE}))"
    if metric.kind == "histogram":
        return (
            f"histogram_quantile({_QUANTILE}, sum by ({labels}, le) (rate({name}_bucket{{{chosen}}}{_RATE})))"
        )
    return f"max by ({labels}) ({name}{{{chosen}}})" + (" == 1" if metric in _ONE_OF_MANY else "")


def _legend(metric: Metric) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in ("group", *metric.labels))


def _unit(metric: Metric) -> str:
    if metric.kind == "counter":
        return "cps"
    return {"seconds": "s", "bytes": "bytes"}.get(metric.unit, "short")


if __name__ == "__main__":
    FILE.write_text(dashboard(), encoding="utf-8")
