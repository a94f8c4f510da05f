from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.time_series import LAST_MS, MOST_BUCKETS, TimeSeries

DAY_MS = 86_400_000
TIMES = st.lists(
    st.one_of(
        st.integers(-1, 10**7),
        st.integers(0, LAST_MS),
        st.integers(0, 2**62),
        st.integers(10**12, 10**12 + 40 * DAY_MS),
    ),
    max_size=40,
)


def series(times: list[int]) -> TimeSeries:
    """Of a list."""
    return TimeSeries.of(np.array(times, np.int64))


@given(TIMES, st.integers(0, 40))
def test_parts_add_up_to_the_whole(times: list[int], cut: int) -> None:
    """However timestamps are cut in two, the sum is the series of all of them."""
    whole = series(times)
    assert series(times[:cut]) + series(times[cut:]) == whole
    assert sum(whole.counts.values()) == sum(0 <= time <= LAST_MS for time in times)


def test_a_long_history_has_wide_buckets() -> None:
    """A record a minute for a year takes no more buckets than a plot can show.

    They are of one width, in any order of adding.
    """
    minutes = np.arange(365 * 24 * 60) * 60_000 + 1_700_000_000_000
    whole = TimeSeries.of(minutes)
    assert len(whole.counts) <= MOST_BUCKETS
    assert whole.width_ms == DAY_MS // 2
    assert all(start % whole.width_ms == 0 for start in whole.counts)
    assert sum(whole.counts.values()) == len(minutes)
    late, early = TimeSeries.of(minutes[1000:]), TimeSeries.of(minutes[:1000])
    assert late + early == early + late == whole


def test_one_record_from_the_future_leaves_the_rest_readable() -> None:
    """A timestamp thousands of years ahead takes a bucket of its own, and widens none."""
    hour = 1_700_000_000_000 + np.arange(60) * 60_000
    assert len(TimeSeries.of(np.append(hour, LAST_MS)).counts) == 61
    assert TimeSeries.of(np.append(hour, LAST_MS)).width_ms == 1000
