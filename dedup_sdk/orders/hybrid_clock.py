"""Hybrid logical clocks: a physical time, and a count of what happened in it."""

from __future__ import annotations

from dataclasses import dataclass

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders.decimals import MAX_UINT64, unsigned
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place
from dedup_sdk.orders.sequences import check_separator

_MAX_UINT32 = 2**32 - 1
_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class HybridClock(Order):
    """``physical.logical`` in decimal text; see `dedup_sdk.orders.hybrid_clock`."""

    separator: str
    logical_digits: int | None

    def __post_init__(self) -> None:
        """Refuse a separator that does not part them, and a number of digits that 32 bits never have."""
        check_separator(self.separator)
        digits: object = self.logical_digits
        if digits is not None and (
            isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= _MOST_DIGITS
        ):
            message = f"logical_digits={digits!r} is not a whole number from 1 to {_MOST_DIGITS}; CockroachDB's are 10"
            raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        digits = {} if self.logical_digits is None else {"logical_digits": self.logical_digits}
        return order_name("hybrid-clock", separator=self.separator, **digits)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of e.g. ``1532379923319195777.0000000003``."""
        left, _, right = dedup_id.partition(self.separator.encode())
        if self.logical_digits not in (None, len(right)):
            return None
        physical, logical = unsigned(left, MAX_UINT64), unsigned(right, _MAX_UINT32)
        if physical is None or logical is None:
            return None
        return Place(ONLY_ORIGIN, physical << 32 | logical)
