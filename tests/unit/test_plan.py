"""How a partition starts: every beginning, and the marks believed in each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._core.reach import plan_start
from dedup_sdk._marks import NOTHING_KNOWN, Known, Progress

STORED = Progress(
    low=10, high=50, done=((55, 57), (60, 61)), committed=40, known=Known(accepted=30, newest_ms=999)
)


def test_a_new_group_is_covered_from_its_first_record() -> None:
    """Nothing is replayed, and the history that begins here is complete."""
    plan = plan_start(None, committed=7, low=7, new=True)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("new", False, 7, 7)
    assert (plan.progress.low, plan.progress.high) == (7, 7)
    assert plan.progress.known.since_ms is None
    assert plan.progress.known.since_number is None


def test_a_new_group_forgets_a_store_of_the_same_name() -> None:
    """A group whose commits were deleted begins anew, whatever the disk says."""
    plan = plan_start(STORED, committed=7, low=7, new=True)
    assert (plan.beginning, plan.keep, plan.progress.done) == ("new", False, ())


@pytest.mark.parametrize("complete", [True, False])
def test_without_a_store_the_history_is_folded_again(*, complete: bool) -> None:
    """From ``low`` to the commit; the history is complete only where the commits say so."""
    plan = plan_start(None, committed=40, low=10, complete=complete)
    assert (plan.beginning, plan.keep, plan.whole) == ("missing", False, True)
    assert (plan.replay_from, plan.replay_to) == (10, 40)
    assert (plan.progress.low, plan.progress.high) == (10, 10)
    assert plan.progress.known.since_ms == (None if complete else NOTHING_KNOWN)
    assert plan.progress.known.since_number == (None if complete else 0)


@pytest.mark.parametrize("known", [None, NOTHING_KNOWN])
@pytest.mark.parametrize("complete", [True, False])
def test_a_store_that_holds_nothing_is_none(known: int | None, *, complete: bool) -> None:
    """A recovery that failed leaves one behind.

    The next attempt folds again as the first one did, and knows no less of where the history begins.
    """
    empty = Progress(low=10, high=10, committed=40, known=Known(since_ms=known))
    plan = plan_start(empty, committed=40, low=10, complete=complete)
    first = plan_start(None, committed=40, low=10, complete=complete or known is None)
    assert plan == first
    assert plan_start(replace(empty, committed=10), committed=10, low=10).keep
    assert plan_start(replace(empty, done=((12, 14),)), committed=40, low=10).keep
    assert plan_start(replace(empty, low=5), committed=40, low=10).keep


@pytest.mark.parametrize("committed", [40, 45, 50])
def test_a_store_ahead_of_the_commit_goes_on_as_it_is(committed: int) -> None:
    """Its completed records stay so; nothing is replayed."""
    plan = plan_start(STORED, committed=committed, low=10)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("resumed", True, 50, 50)
    assert plan.progress == replace(STORED, committed=committed)


def test_a_store_behind_the_commit_is_brought_up_to_date() -> None:
    """Records that another member completed are folded on top."""
    plan = plan_start(STORED, committed=70, low=10)
    assert (plan.beginning, plan.keep, plan.whole) == ("behind", True, False)
    assert (plan.replay_from, plan.replay_to) == (50, 70)
    assert (plan.progress.high, plan.progress.done) == (50, STORED.done)


def test_a_commit_below_the_last_known_one_is_a_rewind() -> None:
    """By default everything after it is to be processed again: neither marks nor completions are kept."""
    plan = plan_start(STORED, committed=39, low=10, complete=True)
    assert (plan.beginning, plan.keep, plan.whole) == ("rewound", False, True)
    assert (plan.replay_from, plan.replay_to) == (10, 39)
    assert (plan.progress.high, plan.progress.done) == (10, ())


@pytest.mark.parametrize("committed", [10, 15, 39])
def test_a_commit_of_the_same_era_that_came_late_is_no_rewind(committed: int) -> None:
    """Nobody set the group back: records that the store has completed since stay so, and are committed again."""
    plan = plan_start(STORED, committed=committed, low=10, vouched=True)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("resumed", True, 50, 50)
    assert plan.progress == replace(STORED, committed=committed)


@pytest.mark.parametrize(
    ("vouched", "era", "low"),
    [(False, "", 10), (True, "a1", 10), (True, "", 9)],
)
def test_whatever_else_starts_below_the_last_commit_is_folded_anew(
    vouched: bool,  # noqa: FBT001
    era: str,
    low: int,
) -> None:
    """A tool that drops the text, a new era, and a history that begins earlier."""
    plan = plan_start(STORED, committed=39, low=low, era=era, vouched=vouched)
    assert (plan.keep, plan.progress.high, plan.progress.done) == (False, low, ())


@pytest.mark.parametrize("committed", [20, 45, 60])
def test_another_era_below_what_the_store_has_completed_is_a_rewind(committed: int) -> None:
    """A mark above the beginning of an era could hide a record that is to be handled again, wherever the group is."""
    plan = plan_start(STORED, committed=committed, low=committed, era="a1")
    assert (plan.beginning, plan.keep, plan.progress.era) == ("rewound", False, "a1")
    plan = plan_start(STORED, committed=70, low=committed, era="a1", vouched=True)
    assert (plan.beginning, plan.keep, plan.progress.era) == ("rewound", False, "a1")


@pytest.mark.parametrize("vouched", [True, False])
def test_marks_below_another_era_stay(vouched: bool) -> None:  # noqa: FBT001
    """The group has completed these records in this log, whoever committed meanwhile; coverage begins anew."""
    plan = plan_start(STORED, committed=70, low=70, era="a1", vouched=vouched)
    assert (plan.beginning, plan.keep, plan.progress.era) == ("jumped", True, "a1")
    assert (plan.progress.low, plan.progress.high, plan.progress.done) == (70, 70, ())
    assert plan.progress.known.since_ms == NOTHING_KNOWN


def test_a_history_that_the_user_vouches_for_is_replayed_on() -> None:
    """An attempt before has folded a part of it: the next one, in an era of its own, goes on from there."""
    plan = plan_start(replace(STORED, low=0, done=()), committed=70, low=0, era="a1")
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("behind", True, 50, 70)


def test_a_history_that_begins_earlier_is_folded_anew() -> None:
    """The marks of this store begin too late for it."""
    plan = plan_start(STORED, committed=45, low=5, complete=True)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("earlier", False, 5, 45)


def test_a_void_text_leaves_what_the_store_has_below_it() -> None:
    """Whoever moved the group: the records below were completed here, and those from there on are asked for again."""
    plan = plan_start(STORED, committed=45, low=45, era="a1")
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("rewound", False, STORED.low, 45)
    assert plan.progress.known.since_ms is None
    plan = plan_start(replace(STORED, done=()), committed=50, low=50, era="a1")
    assert (plan.beginning, plan.keep, plan.progress.low) == ("resumed", True, STORED.low)


def test_low_rises_inside_the_stretch() -> None:
    """Records before the new ``low`` are no longer taken for completed.

    Marks stay, and so does the knowledge after.
    """
    plan = plan_start(STORED, committed=45, low=45, vouched=True)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("jumped", True, 50, 50)
    assert (plan.progress.low, plan.progress.high, plan.progress.done) == (45, 50, STORED.done)
    assert plan.progress.known.since_ms is None


def test_low_rises_beyond_the_stretch() -> None:
    """A gap of unknown records lies between, so that coverage begins anew."""
    plan = plan_start(STORED, committed=56, low=56)
    assert (plan.beginning, plan.keep, plan.replay_from, plan.replay_to) == ("jumped", True, 56, 56)
    assert (plan.progress.low, plan.progress.high) == (56, 56)
    assert plan.progress.done == ((56, 57), (60, 61))
    assert (plan.progress.known.since_ms, plan.progress.known.since_number) == (
        NOTHING_KNOWN,
        STORED.known.accepted,
    )


def test_a_jump_and_more_progress_elsewhere() -> None:
    """After the jump another member went on: that stretch is folded."""
    plan = plan_start(STORED, committed=80, low=70)
    assert (plan.beginning, plan.replay_from, plan.replay_to) == ("jumped", 70, 80)
    assert plan.progress.done == ()


_offsets = st.integers(0, 100)


@st.composite
def _progress(draw: st.DrawFn) -> Progress:
    low, high, committed, start, end = sorted(draw(st.tuples(*[_offsets] * 5)))
    low, committed, high = sorted((low, high, committed))
    done = ((start, end),) if high < start < end else ()
    known = draw(st.none() | st.just(committed))
    return Progress(low=low, high=high, done=done, committed=known, era=draw(st.sampled_from(["", "e"])))


@given(
    stored=st.none() | _progress(),
    commit=st.tuples(_offsets, _offsets),
    era=st.sampled_from(["", "e"]),
    complete=st.booleans(),
)
def test_no_plan_claims_more_than_the_group_and_the_store_know(
    stored: Progress | None, commit: tuple[int, int], era: str, *, complete: bool
) -> None:
    """Whatever is stored and committed: only the group's own stretch is taken for completed, and the tail is folded."""
    low, committed = sorted(commit)
    plan = plan_start(stored, committed=committed, low=low, era=era, complete=complete)
    progress = plan.progress
    assert progress.low <= progress.high
    assert (progress.committed, progress.era) == (committed, era)
    assert plan.replay_from <= plan.replay_to
    for offset in range(101):
        claimed = progress.low <= offset < progress.high or any(s <= offset < e for s, e in progress.done)
        if not claimed:
            continue
        assert plan.keep
        assert stored is not None
        was_claimed = stored.low <= offset < stored.high or any(s <= offset < e for s, e in stored.done)
        assert was_claimed, "a completion that nobody recorded"
    is_own = stored is not None and stored.begun and low == committed <= stored.high
    own = stored.low if stored is not None and is_own else low
    assert progress.low >= min(low, own), "neither the group nor the store vouches for anything before that"
    assert max(progress.high, plan.replay_to) >= committed, (
        "the partition would deliver before it knows the tail"
    )
