"""A histogram of whole numbers over all magnitudes: exact counts, bounds with a known relative error.

Values below 64 have a bucket each. Above, every doubling is cut into 32 equal buckets, so that a bucket's bounds lie
at most a thirty-second (3.2 %) apart: bucket ``i >= 64`` holds ``[m << s, (m + 1) << s)`` with ``s = i // 32 - 1`` and
``m = i - 32 * s``, between 32 and 63.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

import numpy as np

from dedup_sdk._marks import Int64s

RELATIVE_ERROR: Final = 1 / 32
"""The bounds of a bucket differ by at most this share of the lower one."""

_PER_DOUBLING: Final = 32
_EXACT: Final = 2 * _PER_DOUBLING
_LARGEST: Final = 2**52


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers from 0 on, by bucket; numbers from 2**52 on count as that. ``+`` adds two of them up."""

    counts: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, values: Int64s) -> Histogram:
        """Count the values, an array of shape ``(n,)``; none may be negative."""
        counts = np.bincount(_buckets(values))
        buckets = np.flatnonzero(counts)
        return cls(Counter(dict(zip(buckets.tolist(), counts[buckets].tolist(), strict=True))))

    @classmethod
    def from_json(cls, content: Mapping[str, int]) -> Histogram:
        """Read the output of `to_json`."""
        return cls(Counter({int(bucket): count for bucket, count in content.items()}))

    def to_json(self) -> dict[str, int]:
        """Return the counts by bucket, only those that are not zero."""
        return {str(bucket): count for bucket, count in sorted(self.counts.items())}

    def __add__(self, other: Histogram) -> Histogram:
        return Histogram(self.counts + other.counts)

    @property
    def total(self) -> int:
        """How many values were counted."""
        return self.counts.total()

    def at_most(self, value: int) -> int:
        """Return how many values are certainly at most ``value``.

        Those of its own bucket count only if all of them are.
        """
        return sum(count for bucket, count in self.counts.items() if upper_bound(bucket) <= value)

    def value_reaching(self, count: int) -> int | None:
        """Return the smallest bound below or at which ``count`` values certainly lie; None: there are not so many."""
        if count <= 0:
            return 0
        return next((bound for bound, reached in zip(*self.curve(), strict=True) if reached >= count), None)

    def curve(self) -> tuple[list[int], list[int]]:
        """Return upper bounds, ascending, and how many values lie at or below each."""
        buckets = sorted(self.counts)
        return list(map(upper_bound, buckets)), list(accumulate(self.counts[bucket] for bucket in buckets))


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
