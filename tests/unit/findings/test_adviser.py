from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._window import Window
from spark_backfill.findings.adviser import STORE_BYTES_PER_ID, TARGET, advise, hidden_share, round_up
from spark_backfill.findings.findings import Findings, total
from spark_backfill.findings.sightings import fold_run, merge_runs
from tests.support.naive_findings import NaiveFindings, Sighting, run_rows
from tests.support.naive_fold import digest_of

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW_MS = 2**42


def found(log: list[Sighting]) -> Findings:
    """The findings of one run of partition 0."""
    sightings, findings = fold_run(*run_rows(0, log))
    return total([findings, merge_runs(0, [sightings], now_ms=NOW_MS)])


def every_minute(minutes: int, again_after: int = 0, share: int = 10) -> list[Sighting]:
    """A record a minute; every so many-th is one that came that many minutes before."""
    names = [
        f"{minute - again_after}"
        if again_after and minute % share == 0 and minute >= again_after
        else f"{minute}"
        for minute in range(minutes)
    ]
    return [Sighting(0, minute, minute * MINUTE, digest_of(name)) for minute, name in enumerate(names)]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(-2 * HOUR, 50 * HOUR)), min_size=2, max_size=40),
    st.integers(1, 100 * HOUR),
)
def test_a_window_hides_the_duplicates_that_it_is_said_to(
    rows: list[tuple[int, int]], window_ms: int
) -> None:
    """The share is never above that hidden by a consumer with that window.

    It is short of that by the 3.2 % of the buckets only.
    """
    now, log = 10**9, list[Sighting]()
    for offset, (name, step_ms) in enumerate(rows):
        now += step_ms
        log.append(Sighting(0, offset, now, digest_of(name)))
    gaps = NaiveFindings(log).gaps_ms
    share = hidden_share(found(log), window_ms)
    if share is None:
        assert gaps == []
        return
    window = Window(milliseconds=window_ms)
    assert share * len(gaps) <= sum(window.holds(gap, 0) for gap in gaps) + 1e-6
    assert share * len(gaps) >= sum(gap * 1.032 < window_ms for gap in gaps) - 1e-6


def test_the_smallest_window_that_hides_nearly_all() -> None:
    """Of duplicates after an hour, and one in two thousand after a day, an hour is advised.

    All but a thousandth are hidden.
    """
    log = every_minute(20 * 24 * 60, again_after=61)
    late = [Sighting(0, len(log), len(log) * MINUTE, log[-24 * 60].digest)]
    advice = advise(found(log + late), 8 * DAY)
    assert advice.smallest_ms is not None
    assert advice.smallest_ms % MINUTE == 0
    assert 61 * MINUTE <= advice.smallest_ms <= 64 * MINUTE
    rows = {row.window_ms: row for row in advice.table}
    assert {8 * DAY, advice.smallest_ms} <= set(rows)
    assert TARGET <= (rows[advice.smallest_ms].hidden or 0) < 1
    assert rows[8 * DAY].hidden == 1
    assert not advice.still_rising


def test_what_a_window_costs() -> None:
    """With a new ID a minute, an hour remembers sixty, each at the bytes that a store takes for one."""
    rows = {row.window_ms: row for row in advise(found(every_minute(30 * 60))).table}
    hour = rows[HOUR]
    assert hour.ids == 61
    assert hour.bytes == hour.ids * STORE_BYTES_PER_ID
    assert hour.in_view == pytest.approx(29 / 30, abs=0.01)


def test_the_cost_of_many_ids_is_estimated() -> None:
    """Of more IDs than the sample has, a window is said to remember as many as it does, but for 1 % of all."""
    rows = {row.window_ms: row for row in advise(found(every_minute(20_000))).table}
    assert rows[7 * DAY].ids == pytest.approx(7 * 24 * 60, abs=3 * 0.011 * 20_000)
    assert rows[7 * DAY].ids != 7 * 24 * 60 + 1
    assert rows[14 * DAY].ids == 20_000


def test_a_record_from_the_future_is_as_new_as_the_clock() -> None:
    """A last sighting beyond the clock does not push all others out of every window."""
    log = [Sighting(0, 0, NOW_MS - 5, digest_of(0)), Sighting(0, 1, 2**62, digest_of(1))]
    assert found(log).ids_within(10) == 2


def test_beyond_the_history_nothing_is_claimed() -> None:
    """A window longer than the history read is in nobody's view."""
    advice = advise(found(every_minute(3 * 24 * 60, again_after=61)), 40 * DAY)
    assert advice.history_ms == pytest.approx(3 * DAY, rel=0.01)
    longest = advice.table[-1]
    assert longest.window_ms == 40 * DAY
    assert longest.in_view == 0


def test_a_curve_that_has_not_flattened_is_said_so() -> None:
    """Where many duplicates come later than half of the history, more are beyond it."""
    assert advise(found(every_minute(1000, again_after=701))).still_rising


def test_a_record_without_a_timestamp_is_no_gap() -> None:
    """Pairs with one are duplicates without a length of time: no window hides them, and none is judged by them."""
    log = every_minute(1000, again_after=61)
    times = [-1 if record.offset % 20 == 0 else record.timestamp_ms for record in log]
    mixed = found([record._replace(timestamp_ms=time) for record, time in zip(log, times, strict=True)])
    assert mixed.total.duplicates == found(log).total.duplicates == 93
    assert (sum(mixed.gaps_ms.values()), mixed.early) == (47, 0)
    assert advise(mixed).smallest_ms == advise(found(log)).smallest_ms
    assert hidden_share(mixed, 2 * HOUR) == 1
    bare = found([record._replace(timestamp_ms=-1) for record in log])
    assert (bare.total.duplicates, bare.gaps_ms, bare.early) == (93, {}, 0)
    assert advise(bare).smallest_ms is None
    assert hidden_share(bare, HOUR) is None


def test_no_duplicates_no_advice() -> None:
    """A history without duplicates advises no window, and one without records says nothing at all."""
    advice = advise(found(every_minute(100)))
    assert advice.smallest_ms is None
    assert all(row.hidden is None for row in advice.table)
    assert advise(Findings()).history_ms == 0


def test_the_advised_window_does_not_pass_the_end_of_the_history() -> None:
    """A length is rounded up to whole days, hours, minutes or seconds where the history has room for it."""
    assert round_up(50 * MINUTE - 1, DAY) == 50 * MINUTE
    assert round_up(15 * DAY + 1, 20 * DAY) == 16 * DAY
    assert round_up(4 * DAY + 1, 20 * DAY) == 5 * DAY
    assert round_up(3 * DAY + 1, 20 * DAY) == 3 * DAY + HOUR
    assert round_up(15 * DAY + 1, 16 * DAY - 1) == 15 * DAY + HOUR
    assert round_up(61 * SECOND + 1, 62 * SECOND) == 62 * SECOND
    assert round_up(61_001, 61_500) == 61_001
    assert round_up(0, DAY) == 1
    assert round_up(400 * DAY - 1, 500 * DAY) == 400 * DAY
