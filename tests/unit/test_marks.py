"""Marks as columns."""

from __future__ import annotations

import numpy as np
import pytest

from dedup_sdk.marks import DIGEST_BYTES, Marks, newest_of_each


@pytest.mark.parametrize("numbered", [True, False])
def test_each_id_stays_once_with_its_highest_offset(*, numbered: bool) -> None:
    """In whatever order they come, the row of the highest offset is kept whole."""
    first, second = b"a" * DIGEST_BYTES, b"b" * DIGEST_BYTES
    offsets, times = np.asarray([7, 3, 5], np.int64), np.asarray([70, 30, 50], np.int64)
    marks = newest_of_each(
        Marks(first + second + first, offsets, times, np.asarray([2, 0, 1]) if numbered else None)
    )
    numbers = [0] * marks.count if marks.numbers is None else marks.numbers.tolist()
    digests = [marks.digests[:DIGEST_BYTES], marks.digests[DIGEST_BYTES:]]
    rows = zip(digests, marks.offsets.tolist(), marks.timestamps.tolist(), numbers, strict=True)
    assert sorted(rows) == [(first, 7, 70, 2 if numbered else 0), (second, 3, 30, 0)]
