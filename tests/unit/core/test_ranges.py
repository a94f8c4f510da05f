"""Ranges of completed offsets."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._core.ranges import merged

ranges = st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda found: (found[0], sum(found)))


@given(st.lists(ranges))
def test_merged_ranges_hold_the_same_offsets_and_never_touch(given_: list[tuple[int, int]]) -> None:
    """They are ascending, so that an offset is inside exactly where an odd number of edges lies at or before it."""
    result = merged(given_)
    assert {at for r in result for at in range(*r)} == {at for r in given_ for at in range(*r)}
    assert all(earlier[1] < later[0] for earlier, later in pairwise(result))
