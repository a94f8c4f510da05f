"""Half-open ranges of offsets, ascending: pairs of the first offset and the one after the last."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def merged(ranges: Iterable[Range]) -> Ranges:
    """Return the same offsets as ranges that neither touch nor overlap, ascending."""
    result: list[Range] = []
    for start, end in sorted(ranges):
        if result and start <= result[-1][1]:
            result[-1] = (result[-1][0], max(end, result[-1][1]))
        else:
            result.append((start, end))
    return tuple(result)


def from_offset(ranges: Iterable[Range], first: int) -> Ranges:
    """Return the parts of ranges at or above an offset."""
    return tuple((max(start, first), end) for start, end in ranges if end > first)


def before_offset(ranges: Iterable[Range], stop: int) -> Ranges:
    """Return the parts of ranges below an offset."""
    return tuple((start, min(end, stop)) for start, end in ranges if start < stop)


def count_offsets(ranges: Iterable[Range]) -> int:
    """Return how many offsets the ranges have, which do not overlap."""
    return sum(end - start for start, end in ranges)


def lie_inside(ranges: Iterable[Range], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some offsets, shape ``(n,)``, lie in one of the ranges, which ascend and do not overlap."""
    edges = np.asarray(tuple(ranges), np.int64).ravel()
    # An offset inside a range has an odd number of edges at or before it.
    inside: NDArray[np.bool_] = edges.searchsorted(offsets, side="right") % 2 == 1
    return inside
