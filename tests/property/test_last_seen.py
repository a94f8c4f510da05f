"""A source's state of its IDs: one by one or at once, in memory or as bytes, it is the same."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from dedup_sdk import orders
from dedup_sdk._core.seen import Candidate, IdStatus, Seen, begin, restore
from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.orders import Comparison, Order, PartialOrder, SortKey


class Numbers(Order):
    """Decimal numbers, remembered as IDs."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "numbers"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return where an ID stands."""
        return SortKey("", int(dedup_id)) if dedup_id.isdigit() else None


class DenseNumbers(Numbers):
    """The same, remembered as bits."""

    dense: ClassVar[bool] = True


ORDERS = (Numbers(), DenseNumbers())


def candidate(order: Order, number: int) -> Candidate:
    """Return the ID of a number."""
    text = str(number).encode()
    return Candidate(text, order.sort_key(text))


def made(order: Order, depth: int, numbers: list[int], *, knows_all: bool = True) -> Seen:
    """Return the memory that numbers leave, one after the other."""
    seen = begin(order, depth, candidate(order, numbers[0]), knows_all=knows_all)
    for number in numbers[1:]:
        seen.take(candidate(order, number))
    return seen


NUMBERS = st.lists(st.integers(0, 60) | st.sampled_from([10**18, 10**18 + 1]), min_size=1, max_size=30)


@settings(deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    depth=st.integers(0, 9),
    numbers=NUMBERS,
    run=st.sets(st.integers(1, 40), min_size=1),
)
def test_a_run_is_remembered_as_its_ids_are_one_by_one(
    order: Order, depth: int, numbers: list[int], run: set[int]
) -> None:
    """Each ID of a run is newer than the one before."""
    at_once, singly = made(order, depth, numbers), made(order, depth, numbers)
    rising = [max(numbers) + step for step in sorted(run)]
    at_once.take_run([str(number).encode() for number in rising], rising)
    for number in rising:
        assert singly.take(candidate(order, number)) is IdStatus.NEWER
    assert at_once.encode() == singly.encode()


@settings(deadline=None)
@given(
    order=st.sampled_from(ORDERS),
    depth=st.integers(0, 9),
    other=st.integers(0, 9),
    numbers=NUMBERS,
    knows_all=st.booleans(),
)
def test_bytes_bring_back_what_is_remembered(
    order: Order, depth: int, other: int, numbers: list[int], knows_all: Any
) -> None:
    """Under a smaller depth more is forgotten, never taken for unseen; under a larger one all is kept."""
    seen = made(order, depth, numbers, knows_all=knows_all)
    record = seen.encode()
    assert len(record) >= 9
    assert restore(order, depth, record).encode() == record
    again = restore(order, other, record)
    for number in range(62):
        before, after = seen.status(candidate(order, number)), again.status(candidate(order, number))
        if before is after:
            continue
        if other < depth:
            assert after is IdStatus.BELOW
        else:
            # Bits that reach further know nothing of IDs there, and say so.
            assert (before, after) == (IdStatus.BELOW, IdStatus.UNSEEN)
            assert again.known is not None


@settings(deadline=None)
@given(order=st.sampled_from(ORDERS), depth=st.integers(0, 9), numbers=NUMBERS)
def test_a_copy_goes_its_own_way(order: Order, depth: int, numbers: list[int]) -> None:
    """IDs that the one takes the other does not know."""
    seen = made(order, depth, numbers)
    record = seen.encode()
    seen.copy().take(candidate(order, 2 * 10**18))
    assert seen.encode() == record


@settings(deadline=None)
@given(record=st.binary(max_size=60))
def test_foreign_bytes_are_refused(record: bytes) -> None:
    """Whatever a store holds there, it is one clear error or a memory."""
    for order in (
        *ORDERS,
        PartialOrder("lengths", lambda last, new: (len(new) > len(last)) - (len(new) < len(last))),
    ):
        with contextlib.suppress(StoreCorruptError):
            seen = restore(order, 3, record)
            assert restore(order, 3, seen.encode()).encode() == seen.encode()


def test_a_memory_of_another_order_is_refused() -> None:
    """A store keeps the name of its order; bytes that do not fit it are damage."""
    record = made(Numbers(), 3, [1, 2]).encode()
    with pytest.raises(StoreCorruptError, match="none of the order"):
        restore(DenseNumbers(), 3, record)
    with pytest.raises(StoreCorruptError, match="none of the order"):
        restore(orders.ulid(), 3, record)


class TestAnOrderThatOnlyCompares:
    """Sets by inclusion: most of them cannot be compared."""

    @staticmethod
    def order() -> PartialOrder:
        """Return the order: letters by inclusion."""

        def compare(last: bytes, new: bytes) -> Comparison:
            older, newer = set(last), set(new)
            if older == newer:
                return Comparison.SAME
            if older < newer:
                return Comparison.NEWER
            return Comparison.OLDER if newer < older else Comparison.UNCOMPARABLE

        return PartialOrder("letters", compare)

    def test_what_it_says(self) -> None:
        """The last ID decides; an older one that never came is processed while all is remembered."""
        order = self.order()
        seen = begin(order, 2, Candidate(b"ab", None), knows_all=True)
        assert seen.status(Candidate(b"abc", None)) is IdStatus.NEWER
        assert seen.status(Candidate(b"ba", None)) is IdStatus.SEEN
        assert seen.status(Candidate(b"a", None)) is IdStatus.UNSEEN
        assert seen.status(Candidate(b"cd", None)) is IdStatus.UNCOMPARABLE
        for text in (b"abc", b"abcd", b"abcde"):
            assert seen.take(Candidate(text, None)) is IdStatus.NEWER
        assert seen.last_id == b"abcde"
        assert seen.status(Candidate(b"abc", None)) is IdStatus.SEEN
        assert seen.status(Candidate(b"ab", None)) is IdStatus.BELOW
        again = restore(order, 2, seen.encode())
        assert again.encode() == seen.encode()
        assert again.status(Candidate(b"ab", None)) is IdStatus.BELOW

    def test_a_late_one_is_remembered(self) -> None:
        """It does not become the last one."""
        seen = begin(self.order(), 5, Candidate(b"abc", None), knows_all=True)
        assert seen.take(Candidate(b"a", None)) is IdStatus.UNSEEN
        assert seen.last_id == b"abc"
        assert seen.status(Candidate(b"a", None)) is IdStatus.SEEN
