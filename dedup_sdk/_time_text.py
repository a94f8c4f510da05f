"""Moments as text for people: in UTC, and for any number that a producer may write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_YEAR_MS: Final = 31_556_952_000


def utc_time(timestamp_ms: int) -> datetime | None:
    """Return a moment in UTC; None for one beyond the calendar, because producers may write any number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def time_text(timestamp_ms: int) -> str:
    """Return a moment for people, in UTC: ISO 8601 to the millisecond; of one beyond the calendar the year."""
    time = utc_time(timestamp_ms)
    if time is not None:
        return time.isoformat(timespec="milliseconds")
    return f"the year {1970 + timestamp_ms // _YEAR_MS}"
