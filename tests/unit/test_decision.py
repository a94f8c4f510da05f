"""Every row of the rule, read from the top."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._decision import Mark, decide, decide_marked
from dedup_sdk._marks import elsewhere
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window

HOUR = Window(hours=1)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def verdict(
    offset: int = 10,
    timestamp_ms: int = DAY_MS,
    mark: Mark | None = None,
    *,
    keyed: bool = True,
    low: int = 0,
    high: int = 10,
    done: tuple[int, ...] = (),
    covered: bool = True,
    window: Window = HOUR,
    accepted: int = 0,
) -> VerdictKind:
    """The verdict of a record with an ID, above the watermark, of a covered window, unless said otherwise."""
    return decide(
        offset, timestamp_ms, mark, keyed=keyed, low=low, high=high, done=done, covered=covered, window=window,
        accepted=accepted,
    )  # fmt: skip


@pytest.mark.parametrize(("offset", "low", "high"), [(0, 0, 1), (9, 5, 10), (5, 5, 10)])
def test_what_lies_between_low_and_high_was_completed(offset: int, low: int, high: int) -> None:
    """A record of the stretch that the group has processed without a gap comes again, whatever else is known of it."""
    for keyed in (True, False):
        for mark in (None, Mark(0, DAY_MS), Mark(99, DAY_MS)):
            assert verdict(offset, mark=mark, low=low, high=high, keyed=keyed) is VerdictKind.REDELIVERED


@pytest.mark.parametrize("keyed", [True, False])
def test_what_is_done_above_high_was_completed(*, keyed: bool) -> None:
    """Records completed out of order are known one by one."""
    assert verdict(12, done=(12, 14), keyed=keyed) is VerdictKind.REDELIVERED
    assert verdict(13, done=(12, 14), keyed=True) is VerdictKind.FRESH


def test_what_lies_below_low_is_not_taken_for_completed() -> None:
    """Before ``low`` nobody of this group vouches for anything, even though it lies below ``high``."""
    assert verdict(4, low=5, high=10) is VerdictKind.FRESH


def test_a_record_without_an_id_is_left_to_the_policy() -> None:
    """No mark and no coverage make anything else of a record without an ID."""
    assert verdict(keyed=False) is VerdictKind.UNKEYED
    assert verdict(keyed=False, covered=False, mark=Mark(3, DAY_MS)) is VerdictKind.UNKEYED


def test_an_unknown_id_is_fresh_only_where_the_window_is_covered() -> None:
    """Without a mark it depends on whether the store would know."""
    assert verdict(covered=True) is VerdictKind.FRESH
    assert verdict(covered=False) is VerdictKind.UNVERIFIED


@pytest.mark.parametrize(
    ("age_ms", "kind"),
    [
        (0, VerdictKind.DUPLICATE),
        (HOUR_MS, VerdictKind.DUPLICATE),
        (HOUR_MS + 1, VerdictKind.FRESH),
        (-1, VerdictKind.DUPLICATE),
        (-DAY_MS, VerdictKind.DUPLICATE),
    ],
)
def test_a_mark_before_it_makes_a_duplicate_while_the_window_lasts(age_ms: int, kind: VerdictKind) -> None:
    """The last millisecond of the window is inside, and so is a negative age.

    Where marks are missing a later one may be, too.
    """
    assert verdict(mark=Mark(9, DAY_MS - age_ms)) is kind
    in_doubt = VerdictKind.UNVERIFIED if kind is VerdictKind.FRESH else kind
    assert verdict(mark=Mark(9, DAY_MS - age_ms), covered=False) is in_doubt


@pytest.mark.parametrize("offset", [10, 11, 1000])
def test_a_mark_at_or_after_it_says_nothing(offset: int) -> None:
    """A mark that was not there when the record was written cannot make it a duplicate."""
    assert verdict(10, mark=Mark(offset, DAY_MS)) is VerdictKind.FRESH


@pytest.mark.parametrize(
    ("number", "kind"),
    [(10, VerdictKind.DUPLICATE), (8, VerdictKind.DUPLICATE), (7, VerdictKind.FRESH), (0, VerdictKind.FRESH)],
)
def test_a_count_window_counts_what_was_accepted_after_the_mark(number: int, kind: VerdictKind) -> None:
    """With a ring of three and ten accepted, the last three numbers are remembered, however old."""
    assert verdict(mark=Mark(3, 0, number), window=Window(count=3), accepted=10) is kind


def test_of_two_windows_both_have_to_hold() -> None:
    """A mark outside either of them is forgotten."""
    both = Window(hours=1, count=3)
    assert verdict(mark=Mark(3, DAY_MS, 9), window=both, accepted=10) is VerdictKind.DUPLICATE
    assert verdict(mark=Mark(3, DAY_MS, 5), window=both, accepted=10) is VerdictKind.FRESH
    assert verdict(mark=Mark(3, 0, 9), window=both, accepted=10) is VerdictKind.FRESH


_times = st.integers(-1, 2**53) | st.sampled_from([-1, 0, 2**63 - 1])


@given(
    st.lists(st.tuples(st.integers(0, 50), _times, st.integers(0, 50), _times), min_size=1, max_size=20),
    st.integers(1, 2**53 - 1),
)
def test_columns_are_judged_as_single_records_are(
    rows: list[tuple[int, int, int, int]], time_ms: int
) -> None:
    """The rule in columns gives the results of the rule one by one, at the edges of 64 bits too."""
    window = Window(milliseconds=time_ms)
    table = np.asarray(rows, np.int64)
    duplicates = decide_marked(table[:, 0], table[:, 1], table[:, 2], table[:, 3], window)
    for row, duplicate in zip(rows, duplicates.tolist(), strict=True):
        offset, timestamp_ms, mark_offset, mark_ms = row
        kind = verdict(
            offset, timestamp_ms, Mark(mark_offset, mark_ms), low=offset, high=offset, window=window
        )
        assert (kind is VerdictKind.DUPLICATE) == duplicate


@pytest.mark.parametrize("cut", [0, 7, 10])
@pytest.mark.parametrize("newer_ms", [-HOUR_MS, -1, 0, 1, HOUR_MS])
def test_a_sighting_elsewhere_within_a_window_makes_a_duplicate(cut: int, newer_ms: int) -> None:
    """In another partition, before or after.

    The group has handled the message, wherever the next one of its key goes.
    """
    mark = Mark(elsewhere(cut), DAY_MS + newer_ms)
    assert mark.offset < 0
    assert verdict(10, mark=mark) is VerdictKind.DUPLICATE


@pytest.mark.parametrize("newer_ms", [-HOUR_MS - 1, HOUR_MS + 1])
def test_a_sighting_elsewhere_more_than_a_window_away_says_nothing(newer_ms: int) -> None:
    """Offsets of two partitions have no order, so that one which is much newer is no proof of a past."""
    mark = Mark(elsewhere(10), DAY_MS + newer_ms)
    assert verdict(10, mark=mark) is VerdictKind.FRESH
    assert verdict(10, mark=mark, covered=False) is VerdictKind.UNVERIFIED


def test_a_sighting_elsewhere_says_nothing_of_records_before_its_cut() -> None:
    """A record that comes again after a cut of the log, or a rewind, may be older than a sighting elsewhere."""
    assert verdict(9, high=9, mark=Mark(elsewhere(10), DAY_MS - 1)) is VerdictKind.FRESH
    assert verdict(0, high=0, mark=Mark(elsewhere(0), DAY_MS - 1)) is VerdictKind.DUPLICATE
