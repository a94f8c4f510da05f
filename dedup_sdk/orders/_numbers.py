"""Orders of numbers: in decimal text, as bytes, and several of them joined.

Decimal text is read strictly: ASCII digits, a minus sign only where documented, no blanks, no ``_``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders._order import NamedOrder, Order, order_name
from dedup_sdk.orders._sort_key import ONLY_ORIGIN, SortKey

MAX_DIGITS = 100
"""A number with more digits, leading zeros included, is malformed: reading time grows faster than length."""

MAX_UINT64 = 2**64 - 1
MAX_INT64 = 2**63 - 1
DIGITS_OF_64_BITS = 20

_INTEGER = re.compile(rb"-?[0-9]{1,%d}" % MAX_DIGITS)


def unsigned(text: bytes, most: int) -> int | None:
    """Return the number of at most 20 ASCII digits; None for anything else, and beyond ``most``."""
    if len(text) > DIGITS_OF_64_BITS or not text.isdigit():
        return None
    number = int(text)
    return number if number <= most else None


@dataclass(frozen=True, slots=True)
class Integer(NamedOrder):
    """Whole numbers in decimal text."""

    kind: ClassVar[str] = "integer"
    dense: ClassVar[bool] = True

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a number such as ``42``, ``-7`` or ``0042``."""
        return SortKey(ONLY_ORIGIN, int(dedup_id)) if _INTEGER.fullmatch(dedup_id) else None

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, if none is missing or has a sign."""
        texts = digits_only(dedup_ids, MAX_DIGITS)
        return None if texts is None else list(map(int, texts))


def integer() -> Order:
    """Whole numbers in decimal text of at most 100 digits: ``42``, ``-7``, ``007``; no plus, no blanks."""
    return Integer()


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


_MOST_BYTES = 64
_MACHINE_WIDTHS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class FixedWidth(Order):
    """Whole numbers of ``width`` bytes; see `dedup_sdk.orders.big_endian`."""

    dense: ClassVar[bool] = True

    byteorder: Literal["big", "little"]
    width: int
    signed: bool

    def __post_init__(self) -> None:
        """Refuse an invalid width."""
        width: object = self.width
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _MOST_BYTES:
            message = (
                f"width={shown(width)}: a number has 1 to {_MOST_BYTES} bytes; give e.g. "
                f"orders.{self.byteorder}_endian(width=8)"
            )
            raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name(f"{self.byteorder}-endian", width=self.width, signed=self.signed)

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of exactly ``width`` bytes."""
        if len(dedup_id) != self.width:
            return None
        return SortKey(ONLY_ORIGIN, int.from_bytes(dedup_id, self.byteorder, signed=self.signed))

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, if none is missing and the width is that of a machine integer."""
        joined = joined_if_wide(dedup_ids, self.width)
        if joined is None or self.width not in _MACHINE_WIDTHS:
            return None
        sort = ("<" if self.byteorder == "little" else ">") + ("i" if self.signed else "u")
        ranks: list[int] = np.frombuffer(joined, f"{sort}{self.width}").tolist()
        return ranks


def big_endian(*, width: int = 8, signed: bool = False) -> Order:
    """Whole numbers of exactly ``width`` bytes (1 to 64), most significant byte first (network byte order).

    ``signed``: two's complement. Raises `ConfigurationError` for another width.
    """
    return FixedWidth("big", width, signed)


def little_endian(*, width: int = 8, signed: bool = False) -> Order:
    """Whole numbers of exactly ``width`` bytes, least significant byte first; otherwise as `big_endian`."""
    return FixedWidth("little", width, signed)


def joined_if_wide(texts: Sequence[bytes | None], width: int) -> bytes | None:
    """Return all texts joined if each has ``width`` bytes; None otherwise, or if there are none."""
    present = cast("Sequence[bytes]", texts)
    try:
        return b"".join(present) if set(map(len, present)) == {width} else None
    except TypeError:  # one of them is None
        return None


_MOST_PART_BYTES = 8


def check_separator(separator: object) -> None:
    """Raise `ConfigurationError` unless this is one printable ASCII character that is no letter, digit or blank."""
    if (
        not isinstance(separator, str)
        or len(separator) != 1
        or not separator.isascii()
        or not separator.isprintable()
        or separator.isspace()
        or separator.isalnum()
    ):
        message = (
            f"separator={shown(separator)} cannot stand between two numbers; give one character such as ':'"
        )
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class EpochSequence(NamedOrder):
    """``epoch:sequence`` in decimal text; see `dedup_sdk.orders.epoch_sequence`."""

    kind: ClassVar[str] = "epoch-sequence"
    dense: ClassVar[bool] = True

    separator: str

    def __post_init__(self) -> None:
        """Refuse an invalid separator."""
        check_separator(self.separator)

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of an ID such as ``7:1042``."""
        left, _, right = dedup_id.partition(self.separator.encode())
        epoch, sequence = unsigned(left, MAX_UINT64), unsigned(right, MAX_UINT64)
        if epoch is None or sequence is None:
            return None
        return SortKey(ONLY_ORIGIN, epoch << 64 | sequence)

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, if all are well-formed."""
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


def epoch_sequence(*, separator: str = ":") -> Order:
    """``epoch:sequence`` in decimal text, each an unsigned number of 64 bits: ``7:1042``, and after a restart ``8:0``.

    The epoch grows with each start of the producer, and the sequence begins again: any sequence of a later
    epoch is newer. (Kafka fences its own producers by the same rule, see KIP-98.) ``separator`` is one
    ASCII sign.
    """
    return EpochSequence(separator)


@dataclass(frozen=True, slots=True)
class EpochSequenceBytes(NamedOrder):
    """Epoch and sequence as unsigned big-endian numbers; see `dedup_sdk.orders.epoch_sequence_bytes`."""

    kind: ClassVar[str] = "epoch-sequence-bytes"
    dense: ClassVar[bool] = True

    epoch_bytes: int
    sequence_bytes: int

    def __post_init__(self) -> None:
        """Refuse invalid widths."""
        for field in ("epoch_bytes", "sequence_bytes"):
            width: object = getattr(self, field)
            if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _MOST_PART_BYTES:
                message = (
                    f"{field}={shown(width)}: a number has 1 to {_MOST_PART_BYTES} bytes here; give e.g. "
                    f"{field}=4"
                )
                raise ConfigurationError(message)

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of exactly so many bytes: read as one number they are in order."""
        if len(dedup_id) != self.epoch_bytes + self.sequence_bytes:
            return None
        return SortKey(ONLY_ORIGIN, int.from_bytes(dedup_id, "big"))


def epoch_sequence_bytes(*, epoch_bytes: int = 4, sequence_bytes: int = 8) -> Order:
    """Epoch, then sequence, as unsigned big-endian numbers of 1 to 8 bytes without a separator.

    See `epoch_sequence`.
    """
    return EpochSequenceBytes(epoch_bytes, sequence_bytes)


_MAX_UINT32 = 2**32 - 1
_MOST_LOGICAL_DIGITS = 10


@dataclass(frozen=True, slots=True)
class HybridClock(Order):
    """``physical.logical`` in decimal text; the page on orders describes them."""

    separator: str
    logical_digits: int | None

    def __post_init__(self) -> None:
        """Refuse an invalid separator, and more digits than 32 bits have."""
        check_separator(self.separator)
        digits: object = self.logical_digits
        if digits is not None and (
            isinstance(digits, bool) or not isinstance(digits, int) or not 1 <= digits <= _MOST_LOGICAL_DIGITS
        ):
            message = (
                f"logical_digits={shown(digits)} is not a whole number from 1 to {_MOST_LOGICAL_DIGITS}; give 10 for "
                "CockroachDB"
            )
            raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        digits = {} if self.logical_digits is None else {"logical_digits": self.logical_digits}
        return order_name("hybrid-clock", separator=self.separator, **digits)

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a timestamp such as ``1532379923319195777.0000000003``."""
        left, _, right = dedup_id.partition(self.separator.encode())
        if self.logical_digits not in (None, len(right)):
            return None
        physical, logical = unsigned(left, MAX_UINT64), unsigned(right, _MAX_UINT32)
        if physical is None or logical is None:
            return None
        return SortKey(ONLY_ORIGIN, physical << 32 | logical)


def hybrid_clock(*, separator: str = ".", logical_digits: int | None = None) -> Order:
    """Hybrid logical clocks (Kulkarni et al. 2014): ``physical.logical``, unsigned decimals of 64 and of 32 bits.

    Compared by physical time, then by the logical count; both are whole numbers. With ``logical_digits``
    the count must have exactly that many digits, else it is malformed. Give 10 for CockroachDB's decimals
    (``1532379923319195777.0000000010``): without it a text that lost its trailing zeros would be read as 1
    instead of 10. Compare a clock packed into 64 bits (48 of time, 16 of count) by `big_endian` or
    `integer`.
    """
    return HybridClock(separator, logical_digits)


_VERSION = re.compile(rb"[0-9]{1,20}(?:\.[0-9]{1,20}){0,31}")


@dataclass(frozen=True, slots=True)
class DottedVersion(NamedOrder):
    """Numbers joined by dots; see `dedup_sdk.orders.dotted_version`."""

    kind: ClassVar[str] = "dotted-version"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of a version such as ``1.10.2``: its numbers, the first one first."""
        if not _VERSION.fullmatch(dedup_id):
            return None
        return SortKey(ONLY_ORIGIN, tuple(map(int, dedup_id.split(b"."))))


def dotted_version() -> Order:
    """Numbers joined by dots, up to 32 of up to 20 digits: ``1.9`` < ``1.10`` < ``1.10.0`` < ``1.10.2``; no letters.

    A missing part is not zero: ``1.10`` is older than ``1.10.0``, and not the same, because a record with
    the same ID is not delivered.
    """
    return DottedVersion()
