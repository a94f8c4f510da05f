from __future__ import annotations

import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spark_backfill.findings.histogram import RELATIVE_ERROR, Histogram, upper_bound

NUMBERS = st.lists(st.one_of(st.integers(0, 200), st.integers(0, 2**52 - 1)), max_size=50)


def histogram(values: list[int]) -> Histogram:
    """Of a list."""
    return Histogram.of(np.array(values, np.int64))


@given(st.integers(0, 2**52 - 1))
def test_a_bound_is_as_near_as_is_said(value: int) -> None:
    """A value lies at or below the bound of its bucket, and at most a thirty-second of it away."""
    [bound] = histogram([value]).curve()[0]
    assert value <= bound <= value * (1 + RELATIVE_ERROR)


def test_small_numbers_are_exact() -> None:
    """Each number below 64 has a bucket of its own."""
    assert [upper_bound(bucket) for bucket in range(64)] == list(range(64))
    assert histogram([0, 1, 63, 63]).curve() == ([0, 1, 63], [1, 2, 4])


@given(NUMBERS, st.integers(-5, 2**53))
def test_what_lies_at_most_at_a_value_is_never_overstated(values: list[int], limit: int) -> None:
    """`at_most` counts no value above the limit, and misses only such within the relative error below it."""
    counted = histogram(values).at_most(limit)
    assert counted <= sum(value <= limit for value in values)
    assert counted >= sum(value * (1 + RELATIVE_ERROR) < limit for value in values)


@given(NUMBERS, st.integers(0, 60))
def test_the_bound_that_a_count_reaches(values: list[int], count: int) -> None:
    """`value_reaching` gives a bound at or below which so many values lie. No lower value would do."""
    bound = histogram(values).value_reaching(count)
    if count > len(values):
        assert bound is None
    elif count:
        assert bound is not None
        least = sorted(values)[count - 1]
        assert least <= bound <= least * (1 + RELATIVE_ERROR)


@given(NUMBERS, NUMBERS)
def test_histograms_add_up(one: list[int], other: list[int]) -> None:
    """The sum of two, read again from JSON, is the histogram of all values."""
    total = histogram(one) + histogram(other)
    assert Histogram.from_json(json.loads(json.dumps(total.to_json()))) == histogram(one + other)
    assert total.total == len(one) + len(other)


def test_enormous_numbers_count_as_the_largest() -> None:
    """A number beyond 2**52 is counted, not an error."""
    assert histogram([2**62, 2**53]).total == 2
