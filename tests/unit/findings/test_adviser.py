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
    sightings, findings = fold_run(run_rows(0, log))
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
    advice = advise(found(log + late), Window(days=7))
    assert advice.smallest == Window(hours=2)
    assert advice.exact_ms == pytest.approx(61 * MINUTE, rel=0.04)
    assert advice.duplicates == NaiveFindings([*log, *late]).duplicates[0]
    rows = {row.window: row for row in advice.table}
    assert {Window(days=7), Window(hours=2)} <= set(rows)
    assert TARGET <= (rows[Window(hours=2)].hidden or 0) < 1
    assert rows[Window(days=7)].hidden == 1
    assert not advice.still_rising


def test_what_a_window_costs() -> None:
    """With a new ID a minute, an hour remembers sixty, within 3.2 %, each at the bytes that a store takes for one."""
    rows = {row.window: row for row in advise(found(every_minute(2 * 24 * 60))).table}
    hour = rows[Window(hours=1)]
    assert 61 <= hour.ids <= 63
    assert hour.bytes == hour.ids * STORE_BYTES_PER_ID
    assert hour.in_view == pytest.approx(47 / 48, abs=0.01)


def test_beyond_the_history_nothing_is_claimed() -> None:
    """A window longer than the history read is in nobody's view."""
    advice = advise(found(every_minute(3 * 24 * 60, again_after=61)), Window(days=30))
    assert advice.history_ms == pytest.approx(3 * DAY, rel=0.01)
    month = advice.table[-1]
    assert month.window == Window(days=30)
    assert month.in_view == 0


def test_a_curve_that_has_not_flattened_is_said_so() -> None:
    """Where many duplicates come later than half of the history, more are beyond it."""
    assert advise(found(every_minute(1000, again_after=701))).still_rising


def test_no_duplicates_no_advice() -> None:
    """A history without duplicates advises no window, and one without records says nothing at all."""
    advice = advise(found(every_minute(100)))
    assert (advice.smallest, advice.exact_ms, advice.duplicates) == (None, None, 0)
    assert all(row.hidden is None for row in advice.table)
    assert advise(Findings()).history_ms == 0


def test_the_advised_window_does_not_pass_the_end_of_the_history() -> None:
    """A usual length is taken where the history has room for it, else one in whole hours, minutes or seconds."""
    assert round_up(50 * MINUTE) == Window(hours=1)
    assert round_up(15 * DAY + 1) == Window(days=17)
    assert round_up(15 * DAY + 1, 16 * DAY) == Window(hours=15 * 24 + 1)
    assert round_up(61 * SECOND + 1, 62 * SECOND) == Window(seconds=62)
    assert round_up(61_001, 61_500) == Window(milliseconds=61_001)
    assert round_up(0) == Window(seconds=1)
    assert round_up(400 * DAY) == Window(days=730)
