"""From an order's name to the order."""

from __future__ import annotations

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_adapters import solace
from dedup_sdk import ConfigurationError, orders
from dedup_sdk.orders._named import BY_KIND
from dedup_sdk.orders._order import Order
from tests.support.ordered_ids import KINDS

NO_BUILDERS = {"compare_sort_keys", "named", "order_of"}
SIGNS = st.characters(min_codepoint=33, max_codepoint=126).filter(lambda sign: not sign.isalnum())
SWITCH = st.booleans()


def by_length(last: bytes, new: bytes) -> int:
    """An order that a user might write."""
    return (len(new) > len(last)) - (len(new) < len(last))


def no_order() -> str:
    """It makes something else."""
    return "integer"


REVISION = orders.PartialOrder("revision", by_length)

SETTINGS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "big-endian": {"width": st.integers(1, 64), "signed": SWITCH},
    "little-endian": {"width": st.integers(1, 64), "signed": SWITCH},
    "epoch-sequence": {"separator": SIGNS},
    "epoch-sequence-bytes": {"epoch_bytes": st.integers(1, 8), "sequence_bytes": st.integers(1, 8)},
    "hybrid-clock": {"separator": SIGNS, "logical_digits": st.none() | st.integers(1, 10)},
    "kafka-coordinates": {"separator": SIGNS},
    "mongodb-resume-token": {"cluster_time_only": SWITCH},
    "snowflake": {
        "epoch_ms": st.integers(0, 2**41),
        "machine_bits": st.integers(0, 20),
        "sequence_bits": st.integers(0, 20),
        "by_machine": SWITCH,
    },
    "unix-time": {"unit": st.sampled_from(["s", "ms", "us", "ns"])},
    "uuid1": {"by_node": SWITCH},
    "uuid6": {"by_node": SWITCH},
}


@st.composite
def any_order(draw: st.DrawFn) -> Order:
    """An order of any kind, with any settings that it takes."""
    kind = draw(st.sampled_from(sorted(BY_KIND)))
    settings = {name: draw(values) for name, values in SETTINGS.get(kind, {}).items()}
    try:
        return BY_KIND[kind](**settings)
    except ConfigurationError:
        # A sign that may stand in a number, or bits that leave no room.
        return BY_KIND[kind](**({"unit": "s"} if kind == "unix-time" else {}))


@given(order=any_order())
def test_a_name_leads_back_to_its_order(order: Order) -> None:
    """Whatever its settings, an order is found by its name again: the same value, under the same name."""
    found = orders.named(order.name)
    assert found == order
    assert found.name == order.name


def test_every_order_that_is_shipped_has_a_name() -> None:
    """No builder is missing in the table, its names begin with its kind, and the settings above are all there are."""
    builders = {name for name in orders.__all__ if inspect.isfunction(getattr(orders, name))} - NO_BUILDERS
    assert {builder.__name__ for builder in BY_KIND.values()} == builders
    assert {kind.order.name.partition("(")[0] for kind in KINDS} == set(BY_KIND)
    for kind, builder in BY_KIND.items():
        assert list(inspect.signature(builder).parameters) == list(SETTINGS.get(kind, {})), kind
    for each in KINDS:
        assert orders.named(each.order.name) == each.order


def test_what_a_name_does_not_tell() -> None:
    """Numbers and signs are the builder's own then, and switches are off."""
    assert orders.named("snowflake(epoch_ms=5)") == orders.snowflake(epoch_ms=5)
    assert orders.named("snowflake(by_machine, machine_bits=3)") == orders.snowflake(
        machine_bits=3, by_machine=True
    )
    assert orders.named("epoch-sequence") == orders.epoch_sequence()
    assert orders.named("uuid1") == orders.uuid1(by_node=False)


def test_what_is_not_shipped_is_imported() -> None:
    """An order, a function of two IDs, or one that makes an order.

    A function is found by the name that a store keeps, too.
    """
    function = orders.order_of(by_length, version="2")
    assert orders.named(f"py:{__name__}:by_length@2") == function
    assert orders.named(function.name) == function
    assert orders.named(f"py:{__name__}:REVISION") == REVISION
    assert orders.named("py:dedup_adapters.solace:order") == solace.order()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no order is called ''; give one of big-endian"),
        ("ulids", "no order is called 'ulids'; give one of big-endian, dotted-version, .*uuid7, or py:MODULE:NAME"),
        ("Integer", "'Integer'"),
        ("integer ", "'integer '"),
        ("x" * 500, r"x\.\.\.'; give one of"),
        ("integer(3)", "'3', which is no setting of it; it has none"),
        ("snowflake()", "lacks settings; it has epoch_ms=NUMBER"),
        ("snowflake(epoch_ms=5,machine_bits=3)",
         "no setting of it; it has epoch_ms=NUMBER, .*parted by a comma and a blank"),
        ("snowflake(epoch_ms=5, epoch_ms=6)", "'epoch_ms=6', which is no setting"),
        ("snowflake(epoch_ms=5, )", "which is no setting"),
        ("snowflake(epoch_ms=x)", "'epoch_ms=x'"),
        ("snowflake(epoch_ms=-1)", "epoch_ms=-1 is not a whole number"),
        ("epoch-sequence(separator=::)", "it has separator=SIGN"),
        ("unix-time", r"lacks unit; it has unit=s\|ms\|us\|ns"),
        ("unix-time(unit=h)", "'unit=h'"),
        ("py:shop", "names nothing to import"),
        ("py:no_such_module:f", "cannot be imported .*no_such_module"),
        ("py:math:pi", "3.14.* is not an order"),
        (f"py:{__name__}:by_length", "has the version None"),
        (f"py:{__name__}:REVISION@1", "leave out the version"),
        (f"py:{__name__}:no_order", "makes a str, which is no order"),
        ("py:json:dumps", "cannot be asked for two IDs"),
    ],
)  # fmt: skip
def test_what_is_no_name_is_refused_in_a_line(text: str, says: str) -> None:
    """The line names the text and the known names."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        orders.named(text)
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused() -> None:
    """As callers without a type checker pass it."""
    with pytest.raises(ConfigurationError, match="is text, not None"):
        orders.named(None)  # type: ignore[arg-type]
