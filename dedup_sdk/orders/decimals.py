"""Numbers in decimal text, read strictly: ASCII digits, no sign but a minus where there is one, no blanks, no ``_``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from dedup_sdk.orders.order import Order
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

MAX_DIGITS = 100
"""A number of more digits, leading zeros included, is malformed: what it takes to read one grows faster than it."""

MAX_UINT64 = 2**64 - 1
MAX_INT64 = 2**63 - 1
DIGITS_OF_64_BITS = 20

_INTEGER = re.compile(rb"-?[0-9]{1,%d}" % MAX_DIGITS)


def unsigned(text: bytes, most: int) -> int | None:
    """Return the number that at most 20 ASCII digits are, None for anything else and beyond ``most``."""
    if len(text) > DIGITS_OF_64_BITS or not text.isdigit():
        return None
    number = int(text)
    return number if number <= most else None


@dataclass(frozen=True, slots=True)
class Integer(Order):
    """Whole numbers in decimal text."""

    dense: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "integer"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of ``42``, ``-7`` or ``0042``."""
        return Place(ONLY_ORIGIN, int(dedup_id)) if _INTEGER.fullmatch(dedup_id) else None

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are there and none has a sign."""
        texts = digits_only(dedup_ids, MAX_DIGITS)
        return None if texts is None else list(map(int, texts))


def digits_only(texts: Sequence[bytes | None], most_digits: int) -> Sequence[bytes] | None:
    """Return the texts when each has one to ``most_digits`` ASCII digits and nothing else, None otherwise."""
    present = cast("Sequence[bytes]", texts)
    try:
        lengths = set(map(len, present))
    except TypeError:  # one of them is None
        return None
    if not lengths or min(lengths) == 0 or max(lengths) > most_digits or not b"".join(present).isdigit():
        return None
    return present
