"""UncutRanges that no watermark cuts, against the offsets that each of them forbids."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._units.ranges import UncutRanges


@given(seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_nothing_is_cut_and_no_more_is_held_back_than_that_takes(seed: int) -> None:
    """In whatever order they come, and however they overlap; ranges below are forgotten without a change above."""
    draw, stretches, forbidden = Random(seed), UncutRanges(), set[int]()
    offsets = draw.sample(range(60), 2 * draw.randrange(1, 12))
    below = 0
    for pair in zip(offsets[::2], offsets[1::2], strict=True):
        first, end = min(pair), max(pair)
        stretches.add(first, end)
        forbidden |= set(range(first + 1, end + 1))
        if draw.random() < 0.3:
            below = max(below, stretches.outside(draw.randrange(60)))
            stretches.drop_below(below)
        for offset in range(below, 61):
            highest = next(each for each in range(offset, -1, -1) if each not in forbidden)
            assert max(below, stretches.outside(offset)) == max(below, highest)


def test_one_that_is_cut_holds_back_from_there() -> None:
    """Ranges behind it may be cut no more than before."""
    stretches = UncutRanges()
    stretches.add(3, 20)
    stretches.cut(10)
    assert [stretches.outside(offset) for offset in (10, 11, 20, 21)] == [10, 10, 10, 21]
    stretches.add(15, 30)
    stretches.cut(40)
    assert [stretches.outside(offset) for offset in (10, 30, 31)] == [10, 10, 31]


def test_a_single_record_is_no_stretch() -> None:
    """It may be cut off on both sides."""
    stretches = UncutRanges()
    stretches.add(5, 5)
    assert [stretches.outside(offset) for offset in (5, 6)] == [5, 6]
