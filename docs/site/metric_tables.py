"""Writes the tables of the metrics from the registry: ``python docs/site/metric_tables.py``.

The counters are in docs/reference.md, all others in docs/monitoring.md, each table behind its marker. `LINKS` has the
phrases of the registry's sentences that lead to other pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dedup_sdk._metrics import (
    DUPLICATE_AGES,
    EVENTS,
    GAUGES,
    HINDRANCES,
    OF_CONSUMER,
    OF_PARTITIONS,
    REASONS,
    RECORDS,
    SHARED,
    STATE,
    TIMES,
    VERDICTS,
    Metric,
)

DOCS: Final = Path(__file__).parents[1]
LINKS: Final = {
    "`run` handler": "[`run`](handlers.md) handler",
    "confirmed dead letter": "confirmed [dead letter](handlers.md#dead-letters)",
    "`max_disk`": "[`max_disk`](operations.md#disk-and-memory)",
    "were damaged": "were [damaged](recovery.md#when-a-store-is-damaged)",
    "by reason": "by [reason](ids.md#records-without-an-id)",
    "later than the window allows": "[later than the window](windows.md#by-time) allows",
    "of a shared store, by name": "of a [shared store](shared-store.md#signs-in-verdicts-and-counters), by name",
    "partition events": "[partition events](#events)",
    "the table of events": "[the table of events](#events)",
    "`recovering` for long": "[`recovering`](reference.md#states-of-a-partition) for long",
    "the reference has each": "[the reference](reference.md#states-of-a-partition) has each",
    "give a snapshot": "give a [snapshot](snapshots.md)",
}


def _row(*cells: str) -> str:
    text = "| " + " | ".join(cells) + " |"
    for phrase, link in LINKS.items():
        text = text.replace(phrase, link, 1)
    return text


def _counters() -> Iterable[str]:
    yield _row("name", "metric", "counts", "when it grows")
    yield "|---|---|---|---|"
    for kind, reasons in REASONS.items():
        meaning, advice = VERDICTS[kind]
        if reasons:
            meaning += f" ({', '.join(f'`{kind.value}.{reason}`' for reason in reasons)})"
        yield _row(f"`{kind.value}`", f'`{RECORDS.name}{{verdict="{kind.value}"}}`', meaning, advice)
    for metric in (*OF_PARTITIONS, *OF_CONSUMER):
        yield _row(f"`{metric.name}`", _labelled(metric), metric.meaning, metric.advice)
    for prefix, metric in (("event", EVENTS), ("shared", SHARED)):
        yield _row(f"`{prefix}.<name>`", _labelled(metric), metric.meaning, metric.advice)


def _labelled(metric: Metric) -> str:
    return f"`{metric.full_name}{{{', '.join(metric.labels)}}}`" if metric.labels else f"`{metric.full_name}`"


def _others() -> Iterable[str]:
    yield _row("metric", "kind", "meaning", "when it grows")
    yield "|---|---|---|---|"
    for metric in (STATE, HINDRANCES, *GAUGES, DUPLICATE_AGES, *TIMES):
        yield _row(_labelled(metric), metric.kind, metric.meaning, metric.advice)


TABLES: Final = {
    "reference.md": ("<!-- counters: made by docs/site/metric_tables.py -->\n", _counters),
    "monitoring.md": ("<!-- metrics: made by docs/site/metric_tables.py -->\n", _others),
}
"""For each page: the line before its table, and the function that makes it."""


def page_with_table(name: str) -> str:
    """Return a page of docs/ with its table as the registry has it."""
    marker, rows = TABLES[name]
    before, found, after = (DOCS / name).read_text(encoding="utf-8").partition(marker)
    if not found:
        raise AssertionError(f"docs/{name} has no line {marker!r}")
    return before + marker + "\n".join(rows()) + "\n\n" + after.partition("\n\n")[2]


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page_with_table(each), encoding="utf-8")
