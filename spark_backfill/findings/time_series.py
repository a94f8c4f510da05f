"""Records and duplicates over time, in as many buckets as a plot can show, whatever the span."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True, eq=False)
class TimeSeries:
    """Two counts in each bucket of time that has any: records, and duplicates among them. ``+`` adds up.

    All buckets are of one width, the smallest with which at most `MOST_BUCKETS` of them have a record; each width
    divides the next, so that the result does not depend on the order in which parts are added. Records without a
    timestamp (negative) are not in it. ``starts_ms``: where the buckets begin (ms since 1970), ascending.
    """

    width_ms: int = _SECOND_MS
    starts_ms: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    records: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    duplicates: Int64s = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, records_ms: Int64s, duplicates_ms: Int64s) -> TimeSeries:
        """Count timestamps (ms): of all records, shape ``(n,)``, and of those that are duplicates, shape ``(m,)``."""
        records_s, records = _per_second(records_ms)
        duplicates_s, duplicates = _per_second(duplicates_ms)
        return cls(_SECOND_MS, records_s, records, np.zeros_like(records)) + cls(
            _SECOND_MS, duplicates_s, np.zeros_like(duplicates), duplicates
        )

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> TimeSeries:
        """Read the output of `to_json`."""
        starts, records, duplicates = (
            np.asarray(content[name], np.int64) for name in ("starts", "records", "duplicates")
        )
        return cls(content["width_ms"], starts * content["width_ms"], records, duplicates)

    def to_json(self) -> dict[str, Any]:
        """Return the width of a bucket, and three columns; ``starts`` count widths since 1970."""
        return {
            "width_ms": self.width_ms,
            "starts": (self.starts_ms // self.width_ms).tolist(),
            "records": self.records.tolist(),
            "duplicates": self.duplicates.tolist(),
        }

    def __add__(self, other: TimeSeries) -> TimeSeries:
        starts = np.concatenate([self.starts_ms, other.starts_ms])
        columns = (self.records, other.records), (self.duplicates, other.duplicates)
        counts = np.column_stack([np.concatenate(column) for column in columns])
        for width in _WIDTHS_MS[_WIDTHS_MS.index(max(self.width_ms, other.width_ms)) :]:
            found, where = np.unique(starts // width, return_inverse=True)
            summed = np.zeros((len(found), 2), np.int64)
            np.add.at(summed, where.ravel(), counts)
            starts, counts = found * width, summed
            if len(found) <= MOST_BUCKETS:
                break
        return TimeSeries(width, starts, *counts.T)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeSeries) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def moment(self, share: float) -> int | None:
        """Return where the bucket begins by whose end that share of the records had come; None: there are none."""
        if not len(self.starts_ms):
            return None
        reached = np.cumsum(self.records)
        place = int(np.searchsorted(reached, max(1.0, share * float(reached[-1]))))
        return int(self.starts_ms[min(place, len(self.starts_ms) - 1)])


def _per_second(timestamps: Int64s) -> tuple[Int64s, Int64s]:
    """Where each second begins that has a timestamp (ms), and how many it has."""
    seconds, counts = np.unique(timestamps[timestamps >= 0] // _SECOND_MS, return_counts=True)
    return seconds * _SECOND_MS, counts
