"""Numbers as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from dedup_sdk._window import length_text
from spark_backfill.findings.time_series import LAST_MS

NOTHING: Final = "\N{EN DASH}"
_KIBI: Final = 1024
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SMALL: Final = 10
_NOISE: Final = 1e-6


def number(value: float) -> str:
    """Return e.g. ``1,234,567``."""
    return f"{value:,.0f}"


def share(part: float | None, whole: float = 1) -> str:
    """Return a share as percent, rounded down; nearly nothing or nearly all never reads as that."""
    if part is None or not whole:
        return NOTHING
    percent = 100 * part / whole
    steps = 10 if 1 <= percent <= 99 else 1_000  # noqa: PLR2004 (as many digits as tell it from the end)
    shown = math.floor(percent * steps + _NOISE) / steps
    return f"{shown:g} %" if shown or not part else "< 0.001 %"


def size_text(value: float) -> str:
    """Return e.g. ``1.5 GiB``."""
    power = 0
    while value >= _KIBI and power < len(_SIZES) - 1:
        value, power = value / _KIBI, power + 1
    return f"{value:,.{1 if power and value < _SMALL else 0}f} {_SIZES[power]}"


def length(value_ms: int) -> str:
    """Return a length of time in its two largest units, e.g. ``3 d 4 h``."""
    return length_text(value_ms, most_units=2)


def moment(value_ms: int | None) -> str:
    """Return a timestamp (ms since 1970) as a date and time of day, UTC."""
    if value_ms is None or value_ms < 0:
        return NOTHING
    if value_ms > LAST_MS:
        return "after the year 9999"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, one: str) -> str:
    """Return a number with its noun: ``1 record``, ``2 records``."""
    return f"{number(count)} {one}{'' if count == 1 else 's'}"
