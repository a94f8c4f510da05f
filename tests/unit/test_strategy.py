"""The parts of a strategy, and those refused."""

from __future__ import annotations

from typing import Any

import pytest

from dedup_sdk import ConfigurationError, LastId, Lookup, Window, Windows, header, id_spec, orders
from dedup_sdk._rule_fingerprint import rule_digits


def test_texts_are_taken() -> None:
    """As everywhere else."""
    texts: dict[str, Any] = {"id": "header:seq", "source": "header:producer", "window": "2d"}
    strategy = LastId(order=orders.integer(), **texts)
    assert strategy.id == header("seq")
    assert strategy.source == header("producer")
    assert strategy.window == Window(days=2)


def test_another_version_of_a_function_is_another_rule() -> None:
    """The old code's comparisons are not those of the new one: stores and commits of it count for nothing."""

    def compare(last: bytes, new: bytes) -> int:
        return (new > last) - (new < last)

    rules = {
        rule_digits(
            LastId(id=header("seq"), order=orders.order_of(compare, version=version)).keys,
            Window(days=2),
            digest="d",
            isolation="read_committed",
        )
        for version in ("1", "1", "2")
    }
    assert len(rules) == 2
    bare: Any = compare
    with pytest.raises(ConfigurationError, match="version"):
        LastId(id=header("seq"), order=bare)


def test_equal_strategies_are_equal() -> None:
    """Strategies are values."""
    assert LastId(id=id_spec("header:seq"), order=orders.integer()) == LastId(
        id=header("seq"), order=orders.integer()
    )


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"order": 7}, "7"),
        ({"id": 7}, "id spec 7"),
        ({"source": 7}, "id spec 7"),
        ({"reorder_depth": -1}, "reorder_depth=-1"),
        ({"reorder_depth": True}, "reorder_depth=True"),
        ({"reorder_depth": 1.5}, "reorder_depth=1.5"),
        ({"reorder_depth": 10**9}, "reorder_depth=1000000000"),
        ({"below_floor": "drop"}, "below_floor='drop': choose deliver or discard"),
        ({"window": Window(count=5)}, "for a time, not for a count"),
        ({"window": 7}, "window=7 is not a window"),
        ({"otherwise": "header:x"}, "otherwise='header:x': give a Lookup"),
        ({"otherwise": Lookup(id=header("x"), window=Window(count=5))}, "with one window by time"),
        ({"otherwise": Lookup(id=header("x"), window=Window.off())}, "with one window by time"),
        (
            {"otherwise": Lookup(id=header("x"), window=Windows(default=Window(days=1)))},
            "with one window by time",
        ),
        ({"otherwise": Lookup(id=header("x"), window=Window(days=1), persist=False)}, "that persists"),
        ({"on_missing_id": "drop"}, "on_missing_id='drop'"),
    ],
)
def test_nonsense_is_refused_in_one_line(settings: dict[str, Any], says: str) -> None:
    """The error, the value, and the remedy."""
    with pytest.raises(ConfigurationError) as refused:
        LastId(**{"id": "header:seq", "order": orders.integer(), **settings})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
