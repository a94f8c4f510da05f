"""The bytes of a string or an integer that is (part of) an ID.

    string     its UTF-8
    integer    0xFF, then its decimal digits in ASCII, with a leading ``-`` below zero

0xFF occurs in no UTF-8 text, so ``"5"`` and ``5`` are different IDs: two messages that differ only in the type of
their ID are never taken for one. A producer that changes the type is seen as sending new messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dedup_sdk.ids.digest import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Source = TypeVar("_Source")
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


class NoIdError(Exception):
    """A value is no ID; its only argument is the reason, as in `Ids`."""


def scalar_bytes(value: object) -> bytes | None:
    """Return the bytes of a string or a signed 64-bit integer, None for None.

    Raises `NoIdError` for anything else: ``not-scalar`` (also a bool or a float), ``out-of-range``, or ``malformed`` for
    a string with a lone surrogate.
    """
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise NoIdError("malformed") from None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise NoIdError("not-scalar")
    if not _MIN_INT64 <= value <= _MAX_INT64:
        raise NoIdError("out-of-range")
    return b"\xff%d" % value


def scalar_column(read: Callable[[_Source], object], sources: Iterable[_Source]) -> Column:
    """Return the bytes of what ``read`` finds in each source; ``read`` may raise `NoIdError`."""
    values: list[bytes | None] = []
    reasons: dict[int, str] = {}
    for index, source in enumerate(sources):
        try:
            values.append(scalar_bytes(read(source)))
        except NoIdError as error:
            values.append(None)
            reasons[index] = str(error)
    return Column(values, reasons)
