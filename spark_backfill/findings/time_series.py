"""Records and duplicates over time, in as many buckets as a plot can show, whatever the span."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from operator import mul
from typing import Any, Final

import numpy as np

from dedup_sdk._marks import Int64s

MOST_BUCKETS: Final = 1024

_SECOND_MS: Final = 1000
_STEPS: Final = (5, 3, 4, 5, 3, 4, 3, 2, 2, 2, 7, 4, 13, *[10] * 6)
_WIDTHS_MS: Final = tuple(accumulate(_STEPS, mul, initial=_SECOND_MS))
"""A second, 5 s, 15 s, 1 min, 5 min, 15 min, 1 h, 3 h, 6 h, 12 h, 1 d, 2 d, 14 d, 56 d, 2 y.

Then ten times the last, until all the numbers of a timestamp are few buckets.
"""


class TimeSeries:
    """Two counts in each bucket of time that has any: records, and duplicates among them. Immutable; ``+`` adds up.

    All buckets are of one width, the smallest with which at most `MOST_BUCKETS` of them have a record; each width
    divides the next, so that the result does not depend on the order in which parts are added. Records without a
    timestamp (negative) are not in it.
    """

    __slots__ = ("_counts", "_starts", "width_ms")

    def __init__(
        self, width_ms: int = _SECOND_MS, starts: Int64s | None = None, counts: Int64s | None = None
    ) -> None:
        none = np.empty(0, np.int64)
        self.width_ms = width_ms
        self._starts: Int64s = none if starts is None else starts
        self._counts: Int64s = none.reshape(0, 2) if counts is None else counts

    @classmethod
    def of(cls, records_ms: Int64s, duplicates_ms: Int64s) -> TimeSeries:
        """Count timestamps (ms): of all records, shape ``(n,)``, and of those that are duplicates, shape ``(m,)``."""
        total = cls()
        for kind, timestamps in zip(np.identity(2, np.int64), (records_ms, duplicates_ms), strict=True):
            seconds, counts = np.unique(timestamps[timestamps >= 0] // _SECOND_MS, return_counts=True)
            total += _summed(_SECOND_MS, seconds * _SECOND_MS, counts[:, np.newaxis] * kind)
        return total

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TimeSeries:
        """Read the output of `to_json`."""
        starts = np.asarray(content["starts"], np.int64) * content["width_ms"]
        counts = np.asarray([content["records"], content["duplicates"]], np.int64).T.reshape(-1, 2)
        return cls(content["width_ms"], starts, counts)

    def to_json(self) -> dict[str, Any]:
        """Return the width of a bucket, and three columns; ``starts`` count widths since 1970."""
        return {
            "width_ms": self.width_ms,
            "starts": (self._starts // self.width_ms).tolist(),
            "records": self._counts[:, 0].tolist(),
            "duplicates": self._counts[:, 1].tolist(),
        }

    def __add__(self, other: TimeSeries) -> TimeSeries:
        starts = np.concatenate([self._starts, other._starts])
        counts = np.concatenate([self._counts, other._counts])
        return _summed(max(self.width_ms, other.width_ms), starts, counts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeSeries) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def starts_ms(self) -> Int64s:
        """Where the buckets begin (ms since 1970), ascending; those without a record are left out."""
        return self._starts

    @property
    def records(self) -> Int64s:
        """Records by bucket."""
        return self._counts[:, 0]

    @property
    def duplicates(self) -> Int64s:
        """Duplicates by bucket."""
        return self._counts[:, 1]

    def moment(self, share: float) -> int | None:
        """Return where the bucket begins by whose end that share of the records had come; None: there are none."""
        if not len(self._starts):
            return None
        reached = np.cumsum(self.records)
        place = int(np.searchsorted(reached, max(1.0, share * float(reached[-1]))))
        return int(self._starts[min(place, len(self._starts) - 1)])


def _summed(least_ms: int, starts: Int64s, counts: Int64s) -> TimeSeries:
    for width in _WIDTHS_MS[_WIDTHS_MS.index(least_ms) :]:
        found, where = np.unique(starts // width, return_inverse=True)
        summed = np.zeros((len(found), 2), np.int64)
        np.add.at(summed, where.ravel(), counts)
        starts, counts = found * width, summed
        if len(found) <= MOST_BUCKETS:
            break
    return TimeSeries(width, starts, counts)
