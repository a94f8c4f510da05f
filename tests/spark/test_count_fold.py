"""The fold of a count window, without Spark."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._decision import Mark
from dedup_sdk._window import Window
from spark_backfill.count_fold import CountFold
from spark_backfill.time_fold import Folded
from tests.support.folding import add_rows
from tests.support.known_marks import newest_marks
from tests.support.naive_fold import Row, digest_of, naive_fold


def fold(rows: list[Row], window: Window, batch: int = 7, keep_from_ms: int | None = None) -> Folded:
    """Fold rows, so many a batch."""
    folding = CountFold(window, keep_from_ms)
    add_rows(folding, rows, batch)
    return folding.finish()


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30)), max_size=80),
    st.integers(1, 8),
    st.sampled_from([None, 5, 20]),
)
def test_equals_the_rule_applied_record_by_record(
    drawn: list[tuple[int, int]], count: int, time_ms: int | None
) -> None:
    """Offsets, timestamps, numbers and the number of accepted IDs are those of `decide()` over the whole log."""
    window = Window(count=count, milliseconds=time_ms or 0)
    rows = [Row(0, offset, time, digest_of(name)) for offset, (name, time) in enumerate(drawn)]
    marks, accepted = naive_fold(rows, window)
    folded = fold(rows, window)
    inside = {digest: mark for digest, mark in marks.items() if accepted - mark.number < count}
    assert newest_marks([folded.marks]) == inside
    assert folded.accepted == accepted


def test_a_duplicate_refreshes_the_sighting_and_not_the_number() -> None:
    """With a ring of two, an ID that keeps coming leaves it all the same when two others were accepted."""
    names = ["a", "b", "a", "c", "a"]
    rows = [Row(0, offset, offset, digest_of(name)) for offset, name in enumerate(names)]
    folded = fold(rows, Window(count=2))
    assert newest_marks([folded.marks]) == {digest_of("c"): Mark(3, 3, 3), digest_of("a"): Mark(4, 4, 4)}


def test_numbers_start_at_one_and_what_left_the_ring_is_told() -> None:
    """Acceptance numbers are ranks from the first row on; the last one that was forgotten is reported with its time."""
    rows = [Row(0, offset, 100 + offset, digest_of(offset)) for offset in range(5)]
    folded = fold(rows, Window(count=3))
    assert sorted(mark.number for mark in newest_marks([folded.marks]).values()) == [3, 4, 5]
    assert (folded.forgotten_number, folded.forgotten_ms, folded.accepted) == (2, 101, 5)


def test_a_time_horizon_is_told_by_number_too() -> None:
    """Marks left out for their age count as forgotten by number, so that coverage stays true in both dimensions."""
    rows = [Row(0, offset, 10 * offset, digest_of(offset)) for offset in range(4)]
    folded = fold(rows, Window(count=10, milliseconds=15), keep_from_ms=15)
    assert [mark.number for mark in newest_marks([folded.marks]).values() if mark.number < 3] == []
    assert (folded.forgotten_number, folded.forgotten_ms) == (2, 10)


def test_a_window_without_count_is_refused() -> None:
    """The sequential fold is for count windows alone."""
    with pytest.raises(ValueError, match="counts nothing"):
        CountFold(Window(days=1), None)
