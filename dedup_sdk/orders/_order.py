"""The interface of all orders, and `PartialOrder`, which compares by your function and has no sort keys."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, TypeAlias, cast

from dedup_sdk._checks import unfit_arguments
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders._sort_key import ONLY_ORIGIN, Comparison, SortKey, compare_sort_keys, sort_keys_of


class Order(ABC):
    """Compares IDs of one kind. Orders are values: frozen, hashable, equal when they compare in the same way.

    ``dense``: whether neighbours usually differ by one, so that recent ranks fit into a bitmap; only orders
    whose ranks are integers are dense. ``has_sort_keys``: False where an order can only compare
    (`PartialOrder`); its `sort_key` then returns None.

    No method raises for any bytes, and the work for an ID is bounded.
    """

    __slots__ = ()

    dense: ClassVar[bool] = False
    has_sort_keys: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The identity of this order, with its parameters.

        A store keeps it, to find out whether IDs are still compared in the same way.
        """

    @abstractmethod
    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of an ID, None where it is malformed."""

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many IDs if all are quickly recognised as numbers of `ONLY_ORIGIN`, else None.

        This avoids an object for each ID.
        """
        del dedup_ids
        return None

    def sort_keys(self, dedup_ids: Sequence[bytes | None], /) -> list[SortKey | None]:
        """Return the sort key of each ID; None where it is malformed or missing."""
        numbers = self.numbers(dedup_ids)
        if numbers is not None:
            return cast("list[SortKey | None]", sort_keys_of(ONLY_ORIGIN, numbers))
        sort_key = self.sort_key
        return [None if each is None else sort_key(each) for each in dedup_ids]

    def compare(self, last: bytes, new: bytes, /) -> Comparison:
        """Compare the new ID with the last one; malformed IDs are uncomparable, even with themselves."""
        return compare_sort_keys(self.sort_key(last), self.sort_key(new))

    def __str__(self) -> str:
        return self.name


class NamedOrder(Order):
    """An order that is named by its ``kind`` and its settings, which are the fields of a dataclass."""

    __slots__ = ()

    kind: ClassVar[str]

    @property
    def name(self) -> str:
        """The kind, with the settings in parentheses."""
        return order_name(
            self.kind, **{each.name: getattr(self, each.name) for each in fields(cast("Any", self))}
        )


def order_name(kind: str, **parameters: object) -> str:
    """Return the name of an order: its kind, and its parameters in the given order, without switches that are off."""
    settings = [
        key if value is True else f"{key}={value}" for key, value in parameters.items() if value is not False
    ]
    return f"{kind}({', '.join(settings)})" if settings else kind


Answer: TypeAlias = int | Comparison | None
Compare: TypeAlias = Callable[[bytes, bytes], Answer]

_ANSWERS = (int, Comparison, type(None))
_MEANINGS: dict[Answer, Comparison] = {
    -1: Comparison.OLDER,
    0: Comparison.SAME,
    1: Comparison.NEWER,
    None: Comparison.UNCOMPARABLE,
    **{each: each for each in Comparison},
}
_MOST_SHOWN = 200
_LIKE_THIS = (
    "give one of dedup_sdk.orders, e.g. orders.integer(), or "
    'orders.order_of(function, version="1") of a function (last, new)'
)


@dataclass(slots=True)
class Failures:
    """The failures of a user's function: their number (approximate with several threads), and the last one."""

    count: int = 0
    last: str | None = None

    def note(self, text: str) -> None:
        """Count a failure, and keep its text, truncated."""
        self.count += 1
        self.last = text[:_MOST_SHOWN]


@dataclass(frozen=True, slots=True, init=False)
class PartialOrder(Order):
    """An order by a function: ``compare(last, new)`` compares the new ID with the last one.

    It returns 1 (newer), 0 (the same), -1 (older), None (they cannot be compared), or a `Comparison`. An ID
    that is not the same as itself counts as malformed. If the function raises, or returns anything else,
    the two IDs are uncomparable, which is safe, and ``failures`` counts it.

    ``name`` is the identity that a store keeps: you must change it whenever the function returns other
    results. Raises `ConfigurationError` for an empty name, or anything but a function.
    """

    has_sort_keys: ClassVar[bool] = False

    name: str
    function: Compare
    failures: Failures = field(compare=False, repr=False)

    def __init__(self, name: str, compare: Compare) -> None:
        given: object = name
        if not isinstance(given, str) or not given.isprintable() or not given.strip():
            message = (
                f"PartialOrder({shown(name)}): an order has a printable name; give e.g. "
                "PartialOrder('revision', compare)"
            )
            raise ConfigurationError(message)
        _check_function(compare)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "function", compare)
        object.__setattr__(self, "failures", Failures())

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:  # noqa: ARG002
        """Return None: this order has no sort keys."""
        return None

    def compare(self, last: bytes, new: bytes, /) -> Comparison:
        """Return the function's answer."""
        try:
            answer = self.function(last, new)
            # Only these exact types: True and False are not 1 and 0, since "not newer" does not mean "the same".
            meaning = _MEANINGS.get(answer) if type(answer) in _ANSWERS else None
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises must not end the loop
            self.failures.note(f"{type(error).__name__} raised")
            return Comparison.UNCOMPARABLE
        if meaning is None:
            self.failures.note(f"a {type(answer).__name__} returned that is no answer")
            return Comparison.UNCOMPARABLE
        return meaning


def order_of(value: Order | Compare, *, version: str | None = None) -> Order:
    """Return an order unchanged, or the `PartialOrder` of a function, named by its module, its name and ``version``.

    ``version`` is part of the rule by which a store was filled: you must change it whenever the function
    returns other results. It is required for a function, and refused for an order, which has its own name.

    Raises `ConfigurationError` for anything else, also for a builder of an order that was not called.
    """
    if isinstance(value, Order):
        if version is not None:
            message = f"order={value} has a name of its own: leave out the version {shown(version)}"
            raise ConfigurationError(message)
        return value
    _check_function(value)
    where = getattr(value, "__module__", None) or type(value).__module__
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    given: object = version  # what callers without a type checker pass
    if (
        not isinstance(given, str)
        or not given
        or given != given.strip()
        or not given.isprintable()
        or "@" in given
    ):
        raise ConfigurationError(
            f"order={name} has the version {shown(given)}; write orders.order_of({name}, "
            'version="1"), and another version whenever the function returns other results: code has no '
            "other identity, and marks made by another comparison do not count"
        )
    return PartialOrder(f"function({where}:{name}@{given})", value)


def _check_function(given: object) -> None:
    if not callable(given) or inspect.isclass(given):
        raise ConfigurationError(f"order={shown(given)} is not an order; {_LIKE_THIS}")
    unfit = unfit_arguments(given, 2)
    if unfit is not None:
        raise ConfigurationError(
            f"order={shown(given)} cannot be asked for two IDs, as its arguments are {unfit}; {_LIKE_THIS}"
        )
