"""The report's figures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import UTC
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib import dates as untyped_dates
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import (
    EngFormatter,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
    PercentFormatter,
)

from spark_backfill.findings.adviser import STORE_BYTES_PER_ID, TARGET, USUAL_MS, Advice, hidden_share
from spark_backfill.findings.findings import Findings
from spark_backfill.findings.histogram import reaching
from spark_backfill.findings.time_series import LAST_MS
from spark_backfill.report_page.wording import length

_MAIN, _SOFT, _WARM, _MUTED, _LINE = "#1766b8", "#a9c9ea", "#b4530a", "#6a7178", "#d9dde2"
_STYLE: Final[Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": _LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "figure.constrained_layout.use": True,
    # Readers' fonts are a little wider than the one that places are worked out for.
    "figure.constrained_layout.w_pad": 0.1,
    "figure.facecolor": "none",
    "font.size": 9,
    "grid.color": _LINE,
    "legend.facecolor": "white",
    "legend.fontsize": 8,
    "legend.framealpha": 1,
    "svg.fonttype": "none",
    "svg.hashsalt": "dedup",
    # A producer called $x$ is no formula.
    "text.parse_math": False,
    "timezone": "UTC",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_PNG_DOTS_PER_INCH: Final = 220
_INCHES_WIDE: Final = 4.3  # as a telephone
_MOST_TICKS: Final = 7
_WINDOW_STEPS: Final = 200
_TIME_STEPS: Final = 400
_MISSED_FLOOR: Final = 1e-5

_dates: Any = untyped_dates


def draw(findings: Findings, advice: Advice, window_ms: int | None, folder: Path) -> dict[str, str]:
    """Return each figure that these findings have something for as an SVG element, and write it as a PNG.

    Raises:
        OSError: a PNG cannot be written.
    """
    late, timed = bool(findings.gaps_ms), bool(findings.records_over_time.counts)
    drawers: dict[str, tuple[bool, Callable[[], Figure]]] = {
        "window-adviser": (late, lambda: _adviser(findings, advice, window_ms)),
        "lateness-time": (late, lambda: _lateness(findings, advice, window_ms)),
        "lateness-offsets": (late, lambda: _offsets(findings)),
        "over-time": (timed, lambda: _over_time(findings)),
    }
    figures = dict[str, str]()
    with rc_context(_STYLE):
        for name, (has_data, drawer) in drawers.items():
            if has_data:
                drawn, text = drawer(), io.StringIO()
                drawn.savefig(
                    text, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
                )
                figures[name] = text.getvalue()[text.getvalue().index("<svg") :]
                drawn.savefig(folder / f"{name}.png", dpi=_PNG_DOTS_PER_INCH, facecolor="white")
    return figures


def _adviser(findings: Findings, advice: Advice, window_ms: int | None) -> Figure:
    drawn = Figure(figsize=(_INCHES_WIDE, 3.9))
    above, below = drawn.subplots(2, sharex=True, height_ratios=[3, 2])
    lengths = np.geomspace(*_span(findings, advice), _WINDOW_STEPS)
    missed = [1 - (hidden_share(findings, int(each)) or 0) for each in lengths]
    above.plot(lengths, np.maximum(missed, _MISSED_FLOOR), color=_MAIN, drawstyle="steps-post")
    above.set_yscale("log")
    above.set_ylim(_MISSED_FLOOR, 1.3)
    above.yaxis.set_minor_locator(NullLocator())
    above.yaxis.set_major_formatter(FuncFormatter(lambda each, _: f"{100 * each:g} %"))
    above.axhline(1 - TARGET, color=_WARM, linewidth=1, linestyle=":")
    above.set_title("duplicates that it misses")
    used = [findings.ids_within(int(each)) * STORE_BYTES_PER_ID for each in lengths]
    below.fill_between(lengths, used, color=_SOFT, edgecolor=_MAIN)
    below.set_ylim(0)
    below.yaxis.set_major_locator(MaxNLocator(3))
    below.yaxis.set_major_formatter(EngFormatter("B"))
    below.set_title("disk that it takes")
    below.set_xlabel("window")
    for axis in (above, below):
        _length_axis(axis, findings, advice, window_ms)
    above.legend(loc="lower left")
    return drawn


def _lateness(findings: Findings, advice: Advice, window_ms: int | None) -> Figure:
    drawn, axis = _cumulative(findings.gaps_ms, "time since the sighting before")
    _length_axis(axis, findings, advice, window_ms)
    axis.legend(loc="upper left")
    return drawn


def _offsets(findings: Findings) -> Figure:
    drawn, axis = _cumulative(findings.gaps_offsets, "offsets since the sighting before")
    axis.set_xlim(1, max(1.5 * max(findings.gaps_offsets), 10))
    axis.xaxis.set_major_locator(LogLocator(numticks=_MOST_TICKS))
    axis.xaxis.set_major_formatter(EngFormatter())
    return drawn


def _cumulative(gaps: Mapping[int, int], label: str) -> tuple[Figure, Any]:
    drawn = Figure(figsize=(_INCHES_WIDE, 2.7))
    axis: Any = drawn.subplots()
    bounds = sorted(gaps)
    reached = np.array([0, *accumulate(gaps[bound] for bound in bounds)])
    ends = [0.5, *(max(bound, 0.5) for bound in bounds), 1e3 * max(bounds[-1], 1)]
    axis.plot(ends, [*(reached / reached[-1]), 1], color=_MAIN, drawstyle="steps-post")
    axis.set_xscale("log")
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0, 1.04)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.set_ylabel("duplicates, cumulative")
    axis.set_xlabel(label)
    return drawn, axis


def _over_time(findings: Findings) -> Figure:
    counts, width = findings.records_over_time.counts, findings.records_over_time.width_ms
    first, last = reaching(counts, 1 - TARGET) or 0, reaching(counts, TARGET) or 0
    step = width * (1 + (last - first) // width // _TIME_STEPS)
    edges = np.arange(first, last + step + 1, step)
    drawn = Figure(figsize=(_INCHES_WIDE, 3.2))
    axes: Any = drawn.subplots(2, sharex=True)
    series = {
        "records": (findings.records_over_time, _MUTED),
        "duplicates": (findings.duplicates_over_time, _MAIN),
    }
    for axis, (name, (each, colour)) in zip(axes, series.items(), strict=True):
        column, _ = np.histogram(list(each.counts), edges, weights=list(each.counts.values()))
        axis.stairs(column, _dates.date2num(edges.astype("datetime64[ms]")), color=colour, fill=True)
        axis.set_ylim(0)
        axis.yaxis.set_major_locator(MaxNLocator(3, integer=True))
        axis.yaxis.set_major_formatter(EngFormatter())
        axis.set_title(f"{name} per {length(step)}")
    # An axis cannot go beyond the calendar, as its margins or a bucket of a thousand years would.
    calendar = _dates.date2num(np.array([0, LAST_MS], "datetime64[ms]"))
    axes[-1].set_xlim(np.clip(axes[-1].get_xlim(), *calendar))
    locator = _dates.AutoDateLocator(tz=UTC, minticks=3, maxticks=6)
    axes[-1].xaxis.set_major_locator(locator)
    axes[-1].xaxis.set_major_formatter(_dates.ConciseDateFormatter(locator, tz=UTC))
    return drawn


def _span(findings: Findings, advice: Advice) -> tuple[float, float]:
    """The lengths of time (ms) that an axis shows: from where duplicates begin to come to beyond the history."""
    last = 1.6 * max(advice.history_ms, *findings.gaps_ms, 10)
    return max(min((reaching(findings.gaps_ms, 0.01) or 0) / 2, last / 100), 1), last


def _length_axis(axis: Any, findings: Findings, advice: Advice, window_ms: int | None) -> None:
    """Make an x axis of lengths of time (ms), with lines at the windows, and a shade over those beyond the history."""
    first, last = _span(findings, advice)
    axis.set_xscale("log")
    axis.set_xlim(first, last)
    ticks = [tick for tick in (1, 10, 100, *USUAL_MS) if first <= tick <= last]
    ticks = ticks[:: -(-len(ticks) // _MOST_TICKS) or 1]
    axis.set_xticks(ticks, list(map(length, ticks)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.axvspan(advice.history_ms, last, color=_LINE, alpha=0.5, label="not known")
    for name, at_ms, colour in (("this run", window_ms, _MUTED), ("advised", advice.smallest_ms, _WARM)):
        if at_ms is not None and first < at_ms < last:
            axis.axvline(at_ms, color=colour, linestyle="--", label=f"{name}: {length(at_ms)}")
