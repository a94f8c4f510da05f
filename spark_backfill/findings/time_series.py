"""Counts over time, in as many buckets as a plot can show, whatever the span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s

MOST_BUCKETS: Final = 1024
LAST_MS: Final = 253_402_300_799_000
"""The end of the year 9999: later times have no date, and are most likely microseconds."""

_SECOND_MS: Final = 1000
_STEPS: Final = (5, 3, 4, 5, 3, 4, 3, 2, 2, 2, 7, 4, 13, 10)
_WIDTHS_MS: Final = tuple(accumulate(_STEPS, mul, initial=_SECOND_MS))
"""A second, 5 s, 15 s, 1 min, 5 min, 15 min, 1 h, 3 h, 6 h, 12 h, 1 d, 7 d, 28 d, 364 d, 3640 d."""


@dataclass(frozen=True, slots=True)
class TimeSeries:
    """A count for each bucket of time that has any, by the bucket's beginning (ms since 1970). ``+`` adds up.

    All buckets are of one width, the smallest with which there are at most `MOST_BUCKETS`; each width divides the next,
    so that the result does not depend on the order in which parts are added.
    """

    width_ms: int = _SECOND_MS
    counts: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, timestamps: Int64s) -> TimeSeries:
        """Count timestamps (ms), shape ``(n,)``; those without a date (`is_date`) are not in it."""
        known = timestamps[is_date(timestamps)]
        return _fitted(known, np.ones_like(known), _SECOND_MS)

    def __add__(self, other: TimeSeries) -> TimeSeries:
        starts, counts = (
            np.array([*one, *two], np.int64)
            for one, two in ((self.counts, other.counts), (self.counts.values(), other.counts.values()))
        )
        return _fitted(starts, counts, max(self.width_ms, other.width_ms))


def is_date(timestamps: Int64s) -> NDArray[np.bool_]:
    """Say of timestamps (ms), shape ``(n,)``, which have a date: a missing one is negative, one may be absurd."""
    return (timestamps >= 0) & (timestamps <= LAST_MS)


def _fitted(times_ms: Int64s, counts: Int64s, width_ms: int) -> TimeSeries:
    found, where = np.unique(times_ms // width_ms, return_inverse=True)
    if len(found) > MOST_BUCKETS:
        return _fitted(times_ms, counts, next(wider for wider in _WIDTHS_MS if wider > width_ms))
    summed = np.zeros(len(found), np.int64)
    np.add.at(summed, where.ravel(), counts)
    return TimeSeries(width_ms, dict(zip((found * width_ms).tolist(), summed.tolist(), strict=True)))
