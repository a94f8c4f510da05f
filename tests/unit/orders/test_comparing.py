from __future__ import annotations

import functools
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from dedup_sdk import ConfigurationError, orders
from dedup_sdk.orders import Comparison, Order, PartialOrder, SortKey, compare_sort_keys, order_of
from tests.support.ordered_ids import KINDS


def by_length(last: bytes, new: bytes) -> int:
    """An order that a user might write."""
    return (len(new) > len(last)) - (len(new) < len(last))


def test_how_places_stand_to_each_other() -> None:
    """The second is judged by the first; another origin, and no sort key at all, cannot be compared."""
    five = SortKey("a", 5)
    assert compare_sort_keys(five, SortKey("a", 6)) is Comparison.NEWER
    assert compare_sort_keys(five, SortKey("a", 4)) is Comparison.OLDER
    assert compare_sort_keys(five, SortKey("a", 5)) is Comparison.SAME
    assert compare_sort_keys(five, SortKey("b", 6)) is Comparison.UNCOMPARABLE
    assert compare_sort_keys(five, None) is Comparison.UNCOMPARABLE
    assert compare_sort_keys(None, five) is Comparison.UNCOMPARABLE
    assert compare_sort_keys(None, None) is Comparison.UNCOMPARABLE


def test_names_are_what_a_store_keeps() -> None:
    """The names of today, written down: a store that was made with one has to find it again."""
    assert sorted({kind.order.name for kind in KINDS}) == [
        "big-endian(width=2, signed)",
        "big-endian(width=3, signed)",
        "big-endian(width=8)",
        "dotted-version",
        "epoch-sequence(separator=:)",
        "epoch-sequence-bytes(epoch_bytes=1, sequence_bytes=2)",
        "hybrid-clock(separator=., logical_digits=10)",
        "hybrid-clock(separator=:)",
        "integer",
        "kafka-coordinates(separator=-)",
        "kafka-coordinates(separator=/)",
        "little-endian(width=4)",
        "mongodb-resume-token",
        "mongodb-resume-token(cluster_time_only)",
        "mysql-gtid",
        "mysql-gtid-set",
        "oracle-scn",
        "postgresql-lsn",
        "rfc3339",
        "snowflake(epoch_ms=1, machine_bits=3, sequence_bits=2, by_machine)",
        "snowflake(epoch_ms=1288834974657, machine_bits=10, sequence_bits=12)",
        "ulid",
        "unix-time(unit=ns)",
        "unix-time(unit=s)",
        "unix-time(unit=us)",
        "uuid1",
        "uuid1(by_node)",
        "uuid6",
        "uuid6(by_node)",
        "uuid7",
    ]


def test_every_builder_is_tried() -> None:
    """The kinds of the property tests are all that is shipped."""
    builders = {name for name in orders.__all__ if name[0].islower()} - {
        "named",
        "order_of",
        "compare_sort_keys",
    }
    shipped = {kind.order.name.partition("(")[0].replace("-", "_") for kind in KINDS}
    assert shipped == builders


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.order.name)
def test_an_order_is_a_value(kind: Any) -> None:
    """Orders are equal when they compare alike, can be keys, cannot be changed, and are printed as their names."""
    order: Order = kind.order
    # The unpickled bytes were made here.
    same = pickle.loads(pickle.dumps(order)) if order.has_sort_keys else orders.mysql_gtid_set()  # noqa: S301
    assert same == order
    assert hash(same) == hash(order)
    assert sum(order == other.order for other in KINDS) == 1
    assert str(order) == order.name
    with pytest.raises((AttributeError, TypeError)):
        order.name = "another"  # type: ignore[misc]


def test_what_a_function_answers() -> None:
    """1 is newer, 0 the same, -1 older, None uncomparable; a Comparison is itself."""
    answers: list[Any] = [1, 0, -1, None, *Comparison]
    order = PartialOrder("told", lambda _last, _new: answers.pop(0))
    assert [order.compare(b"a", b"b") for _ in range(8)] == [
        Comparison.NEWER, Comparison.SAME, Comparison.OLDER, Comparison.UNCOMPARABLE, *Comparison,
    ]  # fmt: skip
    assert order.failures.count == 0


def test_the_last_one_comes_first() -> None:
    """The function gets the last ID, then the new one."""
    assert order_of(by_length, version="1").compare(b"a", b"aa") is Comparison.NEWER
    assert order_of(by_length, version="1").compare(b"aa", b"a") is Comparison.OLDER


@pytest.mark.parametrize(
    "nonsense", [2, -2, True, False, 1.0, "newer", b"1", [], {}, object(), Comparison], ids=repr
)
def test_an_answer_that_is_none_is_uncomparable(nonsense: Any) -> None:
    """Anything but the answers is doubt, and counted; True and False are no 1 and 0."""
    order = PartialOrder("odd", lambda _last, _new: nonsense)
    assert order.compare(b"a", b"b") is Comparison.UNCOMPARABLE
    assert order.failures.count == 1
    assert order.failures.last is not None
    assert type(nonsense).__name__ in order.failures.last


def test_what_a_function_raises_is_uncomparable() -> None:
    """An exception does not reach the loop; it is counted and named."""

    def broken(_last: bytes, new: bytes) -> int:
        return int(new)

    order = PartialOrder("broken", broken)
    assert order.compare(b"1", b"x") is Comparison.UNCOMPARABLE
    assert (order.failures.count, order.failures.last) == (1, "ValueError raised")


class Untouchable:
    """An answer that raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


class Pretender(int):
    """A number that says it is another."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(0)


@pytest.mark.parametrize("answer", [Untouchable, lambda: Pretender(7)], ids=["untouchable", "pretender"])
def test_an_answer_that_resists_is_uncomparable(answer: Callable[[], Any]) -> None:
    """The returned object is not asked for its type."""
    order = PartialOrder("odd", lambda _last, _new: answer())
    assert order.compare(b"a", b"b") is Comparison.UNCOMPARABLE
    assert order.failures.count == 1


def test_an_interruption_is_not_an_answer() -> None:
    """A BaseException that is no Exception goes through: Ctrl-C ends the program, not the comparison."""

    def interrupted(_last: bytes, _new: bytes) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PartialOrder("interrupted", interrupted).compare(b"a", b"b")


def test_a_function_has_no_places() -> None:
    """`has_sort_keys` says that there is nothing to ask for but comparisons."""
    order = order_of(by_length, version="1")
    assert not order.has_sort_keys
    assert not order.dense
    assert order.sort_key(b"a") is None
    assert order.sort_keys([b"a", None]) == [None, None]
    assert all(kind.order.has_sort_keys for kind in KINDS if kind.order.name != "mysql-gtid-set")


def test_what_is_made_an_order() -> None:
    """An order stays as it is; a function is named by where it is defined, and equal to itself."""
    integer = orders.integer()
    assert order_of(integer) is integer
    first, again, later = (order_of(by_length, version=each) for each in ("1", "1", "2"))
    assert first.name == f"function({by_length.__module__}:by_length@1)"
    assert first == again
    assert hash(first) == hash(again)
    assert first not in (later, PartialOrder("another", by_length))
    assert order_of(functools.partial(by_length), version="1").name == "function(functools:partial@1)"


@pytest.mark.parametrize("version", [None, "", " 1", "a@b", "1\n", 1])
def test_a_function_has_a_version(version: Any) -> None:
    """Its code may change, and a store must know."""
    with pytest.raises(
        ConfigurationError, match=r'write orders\.order_of\(by_length, version="1"\)'
    ) as caught:
        order_of(by_length, version=version)
    assert "\n" not in str(caught.value)


def test_an_order_needs_no_version() -> None:
    """Its name says all."""
    with pytest.raises(ConfigurationError, match="leave out the version '1'"):
        order_of(orders.integer(), version="1")


@pytest.mark.parametrize(
    "value",
    [None, "integer", b"integer", 5, Comparison.NEWER, orders.integer, orders.snowflake, orders.ulid, PartialOrder,
     len, lambda _last: 0, lambda: 0],
    ids=repr,
)  # fmt: skip
def test_what_is_no_order(value: Any) -> None:
    """One line that names the value; a builder that was not called is found out at once, not by its silence."""
    with pytest.raises(ConfigurationError, match=r"orders\.integer\(\)") as caught:
        order_of(value, version="1")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", None, 5])
def test_an_order_has_a_name(name: Any) -> None:
    """A store keeps the name: printable text."""
    with pytest.raises(ConfigurationError, match="name"):
        PartialOrder(name, by_length)


def test_a_function_in_c_may_be_one() -> None:
    """Functions that do not tell their arguments are taken at their word."""
    assert PartialOrder("sub", operator.is_).compare(b"a", b"b") is Comparison.UNCOMPARABLE


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: orders.big_endian(width=0), "width=0"),
        (lambda: orders.big_endian(width=65), "width=65"),
        (lambda: orders.little_endian(width=True), "width=True"),
        (lambda: orders.little_endian(width="8"), "width='8'"),  # type: ignore[arg-type]
        (lambda: orders.epoch_sequence(separator=""), "separator=''"),
        (lambda: orders.epoch_sequence(separator="::"), "separator='::'"),
        (lambda: orders.epoch_sequence(separator="5"), "separator='5'"),
        (lambda: orders.hybrid_clock(separator="٣"), "separator='٣'"),
        (lambda: orders.kafka_coordinates(separator=" "), "separator=' '"),
        (lambda: orders.kafka_coordinates(separator="x"), "separator='x'"),
        (lambda: orders.epoch_sequence_bytes(epoch_bytes=9), "epoch_bytes=9"),
        (lambda: orders.epoch_sequence_bytes(sequence_bytes=0), "sequence_bytes=0"),
        (lambda: orders.snowflake(epoch_ms=-1), "epoch_ms=-1"),
        (lambda: orders.snowflake(machine_bits=50, sequence_bits=13), "machine_bits=50"),
        (lambda: orders.snowflake(sequence_bits=63), "sequence_bits=63"),
        (lambda: orders.hybrid_clock(logical_digits=11), "logical_digits=11"),
        (lambda: orders.hybrid_clock(logical_digits=True), "logical_digits=True"),
        (lambda: orders.unix_time(unit="minutes"), "unit='minutes'"),  # type: ignore[arg-type]
        (lambda: orders.unix_time(unit=["s"]), "unit="),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_cannot_be(make: Callable[[], Order], named: str) -> None:
    """Each wrong setting is refused with its name and value."""
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert named in str(caught.value)
