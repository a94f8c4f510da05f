from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.histogram import RELATIVE_ERROR, added, at_most, histogram, reaching

NUMBERS = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 2**52 - 1)), max_size=50)


def counts_of(values: list[int]) -> dict[int, int]:
    """The histogram of a list."""
    return histogram(np.array(values, np.int64))


@given(st.integers(0, 2**52 - 1))
def test_a_key_is_as_near_as_is_said(value: int) -> None:
    """A value lies at or below the key of its bucket, and at most a thirty-second of it away."""
    [bound] = counts_of([value])
    assert value <= bound <= value * (1 + RELATIVE_ERROR)


def test_small_numbers_are_exact() -> None:
    """Each number below 64 has a bucket of its own."""
    assert counts_of([*range(64), 63]) == dict.fromkeys(range(63), 1) | {63: 2}


def test_buckets_are_few() -> None:
    """Of all magnitudes there are some hundred buckets, each of the same six leading bits."""
    assert len(counts_of(list(range(100_000)))) < 64 + 11 * 32
    assert counts_of([64, 65, 66, 2**20, 2**20 + 2**15 - 1]) == {65: 2, 67: 1, 2**20 + 2**15 - 1: 2}


@given(NUMBERS, st.integers(-5, 2**53))
def test_what_lies_at_most_at_a_value_is_never_overstated(values: list[int], limit: int) -> None:
    """`at_most` counts no value above the limit, and misses only such within the relative error below it."""
    counted = at_most(counts_of(values), limit)
    assert counted <= sum(value <= limit for value in values)
    assert counted >= sum(value * (1 + RELATIVE_ERROR) < limit for value in values)


@given(NUMBERS, st.integers(1, 60))
def test_the_bound_that_a_share_reaches(values: list[int], count: int) -> None:
    """`reaching` gives a bound at or below which that share of the values lies. No lower value would do."""
    count = min(count, len(values))
    bound = reaching(counts_of(values), count / max(len(values), 1))
    if not values:
        assert bound is None
    else:
        assert bound is not None
        least = sorted(values)[count - 1]
        assert least <= bound <= least * (1 + RELATIVE_ERROR)


@given(NUMBERS, NUMBERS)
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    """The sum of two is the histogram of all values."""
    assert added(counts_of(one), counts_of(other)) == counts_of(one + other)


def test_enormous_numbers_count_as_the_largest() -> None:
    """A number beyond 2**52 is counted, not an error."""
    assert list(counts_of([2**62, 2**53]).values()) == [2]
