"""The report's figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from dedup_sdk._window import Window
from spark_backfill.findings.adviser import STORE_BYTES_PER_ID, TARGET, Advice, hidden_share
from spark_backfill.findings.findings import Findings
from spark_backfill.report_page.figure import (
    CARD,
    INK,
    MAIN,
    MUTED,
    SHADE,
    SOFT,
    WARM,
    byte_ticks,
    count_axis,
    figure,
    time_axis,
)
from spark_backfill.report_page.wording import length, share, size_text

MOST_BARS: Final = 16
_WINDOW_STEPS: Final = 200
_MISSED_FLOOR: Final = 1e-5
_BAR_INCHES: Final = 0.22
_NAME_CHARACTERS: Final = 20

_dates: Any = untyped_dates


def plots(findings: Findings, advice: Advice, window: Window | None) -> Iterator[tuple[str, Figure]]:
    """Yield the figures that these findings have something for, with their names."""
    if findings.duplicates:
        yield "window-adviser", _adviser(findings, advice, window)
        yield "lateness-time", _lateness(findings, advice, window)
        yield "lateness-offsets", _offsets(findings)
    if len(findings.over_time.starts_ms):
        yield "over-time", _over_time(findings)
    if findings.partitions:
        yield "by-partition", _by_partition(findings)
    if findings.producers:
        yield "by-producer", _by_producer(findings)


def _adviser(findings: Findings, advice: Advice, window: Window | None) -> Figure:
    first, last = _span(findings, advice)
    lengths = np.geomspace(first, last, _WINDOW_STEPS)
    missed = [1 - (hidden_share(findings, int(each)) or 0) for each in lengths]
    ids = np.array([findings.last_seen.within(int(each)) for each in lengths]) * findings.sampling
    drawn, (above, below) = figure(2, height_inches=3.7, height_ratios=[3, 2])
    time_axis(below, first, last)
    above.plot(lengths, np.maximum(missed, _MISSED_FLOOR), color=MAIN, drawstyle="steps-post")
    above.set_yscale("log")
    above.set_ylim(_MISSED_FLOOR, 1.3)
    above.set_yticks(
        [10.0**power for power in range(-5, 1)], ["0.001 %", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"]
    )
    above.minorticks_off()
    above.axhline(1 - TARGET, color=WARM, linewidth=1, linestyle=(0, (4, 2)))
    above.set_title("duplicates that it misses", loc="left", fontsize=9, color=INK)
    below.plot(lengths, ids * STORE_BYTES_PER_ID, color=MAIN)
    below.fill_between(lengths, ids * STORE_BYTES_PER_ID, color=SOFT, alpha=0.5, linewidth=0)
    below.set_ylim(0)
    ticks = byte_ticks(int(ids.max()) * STORE_BYTES_PER_ID)
    below.set_yticks(ticks, [size_text(tick) for tick in ticks])
    below.set_title("disk that it takes", loc="left", fontsize=9, color=INK)
    below.set_xlabel("window")
    for axis in (above, below):
        _marks(axis, advice, window, labelled=axis is above)
    return drawn


def _lateness(findings: Findings, advice: Advice, window: Window | None) -> Figure:
    first, last = _span(findings, advice)
    lengths, counts = findings.gaps_ms.curve()
    shares = [(findings.early + count) / findings.duplicates for count in (0, *counts)]
    drawn, axis = figure()
    time_axis(axis, first, last)
    _cumulative(axis, [first, *(max(each, first) for each in lengths), last], [*shares, shares[-1]])
    _marks(axis, advice, window, labelled=True)
    axis.set_xlabel("time since the sighting before")
    return drawn


def _offsets(findings: Findings) -> Figure:
    bounds, counts = findings.gaps_offsets.curve()
    drawn, axis = figure()
    count_axis(axis, max(bounds[-1] * 1.5, 10))
    _cumulative(axis, [1, *bounds, bounds[-1] * 1.5], [0, *(count / counts[-1] for count in counts), 1])
    axis.set_xlabel("offsets since the sighting before")
    return drawn


def _cumulative(axis: Any, gaps: list[float], shares: list[float]) -> None:
    axis.plot(gaps, shares, color=MAIN, drawstyle="steps-post")
    axis.set_ylim(0, 1.04)
    axis.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    axis.set_ylabel("duplicates, cumulative")


def _over_time(findings: Findings) -> Figure:
    series = findings.over_time
    first, last = series.moment(1 - TARGET) or 0, series.moment(TARGET) or 0
    inside = (series.starts_ms >= first) & (series.starts_ms <= last)
    starts = series.starts_ms[inside]
    # Buckets without a record are zeros, not gaps.
    count = (last - first) // series.width_ms + 1
    places = (starts - first) // series.width_ms
    step = max(-(-int(count) // 400), 1)
    edges = np.arange(0, count + step, step)
    columns = [
        np.histogram(places, edges, weights=column[inside])[0]
        for column in (series.records, series.duplicates)
    ]
    times = _dates.date2num(
        [datetime.fromtimestamp((first + int(edge) * series.width_ms) / 1000, UTC) for edge in edges]
    )
    drawn, axes = figure(2, height_inches=3.2)
    for axis, column, colour, name in zip(
        axes, columns, (MUTED, MAIN), ("records", "duplicates"), strict=True
    ):
        axis.stairs(column, times, color=colour, fill=True, alpha=0.85)
        axis.set_ylim(0)
        axis.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axis.yaxis.set_major_formatter(EngFormatter())
        axis.set_title(f"{name} per {length(series.width_ms * step)}", loc="left", fontsize=9, color=INK)
    locator = _dates.AutoDateLocator(minticks=3, maxticks=6)
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, tz=UTC))
    axes[-1].set_xlim(times[0], times[-1])
    return drawn


def _by_partition(findings: Findings) -> Figure:
    numbers, tallies = zip(*findings.worst_partitions(MOST_BARS), strict=True)
    drawn, axis = _bars(
        list(map(str, numbers)),
        {"": [tally.duplicates for tally in tallies]},
        [share(tally.share) for tally in tallies],
    )
    axis.set_ylabel("partition")
    axis.set_xlabel("duplicates (share of records with an ID)")
    return drawn


def _by_producer(findings: Findings) -> Figure:
    tallies = findings.worst_producers(MOST_BARS)
    drawn, axis = _bars(
        [tally.shown_name[:_NAME_CHARACTERS] for tally in tallies],
        {
            "its own, again": [tally.duplicates - tally.of_others for tally in tallies],
            "another's": [tally.of_others for tally in tallies],
        },
        [share(tally.share) for tally in tallies],
    )
    axis.legend(frameon=False, loc="lower right", fontsize=8)
    axis.set_xlabel("duplicates (share of its records)")
    return drawn


def _bars(names: list[str], duplicates: Mapping[str, list[int]], shares: list[str]) -> tuple[Figure, Any]:
    """A bar a name, of the kinds of duplicates one after the other, with a share behind it."""
    drawn, axis = figure(height_inches=0.8 + _BAR_INCHES * max(len(names), 3))
    axis.grid(visible=False, axis="y")
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.xaxis.set_major_formatter(EngFormatter())
    axis.margins(x=0.22)
    places, ends = range(len(names)), np.zeros(len(names), np.int64)
    for colour, (kind, counts) in zip((MAIN, SOFT), duplicates.items(), strict=False):
        axis.barh(places, counts, left=ends, color=colour, height=0.7, label=kind, tick_label=names)
        ends += counts
    axis.bar_label(axis.containers[-1], shares, padding=4, color=MUTED, fontsize=8)
    axis.invert_yaxis()
    return drawn, axis


def _span(findings: Findings, advice: Advice) -> tuple[float, float]:
    """The lengths of time (ms) that an axis shows: from where duplicates begin to come to beyond the history."""
    shortest = findings.gaps_ms.value_reaching(max(round(0.01 * findings.gaps_ms.total), 1)) or 1
    longest = findings.gaps_ms.value_reaching(findings.gaps_ms.total) or 1
    last = 1.6 * max(advice.history_ms, longest, 10)
    return max(min(shortest / 2, last / 100), 1), last


def _marks(axis: Any, advice: Advice, window: Window | None, *, labelled: bool) -> None:
    """Lines at the windows, and a shade over lengths beyond the history."""
    low, high = axis.get_xlim()
    axis.axvspan(advice.history_ms, high, color=SHADE, zorder=0, linewidth=0)
    lines = [(window, MUTED, "this run")] if window is not None else []
    if advice.smallest is not None:
        lines.append((advice.smallest, WARM, "advised"))
    for place, (each, colour, name) in enumerate(lines):
        at = each.time_ms or 0
        if not low < at < high:
            continue
        axis.axvline(at, color=colour, linewidth=1.2, linestyle="-" if name == "advised" else (0, (2, 2)))
        if labelled:
            right = np.log(at / low) > 0.7 * np.log(high / low)
            axis.annotate(
                f"{name}: {length(at)}", (at, 0.04 + 0.12 * place), xycoords=("data", "axes fraction"),
                xytext=(-4 if right else 4, 0), textcoords="offset points", ha="right" if right else "left",
                fontsize=8, color=colour,
                bbox={"facecolor": CARD, "edgecolor": "none", "alpha": 0.85, "pad": 1},
            )  # fmt: skip
