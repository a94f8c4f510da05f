"""Which offsets are folded, and the knowledge afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from dedup_sdk._window import Window
from spark_backfill.offset_range import NOTHING_KNOWN_MS, OffsetRange
from spark_backfill.range_plan import Horizons, LogPart, horizon_ms, plan_range

HOUR = Window(hours=1)
HOUR_MS = 3_600_000


def plan(**given: Any) -> OffsetRange:
    """Plan offsets 0 to 100 of a complete history and a window of an hour, unless given otherwise."""
    usual: dict[str, Any] = {
        "low": 0, "high": 100, "start": 0, "first_ms": 6_000, "first_kept": 0, "complete": True,
    }  # fmt: skip
    limits = Horizons(given.pop("keep_from_ms", 5_000), 5_000)
    window = given.pop("window", HOUR)
    return plan_range(0, LogPart(**{**usual, **given}), None, window=window, limits=limits)


def test_the_whole_history_needs_no_beginning() -> None:
    """Read from the group's own beginning, nothing is missing: coverage has no timestamp."""
    offset_range = plan()
    assert (offset_range.begin, offset_range.since_ms(7_000, None)) == (0, None)


def test_reading_begins_one_window_before_the_cut() -> None:
    """Offsets before the window are not read, and knowledge begins at its horizon."""
    offset_range = plan(first_kept=40)
    assert (offset_range.begin, offset_range.offsets, offset_range.since_ms(5_100, None)) == (40, 60, 5_000)


def test_an_incomplete_history_is_known_from_its_first_record() -> None:
    """Where the group's history does not begin at low, nothing before the first record may count as known."""
    offset_range = plan(low=30, complete=False)
    assert (offset_range.begin, offset_range.since_ms(6_000, None)) == (30, 6_000)


def test_a_log_cut_by_retention_is_known_from_its_first_record() -> None:
    """Low stays the group's, reading begins where the log begins, and coverage is no longer complete."""
    offset_range = plan(start=50)
    assert (offset_range.low, offset_range.begin, offset_range.since_ms(6_000, None)) == (0, 50, 6_000)


def test_a_log_that_is_gone_knows_nothing() -> None:
    """When retention took everything below the cut, no window is covered."""
    offset_range = plan(start=100, high=90, keep_from_ms=None, first_ms=None, first_kept=None)
    assert (offset_range.offsets, offset_range.since_ms(None, None)) == (0, NOTHING_KNOWN_MS)


def test_a_group_that_just_began_knows_everything() -> None:
    """An empty history that is complete is covered from its first record."""
    offset_range = plan(low=100, high=100, keep_from_ms=None, first_kept=None)
    assert (offset_range.offsets, offset_range.since_ms(None, None)) == (0, None)


def test_what_was_left_out_moves_coverage() -> None:
    """The newest mark that was left out bounds the known part, also of a complete history."""
    assert plan().since_ms(1_000, 4_000) == 4_001
    assert plan(first_kept=40).since_ms(5_100, 4_000) == 5_000
    assert plan().since_ms(1_000, -(2**63)) == 0


def test_a_count_window_is_folded_from_low() -> None:
    """Numbers are ranks from low, so that no window shortens the offsets to read."""
    assert plan(window=Window(count=5, hours=1), first_kept=40).begin == 0


@pytest.mark.parametrize(
    ("last_ms", "now_ms", "expected"),
    [
        (10 * HOUR_MS, 11 * HOUR_MS, 9 * HOUR_MS - HOUR_MS // 16),
        (20 * HOUR_MS, 11 * HOUR_MS, 10 * HOUR_MS - HOUR_MS // 16),
        (-1, 11 * HOUR_MS, None),
        (None, 11 * HOUR_MS, None),
    ],
)
def test_the_horizon_is_not_pushed_by_the_future(
    last_ms: int | None, now_ms: int, expected: int | None
) -> None:
    """One window and a sixteenth before the last record.

    One from the future counts as now, one without time as nothing.
    """
    assert horizon_ms(HOUR, last_ms, now_ms) == expected
    assert horizon_ms(Window(count=3), last_ms, now_ms) is None
