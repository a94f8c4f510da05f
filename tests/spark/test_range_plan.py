"""The offsets taken from the log, those from the archive before it, and which offsets neither has."""

from __future__ import annotations

from typing import Any

import pytest

from dedup_sdk._window import Window
from spark_backfill.errors import BackfillError
from spark_backfill.offset_range import NOTHING_KNOWN_MS, OffsetRange
from spark_backfill.range_plan import (
    Archived,
    Horizons,
    LogPart,
    check_gaps,
    horizons,
    plan_range,
    survey_archive,
)

HOUR_MS = 3_600_000
NOW_MS = 100 * HOUR_MS
WINDOW = Window(hours=10)
ALL = Horizons(None, None)


def log(**given: Any) -> LogPart:
    """Offsets 0 to 100 of a complete history, of which the log has those from 50 on."""
    usual: dict[str, Any] = {
        "low": 0, "high": 100, "start": 50, "first_ms": NOW_MS - HOUR_MS, "first_kept": 50, "complete": True,
    }  # fmt: skip
    return LogPart(**{**usual, **given})


def archived(begin: int, end: int, *, first_kept: int | None = None, first_ms: int = 0) -> Archived:
    """An archive's part of partition 0."""
    return Archived(0, begin, end, end - begin, first_ms, None, first_kept)


def plan(
    part: LogPart, known: Archived | None, *, window: Window = WINDOW, limits: Horizons = ALL
) -> OffsetRange:
    """The offset range of partition 0."""
    return plan_range(0, part, known, window=window, limits=limits)


def test_the_overlap_counts_once() -> None:
    """From the log's beginning on nothing is taken from the archive, and together they are the whole history."""
    offset_range = plan(log(), archived(0, 80))
    assert (offset_range.begin, offset_range.in_archive(), offset_range.in_log().begin) == (0, (0, 50), 50)
    assert (offset_range.complete, offset_range.gaps, offset_range.since_ms(7, None)) == (True, (), None)


def test_an_archive_inside_the_log_is_not_read() -> None:
    """Where the log reaches back as far, the archive adds nothing."""
    offset_range = plan(log(start=0, first_kept=0), archived(0, 80))
    assert (offset_range.in_archive(), offset_range.in_log(), offset_range.complete) == (
        None,
        offset_range,
        True,
    )


def test_a_gap_before_the_log_is_told() -> None:
    """Offsets between the archive's end and the log's beginning are named, and coverage begins behind them."""
    offset_range = plan(log(first_ms=7_000), archived(0, 30))
    assert (offset_range.gaps, offset_range.in_archive(), offset_range.in_log().begin) == (
        ((30, 50),),
        (0, 30),
        50,
    )
    assert (offset_range.complete, offset_range.since_ms(0, None)) == (False, 7_000)
    nothing_after = plan(log(first_ms=None), archived(0, 30))
    assert nothing_after.since_ms(0, None) == NOTHING_KNOWN_MS


def test_a_gap_before_the_archive_is_told() -> None:
    """Offsets that the group's own history has before the archive begins are named, too."""
    offset_range = plan(log(), archived(20, 60, first_ms=NOW_MS))
    assert (offset_range.gaps, offset_range.in_archive(), offset_range.complete) == (
        ((0, 20),),
        (20, 50),
        False,
    )
    assert offset_range.since_ms(5_000, None) == 5_000


def test_what_the_window_does_not_reach_is_no_gap() -> None:
    """Offsets that are gone, but older than the window of the last record, are neither missed nor read."""
    limits = horizons(WINDOW, NOW_MS, NOW_MS)
    old = log(first_ms=NOW_MS - 11 * HOUR_MS, first_kept=55)
    for known in (None, archived(0, 30, first_kept=None)):
        offset_range = plan(old, known, limits=limits)
        assert (offset_range.gaps, offset_range.in_archive(), offset_range.begin) == ((), None, 55)
        assert offset_range.since_ms(NOW_MS - 9 * HOUR_MS, None) == limits.keep_from_ms
    young = log(first_ms=NOW_MS - 9 * HOUR_MS)
    assert plan(young, None, limits=limits).gaps == ((0, 50),)


def test_a_late_first_record_hides_no_gap() -> None:
    """The record behind a gap is old, but others behind it or rows before it are not.

    Then the offsets are named, and not known.
    """
    limits = horizons(WINDOW, NOW_MS, NOW_MS)
    late_ms, young_ms = NOW_MS - 11 * HOUR_MS, NOW_MS - HOUR_MS
    late = log(first_ms=late_ms, first_kept=51, soon_ms=young_ms)
    for known in (None, archived(0, 30, first_ms=late_ms)):
        offset_range = plan(late, known, limits=limits)
        assert offset_range.gaps == ((0 if known is None else 30, 50),)
        assert offset_range.since_ms(late_ms, None) == young_ms
    between = archived(0, 30, first_kept=20)._replace(last_ms=NOW_MS - 2 * HOUR_MS)
    offset_range = plan(log(first_ms=late_ms, first_kept=99, soon_ms=late_ms), between, limits=limits)
    assert offset_range.gaps == ((30, 50),)
    assert offset_range.since_ms(late_ms, None) == NOW_MS - 2 * HOUR_MS
    counted = plan(late, archived(0, 30), window=Window(hours=10, count=60), limits=limits)
    assert counted.gaps == ((0, 50),)


def test_behind_a_gap_a_late_first_record_is_no_beginning() -> None:
    """Also where reading begins with it and no archive lies before: others of its time may be gone.

    Nor is anything known from before the horizon, of which rows were left out.
    """
    limits = horizons(WINDOW, NOW_MS, NOW_MS)
    late_ms, old_ms, young_ms = NOW_MS - 10 * HOUR_MS - 1, NOW_MS - 11 * HOUR_MS, NOW_MS - HOUR_MS
    offset_range = plan(log(first_ms=late_ms, soon_ms=young_ms, first_kept=50), None, limits=limits)
    assert (offset_range.begin, offset_range.gaps) == (50, ((0, 50),))
    assert offset_range.since_ms(late_ms, None) == young_ms
    old = log(first_ms=old_ms, soon_ms=old_ms, first_kept=60)
    offset_range = plan(old, archived(0, 30, first_kept=20), limits=limits)
    assert (offset_range.in_archive(), offset_range.gaps) == ((20, 30), ((30, 50),))
    assert offset_range.since_ms(old_ms, None) == limits.keep_from_ms


def test_a_late_first_row_of_an_archive_hides_no_gap() -> None:
    """Records before an archive are older than the window only where more than a few of its rows are."""
    limits = horizons(WINDOW, NOW_MS, NOW_MS)
    late_ms = NOW_MS - 11 * HOUR_MS
    assert plan(log(), archived(20, 60, first_ms=late_ms, first_kept=21), limits=limits).gaps == ((0, 20),)
    assert plan(log(), archived(20, 60, first_ms=late_ms, first_kept=25), limits=limits).gaps == ()


def test_a_first_record_without_a_time_does_not_say_that_all_is_known() -> None:
    """Behind a gap -1 is no beginning: the time of a later record is one, and without any nothing is known."""
    without = log(first_ms=-1, soon_ms=7_000)
    assert plan(without, archived(0, 30)).since_ms(-1, None) == 7_000
    assert plan(log(first_ms=-1, soon_ms=-1), archived(0, 30)).since_ms(-1, None) == NOTHING_KNOWN_MS


def test_reading_begins_one_window_before_the_cut() -> None:
    """Rows of the archive before the window's horizon are not read, and knowledge begins there."""
    limits = horizons(WINDOW, NOW_MS, NOW_MS)
    offset_range = plan(log(), archived(0, 60, first_kept=40), limits=limits)
    assert (offset_range.begin, offset_range.in_archive(), offset_range.in_log().begin) == (40, (40, 50), 50)
    assert (offset_range.complete, offset_range.since_ms(NOW_MS, None)) == (False, limits.keep_from_ms)
    none_kept = plan(log(first_kept=60), archived(0, 60, first_kept=None), limits=limits)
    assert (none_kept.begin, none_kept.in_archive()) == (60, None)


def test_a_count_window_is_not_counted_across_a_gap() -> None:
    """Ranks from before a gap would be too small, so that the archive is left out.

    Enough records after it make it none.
    """
    offset_range = plan(log(), archived(0, 30), window=Window(count=60))
    assert (offset_range.gaps, offset_range.begin, offset_range.in_archive()) == (((0, 50),), 50, None)
    enough = plan(log(), archived(0, 30), window=Window(count=50))
    assert (enough.gaps, enough.begin) == ((), 50)
    whole = plan(log(), archived(0, 50, first_kept=45), window=Window(count=60), limits=Horizons(5, 5))
    assert (whole.gaps, whole.begin, whole.complete) == ((), 0, True)


def test_sources_are_folded_from_where_the_history_begins() -> None:
    """However far the window reaches.

    Offsets out of its reach may be gone, missing ones inside it are a gap, and nothing before one counts.
    """
    limits = Horizons(NOW_MS - 11 * HOUR_MS, NOW_MS - 10 * HOUR_MS)
    old = log(start=0, first_kept=90)
    assert plan(old, None, limits=limits).begin == 90
    whole = plan_range(0, log(start=0, first_kept=None), None, window=WINDOW, limits=limits, whole=True)
    assert (whole.begin, whole.complete, whole.keep_from_ms) == (0, True, limits.keep_from_ms)
    joined = plan_range(0, log(), archived(0, 80, first_kept=60), window=WINDOW, limits=limits, whole=True)
    assert (joined.begin, joined.in_archive(), joined.complete, joined.gaps) == (0, (0, 50), True, ())
    late = log(first_kept=None, first_ms=NOW_MS - 20 * HOUR_MS)
    gone = plan_range(0, late, None, window=WINDOW, limits=limits, whole=True)
    assert (gone.begin, gone.complete, gone.gaps, gone.since_ms(7, None)) == (50, False, (), 7)
    lacking = plan_range(
        0, log(first_kept=None), archived(0, 30, first_kept=20), window=WINDOW, limits=limits, whole=True
    )
    assert (lacking.begin, lacking.in_archive(), lacking.gaps) == (50, None, ((0, 50),))


def test_gaps_end_the_job_unless_they_are_allowed() -> None:
    """The error names partitions, offsets and remedy; allowed, the same is told as lines."""
    offset_ranges = [plan(log(), archived(0, 30)), plan(log(start=0), None)]
    with pytest.raises(BackfillError, match=r"t\[0\] lacks offsets 30 to 49: .*--source.*--allow-gap"):
        check_gaps("t", offset_ranges, allowed=False)
    assert check_gaps("t", offset_ranges, allowed=True) == ["t[0] lacks offsets 30 to 49"]
    assert check_gaps("t", offset_ranges[1:], allowed=False) == []


def test_a_survey_is_made_again_only_for_what_the_log_does_not_know() -> None:
    """The horizon of a partition whose log is empty comes from the archive's own last record."""
    asked: list[dict[int, int]] = []

    def survey(_cuts: object, limits: dict[int, int]) -> dict[int, Archived]:
        asked.append(dict(limits))
        return {n: Archived(n, 0, 9, 9, 0, NOW_MS, limits.get(n)) for n in (0, 1)}

    found, last_ms = survey_archive(
        survey,  # type: ignore[arg-type]  # dictionaries
        {},
        {0: NOW_MS, 1: None},
        window=WINDOW,
        now_ms=NOW_MS,
    )
    horizon = horizons(WINDOW, NOW_MS, NOW_MS).keep_from_ms
    assert asked == [{0: horizon}, {1: horizon}]
    assert [found[n].first_kept for n in (0, 1)] == [horizon, horizon]
    assert last_ms == {0: NOW_MS, 1: NOW_MS}
    asked.clear()
    survey_archive(
        survey,  # type: ignore[arg-type]  # as above
        {},
        {0: NOW_MS, 1: NOW_MS},
        window=WINDOW,
        now_ms=NOW_MS,
    )
    assert len(asked) == 1


def test_an_archive_that_lies_inside_the_window_is_looked_through_once() -> None:
    """Where no row is older than the horizon, the first row below the cut is the first that is kept.

    An empty part has none.
    """
    asked: list[dict[int, int]] = []

    def survey(_cuts: object, limits: dict[int, int]) -> dict[int, Archived]:
        asked.append(dict(limits))
        return {n: Archived(n, 3, 9, 6, NOW_MS, NOW_MS, None, NOW_MS, NOW_MS) for n in (0, 1)}

    found, _ = survey_archive(
        survey,  # type: ignore[arg-type]  # dictionaries
        {1: 3},
        {},
        window=WINDOW,
        now_ms=NOW_MS,
    )
    assert asked == [{}]
    assert [found[n].first_kept for n in (0, 1)] == [3, None]
