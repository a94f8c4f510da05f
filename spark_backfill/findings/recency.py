"""When IDs were last seen, counted back from the newest: how many a window of any length would remember.

A ladder of series: level ``k`` counts by buckets of ``2**k`` ms, and only in the newest `WIDTH` buckets, so that a
window is answered on the level where it is at least half as long as the series. The top level reaches back to the
oldest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from dedup_sdk._marks import Int64s

WIDTH: Final = 64
"""Buckets a level; a window's answer is that of one that is at most 3.2 % longer."""

_LEVELS: Final = 63


class Recency:
    """How many IDs were last seen when. Immutable; ``+`` adds up, exactly and in any order.

    ``newest_ms`` is the newest of the timestamps (ms), -1 without any. Level ``k`` is ``levels[k]``: shape
    ``(WIDTH,)``, the last one the bucket of the newest.
    """

    __slots__ = ("_levels", "newest_ms")

    def __init__(self, newest_ms: int = -1, levels: Sequence[Int64s] = ()) -> None:
        self.newest_ms = newest_ms
        self._levels = tuple(levels)

    @classmethod
    def of(cls, last_ms: Int64s, now_ms: int) -> Recency:
        """Count the timestamp (ms) of each ID's last sighting, shape ``(n,)``; one beyond ``now_ms`` counts as that.

        A missing timestamp (negative) counts as 0.
        """
        if not len(last_ms):
            return cls()
        left = np.sort(np.clip(last_ms, 0, now_ms))
        newest, levels = int(left[-1]), list[Int64s]()
        for level in range(_LEVELS):
            first = _first_bucket(newest, level)
            within = left[np.searchsorted(left, first << level) :]
            levels.append(np.bincount((within >> level) - first, minlength=WIDTH))
            if len(within) == len(left):
                break
        return cls(newest, levels)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Recency:
        """Read the output of `to_json`."""
        levels = []
        for counts in content["levels"]:
            level = np.zeros(WIDTH, np.int64)
            level[WIDTH - len(counts) :] = counts
            levels.append(level)
        return cls(content["newest_ms"], levels)

    def to_json(self) -> dict[str, Any]:
        """Return the newest timestamp and the levels, each without leading zeros."""
        return {
            "newest_ms": self.newest_ms,
            "levels": [np.trim_zeros(level, "f").tolist() for level in self._levels],
        }

    def __add__(self, other: Recency) -> Recency:
        newest = max(self.newest_ms, other.newest_ms)
        if newest < 0:
            return self
        levels = list[Int64s]()
        for level in range(_LEVELS):
            levels.append(self._seen_from(newest, level) + other._seen_from(newest, level))
            if levels[-1].sum() == self.total + other.total:
                break
        return Recency(newest, levels)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recency) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> int:
        """How many IDs there are."""
        return int(self._levels[-1].sum()) if self._levels else 0

    def within(self, window_ms: int) -> int:
        """Return how many IDs were last seen at most that long (ms) before the newest; see `WIDTH` for the error."""
        oldest = self.newest_ms - window_ms
        if oldest < 0:
            return self.total
        for level, counts in enumerate(self._levels):
            first = _first_bucket(self.newest_ms, level)
            if first << level <= oldest:
                return int(counts[(oldest >> level) - first :].sum())
        return self.total

    def _seen_from(self, newest_ms: int, level: int) -> Int64s:
        """A level, moved to where it ends with the bucket of ``newest_ms``; one above the top is made of the top."""
        moved = np.zeros(WIDTH, np.int64)
        if not self._levels:
            return moved
        source = min(level, len(self._levels) - 1)
        counts = self._levels[source]
        filled = np.flatnonzero(counts)
        buckets = (filled + _first_bucket(self.newest_ms, source)) >> (level - source)
        places = buckets - _first_bucket(newest_ms, level)
        kept = places >= 0
        np.add.at(moved, places[kept], counts[filled[kept]])
        return moved


def _first_bucket(newest_ms: int, level: int) -> int:
    return (newest_ms >> level) - WIDTH + 1
