"""ULIDs: 48 bits of milliseconds, 80 of randomness, in 26 letters of Crockford's base 32 that sort as the number does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from dedup_sdk.orders.fixed_width import joined_if_wide
from dedup_sdk.orders.order import Order
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_CROCKFORD = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PYTHONS = b"0123456789ABCDEFGHIJKLMNOPQRSTUV"
_LETTERS = _CROCKFORD + _CROCKFORD[10:].lower()
_TO_PYTHONS = bytes.maketrans(_LETTERS, _PYTHONS + _PYTHONS[10:])
_FIRST_LETTERS = b"01234567"  # 26 letters have two bits more than a ULID: a larger first one overflows
_TEXT_LENGTH = 26
_BINARY_LENGTH = 16
_TEXT = re.compile(rb"[%s][%s]{25}" % (_FIRST_LETTERS, _LETTERS))


@dataclass(frozen=True, slots=True)
class Ulid(Order):
    """ULIDs; see `dedup_sdk.orders.ulid`."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "ulid"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of a ULID in 26 letters of either case, or in its 16 bytes."""
        if _TEXT.fullmatch(dedup_id):
            return Place(ONLY_ORIGIN, int(dedup_id.translate(_TO_PYTHONS), 32))
        if len(dedup_id) == _BINARY_LENGTH:
            return Place(ONLY_ORIGIN, int.from_bytes(dedup_id, "big"))
        return None

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are well-formed texts."""
        joined = joined_if_wide(dedup_ids, _TEXT_LENGTH)
        if (
            joined is None
            or joined.translate(None, _LETTERS)
            or joined[::_TEXT_LENGTH].translate(None, _FIRST_LETTERS)
        ):
            return None
        texts = cast("Sequence[bytes]", dedup_ids)
        return [int(each.translate(_TO_PYTHONS), 32) for each in texts]
