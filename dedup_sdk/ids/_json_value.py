"""Reads an ID from a JSON value, and returns the bytes of a string or an integer that is (part of) an ID.

    string     its UTF-8
    integer    0xFF, then its decimal digits in ASCII, with a leading ``-`` below zero

0xFF occurs in no UTF-8 text, so ``"5"`` and ``5`` are different IDs: two messages that differ only in the type of
their ID are never taken for one. A producer that changes the type is seen as sending new messages.

JSON is read strictly, because it comes from anybody and a backfill must read what the consumer read: UTF-8
only, no byte order mark, no ``NaN`` or ``Infinity``; of members with the same name the last counts, as RFC
8259 says of most parsers; brackets nest at most 256 deep (the interpreter's own bound depends on how deep
its stack happens to be). A pointer is one of RFC 6901.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import TYPE_CHECKING, NoReturn, TypeVar

from dedup_sdk._masking import shown
from dedup_sdk.errors import IdSpecError
from dedup_sdk.ids._columns import Column

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Source = TypeVar("_Source")
_MIN_INT64 = -(2**63)
_MAX_INT64 = 2**63 - 1


class NoIdError(Exception):
    """A value is no ID; its only argument is the reason, as in `Ids`."""


def scalar_bytes(value: object) -> bytes | None:
    """Return the bytes of a string or a signed 64-bit integer, None for None.

    Raises `NoIdError` for anything else: ``not-scalar`` (also a bool or a float), ``out-of-range``, or
    ``malformed`` for a string with a lone surrogate.
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
    """Return the bytes of the value that ``read`` finds in each source; ``read`` may raise `NoIdError`."""
    values: list[bytes | None] = []
    reasons: dict[int, str] = {}
    for index, source in enumerate(sources):
        try:
            values.append(scalar_bytes(read(source)))
        except NoIdError as error:
            values.append(None)
            reasons[index] = str(error)
    return Column(values, reasons)


_FORM = re.compile(r"(?:/(?:[^~/]|~[01])*)+")
# Longer indexes address nothing that fits into a record.
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")

Tokens = tuple[str, ...]


def pointer_tokens(pointer: str) -> Tokens:
    """Return the unescaped reference tokens of a pointer, at least one.

    Raises `IdSpecError` when it does not begin with ``/`` (the empty pointer, which is the whole document,
    is refused too: as an ID it is more likely a mistake) or has a ``~`` that is neither ``~0`` nor ``~1``.
    """
    if not _FORM.fullmatch(pointer):
        raise IdSpecError(
            f"json pointer {shown(pointer)} is not valid; write e.g. json:/order/id, with / before each name (in a "
            "name, ~ is ~0 and / is ~1)"
        )
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in pointer[1:].split("/"))


def resolve(document: object, tokens: Tokens) -> object:
    """Return the value at the tokens, None where there is none (or null).

    ``document`` is a result of ``json.loads``. An array takes decimal indexes without leading zeros.
    """
    for token in tokens:
        if isinstance(document, dict):
            document = document.get(token)
        elif isinstance(document, list) and _INDEX.fullmatch(token) and int(token) < len(document):
            document = document[int(token)]
        else:
            return None
    return document


MAX_DEPTH = 256

# No 64-bit integer has so many, and JSON has no leading zeros.
_OUT_OF_RANGE_DIGITS = 40

# Possessive, and content with an unclosed string: linear whatever the text.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def _refuse(_text: str) -> NoReturn:
    raise NoIdError("malformed")


def _bounded_int(digits: str) -> int:
    """Read an integer; one with more digits than Python converts becomes another one that is out of range, too."""
    return int(digits[:_OUT_OF_RANGE_DIGITS])


_quick = json.JSONDecoder(parse_constant=_refuse)
_lenient = json.JSONDecoder(parse_constant=_refuse, parse_int=_bounded_int)


def _too_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    steps = (1 if bracket in "[{" else -1 for bracket in _BRACKET.findall(_STRING.sub("", text)))
    return max(accumulate(steps), default=0) > MAX_DEPTH


def read_json(data: bytes) -> object:
    """Return the document; raises `NoIdError` (``malformed``) when the bytes are not strict JSON."""
    try:
        text = data.decode()
        if _too_deep(text):
            raise NoIdError("malformed")
        return _decoded(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise NoIdError("malformed") from None


def _decoded(text: str) -> object:
    try:
        return _quick.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer beyond Python's limit of digits; only now a function call for each integer is worth its time.
        return _lenient.decode(text)
