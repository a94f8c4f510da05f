"""Orders that only compare: for what has no places, and for a function of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders.comparison import Comparison
from dedup_sdk.orders.order import Order

if TYPE_CHECKING:
    from dedup_sdk.orders.place import Place

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
_LIKE_THIS = "give one of dedup_sdk.orders, e.g. orders.integer(), or a function of (last, new)"


@dataclass(slots=True)
class Failures:
    """What a function of the user's got wrong: how often (about, when several threads ask), and the last time."""

    count: int = 0
    last: str | None = None

    def note(self, what: str) -> None:
        """Count a failure; its text is cut."""
        self.count += 1
        self.last = what[:_MOST_SHOWN]


@dataclass(frozen=True, slots=True, init=False)
class PartialOrder(Order):
    """An order that a function gives: ``compare(last, new)`` says how the new ID stands to the last one.

    It returns 1 (newer), 0 (the same), -1 (older), None (they cannot be compared), or a `Comparison`. An ID that is not the
    same as itself counts as malformed. Where the function raises an exception or returns anything else the two are
    uncomparable, which is safe, and ``failures`` counts it.

    ``name`` is the identity by which a store knows the order: change it when the function is to answer differently.
    Raises `ConfigurationError` for a name that is empty, or what is no function.
    """

    has_places: ClassVar[bool] = False

    name: str
    function: Compare
    failures: Failures = field(compare=False, repr=False)

    def __init__(self, name: str, compare: Compare) -> None:
        given: object = name
        if not isinstance(given, str) or not given.isprintable() or not given.strip():
            message = f"PartialOrder({name!r}): an order has a printable name; give e.g. PartialOrder('revision', compare)"
            raise ConfigurationError(message)
        _check_function(compare)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "function", compare)
        object.__setattr__(self, "failures", Failures())

    def place(self, dedup_id: bytes, /) -> Place | None:  # noqa: ARG002
        """Return None: there are no places here."""
        return None

    def compare(self, last: bytes, new: bytes, /) -> Comparison:
        """Return what the function says of them."""
        try:
            answer = self.function(last, new)
            # Only what is exactly one of these: True and False are no 1 and 0, for "not newer" is no "the same".
            meaning = _MEANINGS.get(answer) if type(answer) in _ANSWERS else None
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises must not end the loop
            self.failures.note(f"{type(error).__name__} raised")
            return Comparison.UNCOMPARABLE
        if meaning is None:
            self.failures.note(f"a {type(answer).__name__} returned that is no answer")
            return Comparison.UNCOMPARABLE
        return meaning


def order_of(value: Order | Compare) -> Order:
    """Return an order as it is, or the `PartialOrder` of a function, named by its module and name.

    Raises `ConfigurationError` for anything else, also for an order's builder that was not called.
    """
    if isinstance(value, Order):
        return value
    _check_function(value)
    where = getattr(value, "__module__", None) or type(value).__module__
    what = getattr(value, "__qualname__", None) or type(value).__qualname__
    return PartialOrder(f"function({where}:{what})", value)


def _check_function(given: object) -> None:
    if not callable(given) or inspect.isclass(given):
        raise ConfigurationError(f"order={given!r} is no order; {_LIKE_THIS}")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):  # some functions written in C do not tell
        return
    try:
        signature.bind(b"", b"")
    except TypeError:
        raise ConfigurationError(
            f"order={given!r} cannot be asked for two IDs, as its arguments are {signature}; {_LIKE_THIS}"
        ) from None
