"""A histogram of whole numbers over all magnitudes: exact counts, bounds with a known relative error.

Values below 64 have a bucket each. Above, every doubling is cut into 32 equal buckets, so that a bucket's bounds lie
at most a thirty-second (3.2 %) apart: bucket ``i >= 64`` holds ``[m << s, (m + 1) << s)`` with ``s = i // 32 - 1`` and
``m = i - 32 * s``, between 32 and 63.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from dedup_sdk._marks import Int64s

RELATIVE_ERROR: Final = 1 / 32
"""The bounds of a bucket differ by at most this share of the lower one."""

_PER_DOUBLING: Final = 32
_EXACT: Final = 2 * _PER_DOUBLING
_LARGEST: Final = 2**52


class Histogram:
    """Counts of numbers from 0 on; numbers from 2**52 on count as that. Immutable; ``+`` adds two of them up."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Int64s | None = None) -> None:
        self._counts: Int64s = np.zeros(0, np.int64) if counts is None else counts

    @classmethod
    def of(cls, values: Int64s) -> Histogram:
        """Count the values, an array of shape ``(n,)``; none may be negative."""
        if not len(values):
            return cls()
        return cls(np.bincount(_buckets(values)).astype(np.int64))

    @classmethod
    def from_json(cls, content: Mapping[str, int]) -> Histogram:
        """Read the output of `to_json`."""
        counts = np.zeros(max((int(bucket) + 1 for bucket in content), default=0), np.int64)
        for bucket, count in content.items():
            counts[int(bucket)] = count
        return cls(counts)

    def to_json(self) -> dict[str, int]:
        """Return the counts by bucket, only those that are not zero."""
        return {str(bucket): int(self._counts[bucket]) for bucket in np.flatnonzero(self._counts).tolist()}

    def __add__(self, other: Histogram) -> Histogram:
        few, many = sorted((self._counts, other._counts), key=len)
        total = many.copy()
        total[: len(few)] += few
        return Histogram(total)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(tuple(self.to_json().items()))

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self._counts.sum())

    def at_most(self, value: int) -> int:
        """Return how many values are certainly at most ``value``.

        Those of its own bucket count only if all of them are.
        """
        if value < 0:
            return 0
        bucket = int(_buckets(np.array([value], np.int64))[0])
        return int(self._counts[: bucket + (upper_bound(bucket) <= value)].sum())

    def value_reaching(self, count: int) -> int | None:
        """Return the smallest bound below or at which ``count`` values certainly lie; None: there are not so many."""
        if count > self.total:
            return None
        bucket = int(np.searchsorted(np.cumsum(self._counts), count)) if count > 0 else 0
        return upper_bound(bucket) if count > 0 else 0

    def curve(self) -> tuple[list[int], list[int]]:
        """Return upper bounds, ascending, and how many values lie at or below each."""
        buckets = np.flatnonzero(self._counts)
        return [upper_bound(bucket) for bucket in buckets.tolist()], np.cumsum(self._counts[buckets]).tolist()


def upper_bound(bucket: int) -> int:
    """Return the largest number that a bucket holds."""
    if bucket < _EXACT:
        return bucket
    shift = bucket // _PER_DOUBLING - 1
    return ((bucket - _PER_DOUBLING * shift + 1) << shift) - 1


def _buckets(values: Int64s) -> Int64s:
    small = np.minimum(values, _LARGEST)
    # Exact, because every number up to 2**52 is a float.
    _, exponents = np.frexp(small.astype(np.float64))
    shifts = np.maximum(exponents - 6, 0).astype(np.int64)
    return np.asarray(_PER_DOUBLING * shifts + (small >> shifts), np.int64)
