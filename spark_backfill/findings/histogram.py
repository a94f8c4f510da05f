"""Counts by bucket, as mappings of a whole number to a count, and a histogram over all magnitudes.

A histogram's keys are the largest numbers of its buckets. Values below 64 have a bucket each. Above, numbers share one
if their six leading bits are equal, so that a key is at most a thirty-second (3.2 %) above the values it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s

RELATIVE_ERROR: Final = 1 / 32
"""How far above a value its key in a histogram is at most, as a share of the value."""

_LEADING_BITS: Final = 6
_LARGEST: Final = 2**52

Value = TypeVar("Value")


def histogram(values: Int64s) -> dict[int, int]:
    """Count the values, shape ``(n,)``, none negative; numbers from 2**52 on count as that."""
    small = np.minimum(values, _LARGEST)
    # Exact, because every number up to 2**52 is a float.
    _, exponents = np.frexp(small.astype(np.float64))
    shifts = np.maximum(exponents - _LEADING_BITS, 0).astype(np.int64)
    return counted((((small >> shifts) + 1) << shifts) - 1)


def counted(values: NDArray[Any]) -> dict[int, int]:
    """Count equal whole numbers of an array of shape ``(n,)``."""
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def added(one: Mapping[int, Value], other: Mapping[int, Value]) -> dict[int, Value]:
    """Return the values of both, those under the same key added up."""
    total: dict[int, Any] = dict(one)
    for key, value in other.items():
        total[key] = total[key] + value if key in total else value
    return total


def at_most(counts: Mapping[int, int], value: int) -> int:
    """Return how many are counted under keys up to ``value``."""
    return sum(count for key, count in counts.items() if key <= value)


def reaching(counts: Mapping[int, int], share: float) -> int | None:
    """Return the smallest key up to which that share is counted, None where nothing is."""
    reached, needed = 0, share * sum(counts.values())
    for key in sorted(counts):
        reached += counts[key]
        if reached >= needed:
            return key
    return None
