"""A figure in the report's style, and how it gets into a page and a PNG.

Colours are names of the page's style sheet in disguise: a figure is drawn in fixed ones, which its SVG replaces by
variables, so that it follows the reader's light or dark setting.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from spark_backfill.report_page.wording import length

INK: Final = "#22262b"
MUTED: Final = "#6a7178"
LINE: Final = "#d9dde2"
MAIN: Final = "#1766b8"
SOFT: Final = "#a9c9ea"
WARM: Final = "#b4530a"
SHADE: Final = "#eef0f3"
CARD: Final = "#fefefe"
_VARIABLES: Final = {
    INK: "--ink", MUTED: "--muted", LINE: "--line", MAIN: "--main", SOFT: "--soft", WARM: "--warm",
    SHADE: "--shade", CARD: "--card",
}  # fmt: skip
_PAPER: Final = "#ffffff"
_PNG_DOTS_PER_INCH: Final = 220
STYLE: Final[Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": LINE,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.labelcolor": MUTED,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.size": 9,
    "font.family": "sans-serif",
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "dedup",
    "text.color": INK,
    # A producer called $x$ is no formula.
    "text.parse_math": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}

DAY_MS: Final = 86_400_000
_USUAL_MS: Final = (
    1, 10, 100, 1_000, 60_000, 3_600_000, DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 365 * DAY_MS,
)  # fmt: skip
_MOST_TICKS: Final = 7
_BYTE_TICKS: Final = 4


def figure(rows: int = 1, *, height_inches: float = 2.7, **settings: Any) -> tuple[Figure, Any]:
    """Return a figure as wide as a telephone, with so many axes below each other that share their x axis.

    Figures are made, and written, inside of ``matplotlib.rc_context(STYLE)``.
    """
    drawn = Figure(figsize=(4.3, height_inches), layout="constrained")
    return drawn, drawn.subplots(rows, 1, sharex=True, **settings)


def to_svg(drawn: Figure, name: str) -> str:
    """Return a figure as an SVG element; ``name`` sets its IDs apart from those of other figures of the page."""
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\1{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    svg = re.sub(r'\s(?:width|height)="[^"]*"', "", svg, count=2)
    # The page's own font, where the figure has asked for one by name.
    return re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)


def to_png(drawn: Figure, path: Path) -> None:
    """Write a figure as a PNG on white."""
    drawn.savefig(path, format="png", dpi=_PNG_DOTS_PER_INCH, facecolor=_PAPER, metadata={"Software": None})


def time_axis(axis: Any, first_ms: float, last_ms: float) -> None:
    """Make an x axis of lengths of time (ms), logarithmic, with ticks at usual lengths."""
    axis.set_xscale("log")
    axis.set_xlim(first_ms, last_ms)
    ticks = [tick for tick in _USUAL_MS if first_ms <= tick <= last_ms]
    while len(ticks) > _MOST_TICKS:
        ticks = ticks[-1::-2][::-1]
    axis.set_xticks(ticks, [length(tick) for tick in ticks])
    axis.xaxis.set_minor_locator(NullLocator())


def count_axis(axis: Any, last: float) -> None:
    """Make an x axis of counts from 1 on, logarithmic."""
    axis.set_xscale("log")
    axis.set_xlim(1, last)
    axis.xaxis.set_major_locator(LogLocator(numticks=_MOST_TICKS))
    axis.xaxis.set_major_formatter(EngFormatter())
    axis.xaxis.set_minor_locator(NullLocator())


def byte_ticks(most: int) -> list[int]:
    """Return round numbers of bytes from 0 on for an axis that ends at ``most``."""
    power = max((most.bit_length() - 1) // 10, 0)
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        if most <= _BYTE_TICKS * step * 1024**power:
            return list(range(0, most + 1, step * 1024**power))
    return [0]
