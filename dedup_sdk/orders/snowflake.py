"""Snowflakes: 63 bits of milliseconds since an epoch of their maker's, machine and sequence, in decimal text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders.decimals import MAX_INT64, digits_only, unsigned
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_BITS = 63
_MOST_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Snowflake(Order):
    """Snowflakes; see `dedup_sdk.orders.snowflake`."""

    epoch_ms: int
    machine_bits: int
    sequence_bits: int
    by_machine: bool

    def __post_init__(self) -> None:
        """Refuse what is no epoch, and bits that leave no room for a time."""
        for field, most in (
            ("epoch_ms", MAX_INT64),
            ("machine_bits", _BITS - 1),
            ("sequence_bits", _BITS - 1),
        ):
            value: object = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
                message = f"{field}={value!r} is not a whole number from 0 to {most}; Twitter's are epoch_ms=1288834974657, machine_bits=10, sequence_bits=12"
                raise ConfigurationError(message)
        if self.machine_bits + self.sequence_bits >= _BITS:
            message = f"machine_bits={self.machine_bits} and sequence_bits={self.sequence_bits} leave no room for the time in {_BITS} bits; give fewer"
            raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name(
            "snowflake",
            epoch_ms=self.epoch_ms,
            machine_bits=self.machine_bits,
            sequence_bits=self.sequence_bits,
            by_machine=self.by_machine,
        )

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of a number of at most 63 bits; the rank's upper bits are the time in Unix milliseconds."""
        number = unsigned(dedup_id, MAX_INT64)
        if number is None:
            return None
        if not self.by_machine:
            return Place(ONLY_ORIGIN, number + self._epoch())
        machine = number >> self.sequence_bits & (1 << self.machine_bits) - 1
        time_ms = (number >> self.machine_bits + self.sequence_bits) + self.epoch_ms
        return Place(machine, time_ms << self.sequence_bits | number & (1 << self.sequence_bits) - 1)

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are numbers, and of one count."""
        texts = None if self.by_machine else digits_only(dedup_ids, _MOST_DIGITS)
        numbers = list(map(int, texts or ()))
        if not numbers or max(numbers) > MAX_INT64:
            return None
        return list(map(self._epoch().__add__, numbers))

    def _epoch(self) -> int:
        return self.epoch_ms << self.machine_bits + self.sequence_bits
