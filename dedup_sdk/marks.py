"""Marks as columns: how they travel between lanes, stores, snapshots and the backfill."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16

Int64s = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Marks:
    """``n`` marks, column by column.

    ``digests`` is ``16 * n`` bytes, one digest after the other; ``offsets`` and ``timestamps`` (ms) have shape ``(n,)``.
    ``numbers`` are acceptance numbers, shape ``(n,)``, or None where the lane has no count window.
    """

    digests: bytes
    offsets: Int64s
    timestamps: Int64s
    numbers: Int64s | None = None

    @property
    def count(self) -> int:
        """How many marks these are."""
        return len(self.offsets)


NO_MARKS = Marks(b"", np.empty(0, np.int64), np.empty(0, np.int64))


class Found(NamedTuple):
    """The answer to a look-up of many digests: only those that were found.

    ``indexes`` are positions among the digests asked for, ascending; the other columns are parallel to it.
    """

    indexes: list[int]
    offsets: list[int]
    timestamps: list[int]
    numbers: list[int] | None = None


NONE_FOUND = Found([], [], [])
