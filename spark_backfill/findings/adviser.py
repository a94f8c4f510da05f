"""Which window: the duplicates that each length hides, the IDs that it remembers, and the limits of the history.

A duplicate refreshes its mark, so that a window hides exactly the duplicates whose gap to the sighting before is no
longer than the window: an advice needs nothing but the gaps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from spark_backfill.findings.findings import Findings
from spark_backfill.findings.histogram import at_most, reaching

TARGET: Final = 0.999
"""The share of duplicates that the advised window hides."""

STORE_BYTES_PER_ID: Final = 40
"""Disk of a consumer's store for an ID that is remembered.

31 bytes (benchmarks/README.md), and up to 1.3 times that while old ones are on their way out.
"""

SURE_DUPLICATES: Final = 10_000
"""With fewer duplicates their rarest thousandth is a handful, and the advice depends on them."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
USUAL_MS: Final = (
    _SECOND, _MINUTE, 15 * _MINUTE, _HOUR, 6 * _HOUR, *(days * _DAY for days in (1, 3, 7, 14, 30, 90, 180, 365)),
)  # fmt: skip
"""Lengths of time that people choose windows from."""

_LEAST_UNITS: Final = 5
_RISING: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One length of window.

    - ``hidden``: share of the duplicates with a gap in time that it certainly hides (None: there are none).
    - ``ids``, ``bytes``: IDs that it would remember at the cut, and the disk of a consumer's store for them.
    - ``in_view``: share of the records before which so much history was read: 1 is all, at 0 nothing is known.
    """

    window_ms: int
    hidden: float | None
    ids: int
    bytes: int
    in_view: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The figures of the history for windows.

    - ``history_ms``: how much of it was read, by the timestamps of all but the oddest thousandth of the records.
    - ``smallest_ms``: the shortest window that hides `TARGET` of the duplicates with a gap in time, rounded up; None
      where there are none.
    - ``table``: windows of usual lengths, ascending, the run's own and the smallest among them.
    - ``still_rising``: more than 1 % of the duplicates came later than half of the history: a longer one would
      show more.
    """

    history_ms: int
    smallest_ms: int | None
    table: tuple[WindowRow, ...]
    still_rising: bool


def advise(findings: Findings, window_ms: int | None = None) -> Advice:
    """Return the advice; ``window_ms`` is the time of the window that the run was given."""
    series = findings.records_over_time
    first, last = reaching(series.counts, 1 - TARGET), reaching(series.counts, TARGET)
    history_ms = 0 if first is None or last is None else last + series.width_ms - first
    needed_ms = reaching(findings.gaps_ms, TARGET)
    smallest_ms = None if needed_ms is None else round_up(needed_ms, history_ms)
    known = sum(length <= history_ms for length in USUAL_MS)
    # The first one beyond the history is there to say that nothing is known of it.
    lengths = {*USUAL_MS[: known + 1], smallest_ms, window_ms}
    early = hidden_share(findings, history_ms // 2)
    return Advice(
        history_ms=history_ms,
        smallest_ms=smallest_ms,
        table=tuple(_row(findings, length, first or 0) for length in sorted(filter(None, lengths))),
        still_rising=early is not None and 1 - early > _RISING,
    )


def hidden_share(findings: Findings, window_ms: int) -> float | None:
    """Return the share of duplicates with a gap in time that such a window (ms) surely hides; None: there are none."""
    gaps = sum(findings.gaps_ms.values())
    return at_most(findings.gaps_ms, window_ms) / gaps if gaps else None


def round_up(length_ms: int, most_ms: int) -> int:
    """Return a length not shorter, of five or more whole days, hours, minutes or seconds, the longest unit that fits.

    As it is where that would be longer than ``most_ms`` (ms, as all lengths) for each unit; at least a millisecond.
    """
    for unit in (_DAY, _HOUR, _MINUTE, _SECOND):
        whole = -(-length_ms // unit) * unit
        if _LEAST_UNITS * unit <= whole <= most_ms:
            return whole
    return max(length_ms, 1)


def _row(findings: Findings, window_ms: int, first_ms: int) -> WindowRow:
    series = findings.records_over_time
    # The oddest records, at the beginning, are apart.
    counts = {start: count for start, count in series.counts.items() if start >= first_ms}
    # A bucket counts from its end: the last records of a history see a window as long as it.
    unseen = at_most(counts, first_ms + window_ms - series.width_ms - 1)
    ids = findings.ids_within(window_ms)
    return WindowRow(
        window_ms=window_ms,
        hidden=hidden_share(findings, window_ms),
        ids=ids,
        bytes=ids * STORE_BYTES_PER_ID,
        in_view=1 - unseen / sum(counts.values()) if counts else 0.0,
    )
