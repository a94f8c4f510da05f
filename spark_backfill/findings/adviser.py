"""Which window: the duplicates that each length hides, the IDs that it remembers, and the limits of the history.

Each length has the share of duplicates that it hides, and the IDs that it remembers. A duplicate refreshes its
mark, so that a window hides exactly the duplicates whose gap to the sighting before is no longer than the window:
an advice needs nothing but the gaps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from dedup_sdk._window import Window
from spark_backfill.findings.findings import Findings

TARGET: Final = 0.999
"""The share of duplicates that the advised window hides."""

STORE_BYTES_PER_ID: Final = 40
"""Disk of a consumer's store for an ID that is remembered.

31 bytes (benchmarks/README.md), and up to 1.3 times that while old ones are on their way out.
"""

SURE_DUPLICATES: Final = 10_000
"""With fewer duplicates their rarest thousandth is a handful, and the advice hangs on them."""

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_ROUND_MS: Final = (
    *(n * _SECOND for n in (1, 2, 5, 10, 15, 20, 30, 45)),
    *(n * _MINUTE for n in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(n * _HOUR for n in (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 18, 21)),
    *(n * _DAY for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 17, 21, 30, 45, 60, 90, 120, 180, 365)),
)
_TABLE_MS: Final = (
    *(n * _SECOND for n in (1, 10)),
    *(n * _MINUTE for n in (1, 5, 15)),
    *(n * _HOUR for n in (1, 6, 12)),
    *(n * _DAY for n in (1, 2, 3, 7, 14, 30, 60, 90, 180, 365)),
)
_MOST_ROWS: Final = 12
_RISING: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRow:
    """One length of window.

    - ``hidden``: share of the duplicates seen that it certainly hides (None: none were seen).
    - ``ids``, ``bytes``: IDs that it would remember at the cut, and the disk of a consumer's store for them; estimated
      where the findings are about a sample.
    - ``in_view``: share of the records before which so much history was read: 1 is all, at 0 nothing is known.
    """

    window: Window
    hidden: float | None
    ids: int
    bytes: int
    in_view: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The figures of the history for windows.

    - ``history_ms``: how much of it was read, by the timestamps of all but the oddest thousandth of the records.
    - ``smallest``: the shortest window that hides `TARGET` of the duplicates that were seen, rounded up to a usual
      length; None where there are none. ``exact_ms`` is the same before rounding.
    - ``table``: windows of usual lengths, ascending, the run's own and the smallest among them.
    - ``still_rising``: more than 1 % of the duplicates came later than half of the history: a longer one would
      show more.
    """

    history_ms: int
    duplicates: int
    smallest: Window | None
    exact_ms: int | None
    table: tuple[WindowRow, ...]
    still_rising: bool


def advise(findings: Findings, window: Window | None = None) -> Advice:
    """Return the advice; ``window`` is the one that the run was given, of which only the time counts."""
    history_ms = _history_ms(findings)
    exact_ms, early = _exact_ms(findings), hidden_share(findings, history_ms // 2)
    smallest = None if exact_ms is None else round_up(exact_ms, history_ms)
    lengths = {round_up(history_ms).time_ms or 0, *(length for length in _TABLE_MS if length < history_ms)}
    if findings.duplicates:
        # Where nothing is hidden yet there is nothing to choose from, but for one row to see that.
        shortest = findings.gaps_ms.value_reaching(max(round(0.05 * findings.gaps_ms.total), 1)) or 0
        below = [length for length in lengths if length < shortest]
        lengths -= set(sorted(below)[:-1])
    lengths = set(sorted(lengths)[-_MOST_ROWS:])
    lengths |= {each.time_ms for each in (smallest, window) if each is not None and each.time_ms is not None}
    return Advice(
        history_ms=history_ms,
        duplicates=findings.duplicates,
        smallest=smallest,
        exact_ms=exact_ms,
        table=tuple(row(findings, length) for length in sorted(lengths)),
        still_rising=early is not None and 1 - early > _RISING,
    )


def row(findings: Findings, window_ms: int) -> WindowRow:
    """Return the figures of a window of that length (ms)."""
    ids = findings.last_seen.within(window_ms) * findings.sampling
    return WindowRow(
        window=Window(milliseconds=window_ms),
        hidden=hidden_share(findings, window_ms),
        ids=ids,
        bytes=ids * STORE_BYTES_PER_ID,
        in_view=_in_view(findings, window_ms),
    )


def hidden_share(findings: Findings, window_ms: int) -> float | None:
    """Return the share of duplicates that a window of that length (ms) certainly hides, None where there are none."""
    if not findings.duplicates:
        return None
    return (findings.early + findings.gaps_ms.at_most(window_ms)) / findings.duplicates


def round_up(length_ms: int, most_ms: int | None = None) -> Window:
    """Return the shortest window of a usual length that is not shorter; beyond a year, of whole years.

    Where that would be longer than ``most_ms``, the length in whole seconds, minutes or hours, whichever is
    coarsest and still fits; as it is where none does.
    """
    years = max(-(-length_ms // _ROUND_MS[-1]), 1) * _ROUND_MS[-1]
    usual = next((each for each in _ROUND_MS if each >= length_ms), years)
    if most_ms is not None and usual > most_ms:
        whole = [-(-length_ms // unit) * unit for unit in (_HOUR, _MINUTE, _SECOND)]
        usual = next((each for each in whole if each <= most_ms), max(length_ms, 1))
    return Window(milliseconds=usual)


def _exact_ms(findings: Findings) -> int | None:
    if not findings.duplicates:
        return None
    needed = math.ceil(TARGET * findings.duplicates) - findings.early
    return findings.gaps_ms.value_reaching(max(needed, 0)) or 0


def _history_ms(findings: Findings) -> int:
    first, last = findings.over_time.moment(1 - TARGET), findings.over_time.moment(TARGET)
    if first is None or last is None:
        return 0
    return last + findings.over_time.width_ms - first


def _in_view(findings: Findings, window_ms: int) -> float:
    """The share of records at least a window after the first, the oddest ones at the beginning apart."""
    over_time = findings.over_time
    first = over_time.moment(1 - TARGET)
    if first is None:
        return 0.0
    counted = over_time.records[over_time.starts_ms >= first].sum()
    # A bucket counts from its end: the last records of a history see a window as long as it.
    seen = over_time.records[over_time.starts_ms + over_time.width_ms >= first + window_ms].sum()
    return min(float(seen) / float(counted), 1.0)
