from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.recency import Recency

NOW_MS = 2**41
TIMES = st.lists(
    st.one_of(st.integers(-1, 3000), st.integers(NOW_MS - 10_000, NOW_MS + 50), st.integers(0, NOW_MS)),
    max_size=40,
)
ERROR = 1.032


def recency(times: list[int]) -> Recency:
    """Of a list."""
    return Recency.of(np.array(times, np.int64), NOW_MS)


@given(TIMES, TIMES, TIMES)
def test_parts_add_up_to_the_whole(one: list[int], two: list[int], three: list[int]) -> None:
    """In whatever order parts are added, the sum is that of all IDs, and survives JSON."""
    whole = recency(one + two + three)
    assert (recency(one) + recency(two)) + recency(three) == whole
    assert recency(three) + (recency(one) + recency(two)) == whole
    assert Recency.from_json(whole.to_json()) == whole
    assert whole.total == len(one) + len(two) + len(three)


@given(TIMES, st.integers(0, 2**42))
def test_a_window_remembers_those_seen_inside_it(times: list[int], window_ms: int) -> None:
    """`within` counts every ID seen inside the window, and none that a window 3.2 % longer would not remember."""
    clipped = [min(max(time, 0), NOW_MS) for time in times]
    newest = max(clipped, default=0)
    remembered = recency(times).within(window_ms)
    assert remembered >= sum(newest - time <= window_ms for time in clipped)
    assert remembered <= sum(newest - time <= window_ms * ERROR for time in clipped)


def test_a_record_from_the_future_counts_as_now() -> None:
    """A last sighting beyond the clock does not push all others out of every window."""
    assert recency([2**62, NOW_MS - 5]).within(10) == 2
