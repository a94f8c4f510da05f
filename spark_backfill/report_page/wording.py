"""Numbers as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

from dedup_sdk._window import length_text

_LAST_MS: Final = 253_402_300_799_000  # the end of the year 9999
_KIBI: Final = 1024
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NOTHING: Final = "\N{EN DASH}"
_SMALL: Final = 10
_NOISE: Final = 1e-6


def number(value: float) -> str:
    """Return e.g. ``1,234,567``."""
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share as percent, rounded down; nearly nothing or nearly all never reads as that."""
    if value is None:
        return _NOTHING
    percent = 100 * value
    if percent in {0, 100}:
        return f"{percent:.0f} %"
    far = round(min(percent, 100 - percent), 9)
    places = 1 if far >= 1 else 2 if far >= 0.1 else 3  # noqa: PLR2004 (as many digits as tell it from the end)
    shown = math.floor(percent * 10**places + _NOISE) / 10**places
    digits = f"{shown:.{places}f}"
    return f"{digits.rstrip('0') if places > 1 else digits} %" if shown else "< 0.001 %"


def size_text(value: float) -> str:
    """Return e.g. ``1.5 GiB``."""
    power = 0
    while value >= _KIBI and power < len(_SIZES) - 1:
        value, power = value / _KIBI, power + 1
    return f"{value:,.{1 if power and value < _SMALL else 0}f} {_SIZES[power]}"


def length(value_ms: int | None) -> str:
    """Return a length of time in its two largest units, e.g. ``3 d 4 h``."""
    if value_ms is None:
        return _NOTHING
    return length_text(value_ms, most_units=2)


def moment(value_ms: int | None) -> str:
    """Return a timestamp (ms since 1970) as a date and time of day, UTC."""
    if value_ms is None or value_ms < 0:
        return _NOTHING
    if value_ms > _LAST_MS:
        return "after the year 9999"
    return datetime.fromtimestamp(value_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: ``1 record``, ``2 records``."""
    return f"{number(count)} {one if count == 1 else many or f'{one}s'}"
