"""Strict JSON from hostile bytes: every answer is a document or a `NoIdError`, the same on every machine.

UTF-8 only, no byte order mark, no ``NaN`` or ``Infinity``; of members with the same name the last counts, as RFC 8259
says of most parsers; brackets nest at most 256 deep. That bound is ours, because the interpreter's own
depends on how deep its stack happens to be, and a backfill must answer as the consumer did.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import NoReturn

from dedup_sdk.ids.scalar import NoIdError

MAX_DEPTH = 256

# No 64-bit integer has so many, and JSON has no leading zeros.
_OUT_OF_RANGE_DIGITS = 40

# Possessive, and content with an unclosed string: linear whatever the text.
_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?+', re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")


def _refuse(_text: str) -> NoReturn:
    raise NoIdError("malformed")


def _bounded_int(digits: str) -> int:
    """Read an integer, or one that is out of range as well where it has more digits than Python converts."""
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
        return _decode(text)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise NoIdError("malformed") from None


def _decode(text: str) -> object:
    try:
        return _quick.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # An integer beyond Python's limit of digits; a function call for each integer is only worth it now.
        return _lenient.decode(text)
