"""The page for a person: one document without scripts, pictures or styles from elsewhere, which refreshes itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import chain
from typing import Final

from dedup_adapters._last_lines import LogLine
from dedup_adapters._looks import VERDICTS, Look
from dedup_sdk import Health, PartitionStatus, Sample

REFRESH_S: Final = 5
"""Seconds between two loads of the page."""
MOST_PARTITIONS: Final = 500
"""Rows of a consumer's table; further ones are left out, those with a hindrance last."""

_STYLE: Final = """
:root{color-scheme:light dark;--back:#fff;--card:#f4f6f6;--text:#16201f;--dim:#5a6665;--line:#d8dfde;--bar:#0b7a70;
--good:#0a6b3d;--wait:#8a5a00;--bad:#b3261e}
@media (prefers-color-scheme:dark){:root{--back:#101615;--card:#1a2221;--text:#e4ebea;--dim:#9aa8a6;--line:#2d3836;
--bar:#3fbcae;--good:#5fd39a;--wait:#e8b64c;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1180px;background:var(--back);color:var(--text);
font:15px/1.45 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.35rem;margin:0}h2{font-size:1.05rem;margin:1.6rem 0 .5rem}header{display:flex;gap:.6rem;flex-wrap:wrap;
align-items:center;margin-top:.4rem}
.pill{border:1px solid currentColor;border-radius:99px;padding:0 .7rem;font-weight:600}
.good{color:var(--good)}.wait{color:var(--wait)}.bad{color:var(--bad)}.dim{color:var(--dim)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(130px,1fr));gap:.6rem;margin:1rem 0}
.tile{background:var(--card);border-radius:8px;padding:.55rem .8rem}.tile b{display:block;font-size:1.3rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.35rem .5rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th{color:var(--dim);font-weight:500}th:first-child,td:first-child,th:nth-child(2),td:nth-child(2){text-align:left}
td:first-child,td:nth-child(2){white-space:normal}td:first-child{min-width:11rem}
td:nth-child(2){min-width:9rem}
progress{width:100%;height:.6rem;accent-color:var(--bar);display:block;margin-top:.25rem}
.bars{background:var(--card);border-radius:8px;padding:.6rem .8rem;max-width:640px}
.bar{display:grid;grid-template-columns:5.2rem 1fr 4.5rem;gap:.6rem;align-items:center;font-size:.9rem}
.bar span:last-child{text-align:right;font-variant-numeric:tabular-nums}.bar svg{width:100%;height:11px;display:block}
.bar rect{fill:var(--bar)}
ol{list-style:none;margin:0;padding:0}ol li{border-bottom:1px solid var(--line);padding:.3rem 0;
font:.85rem/1.4 ui-monospace,monospace}
nav{margin-top:1.2rem;color:var(--dim)}a{color:inherit}
@media (max-width:1000px){thead{display:none}
tr{display:block;background:var(--card);border-radius:8px;margin-bottom:.6rem;padding:.4rem .6rem}
td{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.15rem 0;
text-align:right}
td:first-child{font-weight:600}td::before{content:attr(data-name);color:var(--dim);font-weight:400;text-align:left;
flex-shrink:0}
td div{flex:1;text-align:left}td:nth-child(2) div{text-align:right}}
"""
_LINKS: Final = " · ".join(f"<a href={each}>{each}</a>" for each in ("livez", "readyz", "metrics"))
_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def page(looks: Sequence[Look | None], health: Health, lines: Iterable[LogLine]) -> str:
    """Return the document; ``looks`` has None for each consumer that is gone."""
    there = [each for each in looks if each is not None]
    groups = ", ".join(dict.fromkeys(each.metrics.group for each in there)) or "no consumer"
    word, kind = _in_a_word(health)
    body = [
        f'<header><h1>{escape(groups)}</h1><span class="pill {kind}">{word}</span></header>',
        *(f'<p class="{kind}">{escape(reason)}</p>' for reason in health.reasons),
        *chain.from_iterable(map(_consumer, there)),
        *_log(list(lines)),
        f"<nav>For machines: {_LINKS}</nav>",
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{REFRESH_S}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(groups)}: {word}</title><style>{_STYLE}</style></head><body>{''.join(body)}</body></html>\n"
    )


def _in_a_word(health: Health) -> tuple[str, str]:
    if not health.live:
        return "not live", "bad"
    return ("ready", "good") if health.ready else ("not ready", "wait")


def _consumer(look: Look) -> Iterator[str]:
    lags = [each.lag for each in look.statuses if each.lag is not None]
    tiles = (
        ("delivered", _count(look.metrics.value("delivered"))),
        ("duplicates hidden", _count(look.metrics.value("records", verdict="duplicate"))),
        ("lag", _count(sum(lags)) if lags else "-"),
        ("in flight", _count(sum(each.in_flight for each in look.statuses))),
        ("dead letters", _count(look.metrics.value("dead_lettered"))),
    )
    yield '<div class="tiles">'
    yield from (f'<div class="tile">{name}<b>{value}</b></div>' for name, value in tiles)
    yield "</div>"
    yield from _partitions(look)
    for sample in look.samples("duplicate_age_seconds"):
        yield from _ages(sample)


def _partitions(look: Look) -> Iterator[str]:
    if not look.statuses:
        yield '<h2>Partitions</h2><p class="dim">none is assigned</p>'
        return
    names = ["partition", "state", "lag", "in flight", *(f"{each}/s" for each in VERDICTS), "window"]
    over = f"rates over {_length(look.rates_over_s)}" if look.rates else "rates follow with the next look"
    yield f'<h2>Partitions</h2><p class="dim">{len(look.statuses)} assigned; {over}</p>'
    yield f"<table><thead><tr>{''.join(f'<th>{name}</th>' for name in names)}</tr></thead><tbody>"
    by_need = sorted(look.statuses, key=lambda each: not each.hindrances and each.state == "active")
    for status in sorted(by_need[:MOST_PARTITIONS], key=lambda each: (each.topic, each.partition)):
        cells = zip(names, _cells(look, status), strict=True)
        row = "".join(f'<td data-name="{name}">{cell}</td>' for name, cell in cells)
        yield f"<tr>{row}</tr>"
    yield "</tbody></table>"
    if len(by_need) > MOST_PARTITIONS:
        yield f'<p class="dim">{len(by_need) - MOST_PARTITIONS} more, which are active</p>'


def _cells(look: Look, status: PartitionStatus) -> Iterator[str]:
    place = status.topic, status.partition
    yield escape(f"{status.topic}[{status.partition}]")
    yield f"<div>{''.join(_state(status, look.replayed.get(place)))}</div>"
    yield "-" if status.lag is None else _count(status.lag)
    yield _count(status.in_flight)
    for verdict in VERDICTS:
        rate = look.rates.get((place, verdict))
        yield "-" if rate is None else _rate(rate)
    window_ms = status.effective_window_ms
    yield "-" if window_ms is None else _length(window_ms / 1000)


def _state(status: PartitionStatus, replayed: float | None) -> Iterator[str]:
    hindrances = f": {', '.join(status.hindrances)}" if status.hindrances else ""
    kind = "good" if status.state == "active" and not hindrances else "wait"
    if "failed" in status.hindrances:
        kind = "bad"
    yield f'<span class="{kind}">{escape(status.state + hindrances)}</span>'
    if status.state == "recovering":
        if replayed is not None:
            yield f'<progress max="1" value="{replayed:.3f}"></progress>{_count(status.recovery_left)} left'
        yield f' <span class="dim">{escape(status.detail)}</span>'


def _ages(sample: Sample) -> Iterator[str]:
    (topic,) = sample.labels
    yield f"<h2>Age of duplicates in {escape(topic)}</h2>"
    most = max(sample.buckets)
    if not most:
        yield '<p class="dim">no duplicate yet</p>'
        return
    bounds = [f"to {_length(each)}" for each in sample.metric.buckets]
    yield '<div class="bars">'
    for name, count in zip([*bounds, "more"], sample.buckets, strict=True):
        yield (
            f'<div class="bar"><span class="dim">{name}</span><svg viewBox="0 0 100 1" preserveAspectRatio="none" '
            f'role="img" aria-label="{count}"><rect width="{100 * count / most:.1f}" height="1"/></svg>'
            f"<span>{_count(count)}</span></div>"
        )
    yield "</div>"


def _log(lines: Sequence[LogLine]) -> Iterator[str]:
    yield "<h2>Last log lines</h2>"
    if not lines:
        yield '<p class="dim">none since the start</p>'
        return
    yield "<ol>"
    for each in lines:
        kind = {"INFO": "dim", "WARNING": "wait"}.get(each.level, "bad")
        yield f'<li><span class="{kind}">{each.at} {escape(each.level)}</span> {escape(each.text)}</li>'
    yield "</ol>"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or not value else f"{value:.1f}"  # noqa: PLR2004 (figures that are read)


def _length(seconds: float) -> str:
    unit_s, unit = next(((size, name) for size, name in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds / unit_s:.3g} {unit}"
