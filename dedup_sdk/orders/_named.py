"""Finds an order by its name, as a store keeps it and a command line gives it.

integer
snowflake(epoch_ms=5, machine_bits=10, sequence_bits=12)
uuid1(by_node)                  a switch; a missing one is off
py:shop.ids:compare@1           a function (last, new), and its version
py:shop.ids:ORDER               an order, or a function without arguments that makes one
function(shop.ids:compare@1)    the function, as a store names it
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders._identifiers import snowflake, ulid, uuid1, uuid6, uuid7
from dedup_sdk.orders._log_positions import (
    kafka_coordinates,
    mongodb_resume_token,
    mysql_gtid,
    mysql_gtid_set,
    oracle_scn,
    postgresql_lsn,
)
from dedup_sdk.orders._numbers import (
    big_endian,
    dotted_version,
    epoch_sequence,
    epoch_sequence_bytes,
    hybrid_clock,
    integer,
    little_endian,
)
from dedup_sdk.orders._order import Order, order_of
from dedup_sdk.orders._timestamps import rfc3339, unix_time

_BUILDERS: Final[tuple[Callable[..., Order], ...]] = (
    big_endian, dotted_version, epoch_sequence, epoch_sequence_bytes, hybrid_clock, integer, kafka_coordinates,
    little_endian, mongodb_resume_token, mysql_gtid, mysql_gtid_set, oracle_scn, postgresql_lsn, rfc3339, snowflake,
    ulid, unix_time, uuid1, uuid6, uuid7,
)  # fmt: skip
BY_KIND: Final[Mapping[str, Callable[..., Order]]] = {
    builder.__name__.replace("_", "-"): builder for builder in _BUILDERS
}
"""The builder of each kind of order, by the first word of its names."""

_SHAPE: Final = re.compile(r"([a-z0-9-]+)(?:\((.*)\))?", re.DOTALL)
_NUMBER: Final = r"-?[0-9]{1,20}"
_ONE_SIGN: Final = "."
_OF_PYTHON: Final = "py:"
_FUNCTION: Final = re.compile(r"function\((.+)\)")


def named(text: str) -> Order:
    """Return the order of this name (`Order.name`), or the one that ``py:MODULE:NAME`` refers to.

    Missing numbers and signs have the builder's defaults; a missing switch is off. The object that ``py:``
    names is imported: an order, a function without arguments that makes an order, or, with a version, a
    function ``(last, new)`` for `order_of`. Raises `ConfigurationError`, which lists the known names.
    """
    given: object = text  # what callers without a type checker pass
    if not isinstance(given, str):
        raise ConfigurationError(f"an order's name is text, not {shown(given)}; {_advice()}")
    if text.startswith(_OF_PYTHON):
        return _imported(text, text.removeprefix(_OF_PYTHON))
    if function := _FUNCTION.fullmatch(text):
        return _imported(text, function[1])
    shape = _SHAPE.fullmatch(text)
    builder = None if shape is None else BY_KIND.get(shape[1])
    if shape is None or builder is None:
        raise ConfigurationError(f"no order is called {shown(text)}; {_advice()}")
    return builder(**_arguments(text, builder, shape[2]))


def _arguments(text: str, builder: Callable[..., Order], told: str | None) -> dict[str, Any]:
    hints = get_type_hints(builder)
    parameters = {name: hints[name] for name in inspect.signature(builder).parameters}
    found: dict[str, Any] = {name: False for name, kind in parameters.items() if kind is bool}
    rest, said = told or "", set[str]()
    while rest:
        for name, kind in parameters.items():
            match = re.match(f"{name}{_value(kind)}(?:, (?=.)|$)", rest, re.DOTALL)
            if match is not None and name not in said:
                found[name] = _read(kind, match)
                said.add(name)
                rest = rest[match.end() :]
                break
        else:
            raise ConfigurationError(
                f"order {shown(text)} has {shown(rest)}, which is no setting of it; {_settings(parameters)}"
            )
    needed = [
        name
        for name, each in inspect.signature(builder).parameters.items()
        if each.default is inspect.Parameter.empty and name not in found
    ]
    if needed or told == "":
        raise ConfigurationError(
            f"order {shown(text)} lacks {needed[0] if needed else 'settings'}; {_settings(parameters)}"
        )
    return found


def _value(kind: Any) -> str:
    """Return the pattern of a setting's value, as a group."""
    if kind is bool:
        return "()"
    if get_origin(kind) is Literal:
        return f"=({'|'.join(get_args(kind))})"
    return f"=({_ONE_SIGN if kind is str else _NUMBER})"


def _read(kind: Any, match: re.Match[str]) -> Any:
    if kind is bool:
        return True
    return match[1] if kind is str or get_origin(kind) is Literal else int(match[1])


def _settings(parameters: Mapping[str, Any]) -> str:
    if not parameters:
        return "it has none: write its name alone"
    return (
        f"it has {', '.join(map(_setting, parameters, parameters.values()))}, parted by a comma and a blank"
    )


def _setting(name: str, kind: Any) -> str:
    if kind is bool:
        return name
    if get_origin(kind) is Literal:
        return f"{name}={'|'.join(get_args(kind))}"
    return f"{name}=SIGN" if kind is str else f"{name}=NUMBER"


def _imported(text: str, named: str) -> Order:
    path, at, version = named.partition("@")
    if path.count(":") != 1:
        raise ConfigurationError(
            f"order {shown(text)} names nothing to import; write py:MODULE:NAME@VERSION, e.g. py:shop.ids:compare@1"
        )
    try:
        found: Any = pkgutil.resolve_name(path)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ConfigurationError(
            f"order {shown(text)} cannot be imported ({cause}); write py:MODULE:NAME, the module on sys.path"
        ) from error
    if callable(found) and not inspect.isclass(found) and _takes(found, 0) and not _takes(found, 2):
        found = found()
        if not isinstance(found, Order):
            raise ConfigurationError(
                f"order {shown(text)} makes a {type(found).__name__}, which is no order; name a function "
                "of (last, new), or what makes an order"
            )
    return order_of(found, version=version if at else None)


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[b""] * count)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return False
    return True


def _advice() -> str:
    return f"give one of {', '.join(BY_KIND)}, or py:MODULE:NAME"
