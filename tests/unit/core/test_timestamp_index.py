"""Which timestamp an offset had."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._core.lookup import TimestampIndex


def column(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column of 64-bit integers."""
    return np.asarray(values, np.int64)


@given(
    st.lists(st.lists(st.integers(1, 3), max_size=400), max_size=12),
    st.sets(st.integers(0, 10_000), max_size=5),
)
def test_every_offset_that_was_added_has_its_timestamp(segments: list[list[int]], strays: set[int]) -> None:
    """One by one and many at once, across segments, holes and growth; those kept apart go first."""
    time_index, known, offset = TimestampIndex(), dict[int, int](), 0
    for steps in segments:
        offsets = [offset := offset + step for step in steps]
        time_index.extend(column(*offsets), column(*(7 * at for at in offsets)))
        known.update({at: 7 * at for at in offsets})
    for stray in strays:
        time_index.keep(stray, -stray)
        known[stray] = -stray
    asked = sorted(known)
    assert [time_index.at(at) for at in asked] == [known[at] for at in asked]
    assert time_index.at_all(column(*reversed(asked))).tolist() == [known[at] for at in reversed(asked)]


def test_an_offset_that_was_never_added_is_an_error() -> None:
    """It would be a mark without a time: a defect, never a guess."""
    time_index = TimestampIndex()
    for asked in (3, 4, 5, 6):
        with pytest.raises(KeyError, match=str(asked)):
            time_index.at(asked)
        with pytest.raises(KeyError, match=str(asked)):
            time_index.at_all(column(asked))
        time_index.extend(column(asked + 10), column(1))


def test_replacing_keeps_what_stands_apart() -> None:
    """Offsets are set anew; clearing forgets everything."""
    time_index = TimestampIndex()
    time_index.extend(column(1, 2), column(10, 20))
    time_index.keep(9, 90)
    time_index.replace(column(2, 3), column(21, 31))
    assert [time_index.at(at) for at in (2, 3, 9)] == [21, 31, 90]
    with pytest.raises(KeyError):
        time_index.at(1)
    time_index.clear()
    with pytest.raises(KeyError):
        time_index.at(9)


def test_an_offset_that_came_twice_hides_none() -> None:
    """As many holes as repetitions look like a log without holes from its ends."""
    time_index = TimestampIndex()
    time_index.extend(np.array([3, 4, 4, 6, 8, 8, 9]), np.array([30, 40, 40, 60, 80, 80, 90]))
    assert time_index.at_all(np.array([9, 3, 6, 8, 4])).tolist() == [90, 30, 60, 80, 40]
    with pytest.raises(KeyError):
        time_index.at_all(np.array([3, 5]))
