"""Counts that begin anew with each life of their producer: an epoch that grows with it, and a number in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders.decimals import DIGITS_OF_64_BITS, MAX_UINT64, digits_only, unsigned
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_MOST_BYTES = 8


def check_separator(separator: object) -> None:
    """Raise `ConfigurationError` for what does not part two numbers: it is one ASCII sign, no letter, digit or blank."""
    if (
        not isinstance(separator, str)
        or len(separator) != 1
        or not separator.isascii()
        or not separator.isprintable()
        or separator.isspace()
        or separator.isalnum()
    ):
        message = f"separator={separator!r} cannot stand between two numbers; give one character such as ':'"
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class EpochSequence(Order):
    """``epoch:sequence`` in decimal text; see `dedup_sdk.orders.epoch_sequence`."""

    dense: ClassVar[bool] = True

    separator: str

    def __post_init__(self) -> None:
        """Refuse a separator that does not part them."""
        check_separator(self.separator)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name("epoch-sequence", separator=self.separator)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of e.g. ``7:1042``."""
        left, _, right = dedup_id.partition(self.separator.encode())
        epoch, sequence = unsigned(left, MAX_UINT64), unsigned(right, MAX_UINT64)
        if epoch is None or sequence is None:
            return None
        return Place(ONLY_ORIGIN, epoch << 64 | sequence)

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are well-formed."""
        if None in dedup_ids:
            return None
        separator = self.separator.encode()
        halves = [each.partition(separator) for each in cast("Sequence[bytes]", dedup_ids)]
        lefts = digits_only([left for left, _, _ in halves], DIGITS_OF_64_BITS)
        rights = digits_only([right for _, _, right in halves], DIGITS_OF_64_BITS)
        if lefts is None or rights is None:
            return None
        epochs, sequences = list(map(int, lefts)), list(map(int, rights))
        if max(epochs) > MAX_UINT64 or max(sequences) > MAX_UINT64:
            return None
        return [epoch << 64 | sequence for epoch, sequence in zip(epochs, sequences, strict=True)]


@dataclass(frozen=True, slots=True)
class EpochSequenceBytes(Order):
    """Epoch and sequence as unsigned big-endian numbers; see `dedup_sdk.orders.epoch_sequence_bytes`."""

    dense: ClassVar[bool] = True

    epoch_bytes: int
    sequence_bytes: int

    def __post_init__(self) -> None:
        """Refuse widths that no number has."""
        for field in ("epoch_bytes", "sequence_bytes"):
            width: object = getattr(self, field)
            if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _MOST_BYTES:
                message = (
                    f"{field}={width!r}: a number has 1 to {_MOST_BYTES} bytes here; give e.g. {field}=4"
                )
                raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name(
            "epoch-sequence-bytes", epoch_bytes=self.epoch_bytes, sequence_bytes=self.sequence_bytes
        )

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of exactly so many bytes: read as one number they are in order already."""
        if len(dedup_id) != self.epoch_bytes + self.sequence_bytes:
            return None
        return Place(ONLY_ORIGIN, int.from_bytes(dedup_id, "big"))
