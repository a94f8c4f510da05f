"""Two records at one offset of a partition, which no log has: an archive of two logs.

Who reads rows in any order compares those of a run, and besides, over all tasks, those of some offsets
(`watched_marks`), the same ones everywhere: two logs have thousands of offsets in common, of which some are
watched.

Whether an archive has two logs is seen only where rows of one offset meet, and the shuffle is by digest. So
the rows at watched offsets go to the first slot of their partition, where they meet. Where an archive has
more rows than offsets it is sorted by offset instead, and every row is compared
(`spark_backfill.offset_order`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s, Marks, select_marks
from dedup_sdk._store.pages import digest_words
from spark_backfill.errors import BackfillError

_MOST_WATCHED: Final = 65_536
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
"""An odd number whose multiples fill 64 bits evenly (2**64 by the golden ratio)."""


def watch_bits(offsets: int) -> int:
    """Return ``bits`` for `watched_marks` by which some ten thousands of so many offsets are watched.

    All are watched where they are fewer.
    """
    return (max(offsets - 1, 0) // _MOST_WATCHED).bit_length()


def watched_marks(marks: Marks, bits: int) -> Marks:
    """Return the marks at the offsets that are watched."""
    return select_marks(marks, np.flatnonzero(is_watched(marks.offsets, bits))) if bits else marks


def is_watched(offsets: Int64s, bits: int) -> NDArray[np.bool_]:
    """Say of offsets which are among the one in ``2**bits``, in no pattern.

    Transactions leave holes at every second one.
    """
    if not bits:
        return np.ones(len(offsets), np.bool_)
    spread = offsets.astype(np.uint64) * _SPREAD
    watched: NDArray[np.bool_] = spread >> np.uint64(64 - bits) == 0
    return watched


def check_one_record(partition: int, marks: Marks) -> None:
    """Check that no offset comes twice with different IDs; the same one may come again.

    Marks in any order, best by offset.

    Raises:
        BackfillError: one does.
    """
    offsets = marks.offsets
    if (offsets[1:] > offsets[:-1]).all():
        return
    order = np.argsort(offsets, kind="stable")
    same = np.flatnonzero(offsets[order[1:]] == offsets[order[:-1]])
    one, other = order[same], order[same + 1]
    high, low = digest_words(marks.digests)
    differ = np.flatnonzero((high[one] != high[other]) | (low[one] != low[other]))
    if differ.size:
        raise two_records(partition, int(offsets[one[differ[0]]]))


def two_records(partition: int, offset: int) -> BackfillError:
    """Return the error of two records at one offset."""
    return BackfillError(
        f"offset {offset} of partition {partition} is there twice with different contents: two topics of the same "
        "name in one archive, or one from before and after it was made anew? Give --source only what is of one"
    )
