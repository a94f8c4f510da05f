"""Joining and cutting columns of marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Marks


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
