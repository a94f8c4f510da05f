"""Marks as columns: how they travel between lanes, stores, snapshots and the backfill.

A mark's offset is that of its record in the partition that has the mark. One below zero marks a sighting *elsewhere*, in a partition
where records of the same key went before the topic had more of them: see `elsewhere`.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def elsewhere(cut: int) -> int:
    """Return the offset of a mark whose record lies in another partition, and counts for the records at or after ``cut`` here.

    It is its own inverse: ``elsewhere(mark.offset)`` is the cut. Always below zero, so that any sighting in the partition itself
    takes its place.
    """
    return ~cut


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


def join_marks(pages: Sequence[Marks]) -> Marks:
    """Return the pages as one; a page without numbers among others that have them gets zeros."""
    if len(pages) <= 1:
        return pages[0] if pages else NO_MARKS
    numbers = None
    if any(page.numbers is not None for page in pages):
        numbers = np.concatenate(
            [np.zeros(page.count, np.int64) if page.numbers is None else page.numbers for page in pages]
        )
    return Marks(
        b"".join(page.digests for page in pages),
        np.concatenate([page.offsets for page in pages]),
        np.concatenate([page.timestamps for page in pages]),
        numbers,
    )


def cut_marks(marks: Marks, start: int, end: int) -> Marks:
    """Return the marks at positions ``[start, end)``."""
    return Marks(
        marks.digests[DIGEST_BYTES * start : DIGEST_BYTES * end],
        marks.offsets[start:end],
        marks.timestamps[start:end],
        None if marks.numbers is None else marks.numbers[start:end],
    )
