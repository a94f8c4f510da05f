from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.time_series import MOST_BUCKETS, TimeSeries

DAY_MS = 86_400_000
TIMES = st.lists(
    st.one_of(st.integers(-1, 10**7), st.integers(0, 2**62), st.integers(10**12, 10**12 + 40 * DAY_MS)),
    max_size=40,
)


def series(records: list[int], duplicates: list[int]) -> TimeSeries:
    """Of lists."""
    return TimeSeries.of(np.array(records, np.int64), np.array(duplicates, np.int64))


@given(TIMES, TIMES, st.integers(0, 40))
def test_parts_add_up_to_the_whole(records: list[int], duplicates: list[int], cut: int) -> None:
    """However the records are cut in two, the sum is the series of all of them, and survives JSON."""
    whole = series(records, duplicates)
    parts = series(records[:cut], duplicates[:cut]) + series(records[cut:], duplicates[cut:])
    assert parts == whole
    assert TimeSeries.from_json(whole.to_json()) == whole
    assert whole.records.sum() == sum(time >= 0 for time in records)
    assert whole.duplicates.sum() == sum(time >= 0 for time in duplicates)


def test_a_long_history_has_wide_buckets() -> None:
    """A record a minute for a year takes no more buckets than a plot can show.

    They are of one width, in any order of adding.
    """
    minutes = np.arange(365 * 24 * 60) * 60_000 + 1_700_000_000_000
    whole = TimeSeries.of(minutes, minutes[::2])
    assert len(whole.starts_ms) <= MOST_BUCKETS
    assert whole.width_ms == DAY_MS // 2
    assert (whole.starts_ms % whole.width_ms == 0).all()
    assert whole.records.sum() == len(minutes)
    late, early = (
        TimeSeries.of(minutes[1000:], minutes[::2][500:]),
        TimeSeries.of(minutes[:1000], minutes[::2][:500]),
    )
    assert late + early == early + late == whole


def test_one_record_from_the_future_leaves_the_rest_readable() -> None:
    """A timestamp thousands of years ahead takes a bucket of its own, and widens none."""
    hour = 1_700_000_000_000 + np.arange(60) * 60_000
    assert TimeSeries.of(np.append(hour, 2**62), np.empty(0, np.int64)).width_ms == 1000


def test_a_moment_is_where_a_share_of_the_records_has_come() -> None:
    """The middle of a hundred records, one a second, is the bucket of the fiftieth."""
    seconds = np.arange(100) * 1000
    whole = TimeSeries.of(seconds, np.empty(0, np.int64))
    assert (whole.moment(0), whole.moment(0.5), whole.moment(1)) == (0, 49_000, 99_000)
    assert series([], []).moment(0.5) is None
