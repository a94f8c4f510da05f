"""Whole numbers as bytes of a fixed number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

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
        """Refuse a width that no number has."""
        width: object = self.width
        if isinstance(width, bool) or not isinstance(width, int) or not 1 <= width <= _MOST_BYTES:
            message = f"width={width!r}: a number has 1 to {_MOST_BYTES} bytes; give e.g. orders.{self.byteorder}_endian(width=8)"
            raise ConfigurationError(message)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name(f"{self.byteorder}-endian", width=self.width, signed=self.signed)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of exactly ``width`` bytes."""
        if len(dedup_id) != self.width:
            return None
        return Place(ONLY_ORIGIN, int.from_bytes(dedup_id, self.byteorder, signed=self.signed))

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are there and as wide as a machine's number."""
        joined = joined_if_wide(dedup_ids, self.width)
        if joined is None or self.width not in _MACHINE_WIDTHS:
            return None
        sort = ("<" if self.byteorder == "little" else ">") + ("i" if self.signed else "u")
        ranks: list[int] = np.frombuffer(joined, f"{sort}{self.width}").tolist()
        return ranks


def joined_if_wide(texts: Sequence[bytes | None], width: int) -> bytes | None:
    """Return all texts one after the other when each has ``width`` bytes, None otherwise or when there are none."""
    present = cast("Sequence[bytes]", texts)
    try:
        return b"".join(present) if set(map(len, present)) == {width} else None
    except TypeError:  # one of them is None
        return None
