"""Two records at one offset of a partition, which no log has: an archive of two logs."""

from __future__ import annotations

import numpy as np

from dedup_sdk.marks import Marks
from dedup_sdk.store.words import digest_words
from spark_backfill.errors import BackfillError


def check_one_record(partition: int, marks: Marks) -> None:
    """Check that no offset comes twice with different IDs; the same one may come again. Marks in any order, best by offset.

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
        raise BackfillError(
            f"offset {offsets[one[differ[0]]]} of partition {partition} is there twice with different contents: two topics of the same "
            "name in one archive, or one from before and after it was made anew? Give --source only what is of one"
        )
