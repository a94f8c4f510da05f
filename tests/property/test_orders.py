"""Orders against the laws of an order, and against readers of others."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from itertools import pairwise

import pytest
import ulid
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk import orders
from dedup_sdk.orders import Comparison, Order, SortKey
from dedup_sdk.orders._sort_key import ONLY_ORIGIN
from tests.support.ordered_ids import KINDS, Kind

OPPOSITE = {
    Comparison.OLDER: Comparison.NEWER,
    Comparison.NEWER: Comparison.OLDER,
    Comparison.SAME: Comparison.SAME,
    Comparison.UNCOMPARABLE: Comparison.UNCOMPARABLE,
}
NOT_NEWER = (Comparison.SAME, Comparison.OLDER)

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.order.name)
every_placed_kind = pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.order.has_sort_keys], ids=lambda kind: kind.order.name
)


def sort_key_of(order: Order, dedup_id: bytes) -> SortKey:
    """The sort key of an ID that has one."""
    sort_key = order.sort_key(dedup_id)
    assert sort_key is not None, dedup_id
    return sort_key


@every_kind
@given(data=st.data())
def test_an_id_is_the_same_as_itself(kind: Kind, data: st.DataObject) -> None:
    """A well-formed ID has a sort key, and is no other than itself."""
    one = data.draw(kind.ids)
    assert kind.order.compare(one, bytes(bytearray(one))) is Comparison.SAME


@every_kind
@given(data=st.data())
def test_the_other_way_round_is_the_opposite(kind: Kind, data: st.DataObject) -> None:
    """Antisymmetry: if one is newer than the other, the other is older."""
    one, other = data.draw(kind.ids), data.draw(kind.ids)
    assert kind.order.compare(one, other) is OPPOSITE[kind.order.compare(other, one)]


@every_kind
@given(data=st.data())
def test_what_is_newer_than_newer_is_newer(kind: Kind, data: st.DataObject) -> None:
    """Transitivity, of newer and of the same."""
    compare = kind.order.compare
    one, two, three = (data.draw(kind.ids) for _ in range(3))
    steps = {compare(one, two), compare(two, three)}
    if steps == {Comparison.SAME}:
        assert compare(one, three) is Comparison.SAME
    elif steps <= {Comparison.NEWER, Comparison.SAME}:
        assert compare(one, three) is Comparison.NEWER
    elif steps <= set(NOT_NEWER):
        assert compare(one, three) is Comparison.OLDER


@every_placed_kind
@given(data=st.data())
def test_an_order_is_total_within_an_origin(kind: Kind, data: st.DataObject) -> None:
    """Two sort keys of one origin can be compared, two of different origins cannot; ranks of one order sort."""
    ids = data.draw(st.lists(kind.ids, min_size=2, max_size=5))
    sort_keys = [sort_key_of(kind.order, each) for each in ids]
    for one, first in zip(ids, sort_keys, strict=True):
        for other, second in zip(ids, sort_keys, strict=True):
            comparable = kind.order.compare(one, other) is not Comparison.UNCOMPARABLE
            assert comparable == (first.origin == second.origin)
    ranks = sorted(sort_key.rank for sort_key in sort_keys)
    assert all(one <= other for one, other in pairwise(ranks))  # type: ignore[operator]
    if kind.order.dense:
        assert all(isinstance(rank, int) for rank in ranks)


@every_kind
@given(data=st.data())
def test_a_batch_is_its_ids_one_by_one(kind: Kind, data: st.DataObject) -> None:
    """`sort_keys` agrees with `sort_key`, for the usual batch and for one with gaps and broken IDs in it."""
    order = kind.order
    ids: list[bytes | None] = list(data.draw(st.lists(kind.ids, max_size=4)))
    assert order.sort_keys(ids) == [order.sort_key(each) for each in ids if each is not None]
    alien = data.draw(st.none() | st.binary(max_size=40))
    ids.insert(data.draw(st.integers(0, len(ids))), alien)
    assert order.sort_keys(ids) == [None if each is None else order.sort_key(each) for each in ids]
    assert all(type(sort_key) is SortKey for sort_key in order.sort_keys(ids) if sort_key is not None)
    numbers = order.numbers(ids)
    if numbers is not None:
        assert [SortKey(ONLY_ORIGIN, number) for number in numbers] == order.sort_keys(ids)
        assert {type(number) for number in numbers} == {int}


@every_kind
@given(data=st.data())
def test_no_bytes_raise(kind: Kind, data: st.DataObject) -> None:
    """Whatever bytes come as an ID have a sort key or none; none is uncomparable, with itself as well."""
    order = kind.order
    anything = data.draw(
        st.binary(max_size=60)
        | kind.ids.map(lambda each: each[:-1])
        | kind.ids.map(lambda each: each + b"\n")
    )
    good = data.draw(kind.ids)
    order.compare(anything, good)
    order.compare(good, anything)
    if order.has_sort_keys:
        formed = order.sort_key(anything) is not None
        assert (order.compare(anything, anything) is Comparison.SAME) == formed


@given(st.integers(), st.integers())
def test_integers_compare_as_integers(one: int, other: int) -> None:
    """Python's own comparison is the oracle."""
    expected = Comparison.SAME if one == other else Comparison.NEWER if other > one else Comparison.OLDER
    assert orders.integer().compare(b"%d" % one, b"%d" % other) is expected


@given(st.binary(min_size=16, max_size=16))
def test_a_ulid_is_the_one_of_python_ulid(raw: bytes) -> None:
    """The text that python-ulid writes has the sort key of its bytes, in either case."""
    text = str(ulid.ULID(raw))
    expected = int.from_bytes(raw, "big")
    assert [
        sort_key_of(orders.ulid(), form).rank for form in (text.encode(), text.lower().encode(), raw)
    ] == [expected] * 3


@given(st.text(st.sampled_from("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabiloz-"), min_size=25, max_size=27))
def test_what_python_ulid_refuses_is_malformed(text: str) -> None:
    """A text has a sort key exactly when python-ulid reads it."""
    try:
        expected: int | None = int.from_bytes(ulid.ULID.from_str(text).bytes, "big")
    except ValueError:
        expected = None
    sort_key = orders.ulid().sort_key(text.encode())
    assert (sort_key and sort_key.rank) == expected


@given(st.integers(0, 2**128 - 1), st.sampled_from([1, 6, 7]))
def test_a_uuid_is_the_one_of_the_standard_library(bits: int, version: int) -> None:
    """The fields are those that `uuid.UUID` has, and the orders of versions 6 and 7 are those of the bytes."""
    bits = bits & ~(15 << 76) & ~(3 << 62) | version << 76 | 0b10 << 62
    other = uuid.UUID(int=bits)
    text = str(other).encode()
    if version == 1:
        assert sort_key_of(orders.uuid1(), text) == (other.node, other.time << 14 | other.clock_seq)
    else:
        order = orders.uuid6() if version == 6 else orders.uuid7()
        later = bits + 1 if other.int & 1 == 0 else bits
        assert order.compare(text, uuid.UUID(int=later).bytes) is (
            Comparison.SAME if later == bits else Comparison.NEWER
        )


@given(st.datetimes(timezones=st.timezones() | st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_moments_compare_as_moments(one: datetime, other: datetime) -> None:
    """Python's aware datetimes are the oracle, to their microsecond.

    Those whose offset has seconds have no text here.
    """
    texts = [moment.isoformat().encode() for moment in (one, other)]
    first, second = (orders.rfc3339().sort_key(text) for text in texts)
    if first is None:
        assert one.utcoffset().total_seconds() % 60  # type: ignore[union-attr]
    else:
        assert second is not None
        assert (first.rank < second.rank) == (one < other)  # type: ignore[operator]
        assert (first.rank == second.rank) == (one == other)


@given(st.sets(st.integers(1, 30), min_size=1), st.sets(st.integers(1, 30), min_size=1))
def test_gtid_sets_compare_as_sets(one: set[int], other: set[int]) -> None:
    """Python's sets are the oracle, whatever the intervals are cut into."""
    server = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    texts = [":".join([server, *map(str, sorted(each))]).encode() for each in (one, other)]
    expected = (
        Comparison.SAME if one == other else Comparison.NEWER if one < other
        else Comparison.OLDER if one > other else Comparison.UNCOMPARABLE
    )  # fmt: skip
    assert orders.mysql_gtid_set().compare(*texts) is expected
