"""UUIDs that bear a time: versions 1, 6 and 7 of RFC 9562.

Read are the text of 36 characters (section 4; either case), the same without hyphens, and the 16 bytes themselves. The
version has to be the order's, the variant that of the RFC (sections 4.1 and 4.2).
"""

from __future__ import annotations

from binascii import unhexlify
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from dedup_sdk.orders.fixed_width import joined_if_wide
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import ONLY_ORIGIN, Place

_BYTES = 16
_HEX_LENGTH = 32
_TEXT_LENGTH = 36
_HYPHENS = (8, 13, 18, 23)
_VARIANT = 0b10
_NODE = 2**48 - 1

Column: TypeAlias = npt.NDArray[np.uint64]
Half = TypeVar("Half", int, Column)


def read_uuid(dedup_id: bytes, version: int) -> int | None:
    """Return the 128 bits of a UUID of that version, None for anything else."""
    raw = _raw(dedup_id, 1)
    if raw is None:
        return None
    bits = int.from_bytes(raw, "big")
    return bits if bits >> 76 & 15 == version and bits >> 62 & 3 == _VARIANT else None


def read_uuids(dedup_ids: Sequence[bytes | None], version: int) -> tuple[Column, Column] | None:
    """Return both halves of the bits of many UUIDs, None unless all are there, written alike, and of that version."""
    for width in (_TEXT_LENGTH, _HEX_LENGTH, _BYTES):
        joined = joined_if_wide(dedup_ids, width)
        if joined is not None:
            break
    else:
        return None
    raw = _raw(joined, len(dedup_ids))
    if raw is None:
        return None
    halves = np.frombuffer(raw, ">u8").reshape(-1, 2).astype(np.uint64)
    high, low = halves[:, 0], halves[:, 1]
    if bool((high >> 12 & 15 == version).all()) and bool((low >> 62 == _VARIANT).all()):
        return high, low
    return None


def _raw(joined: bytes, count: int) -> bytes | None:
    """Return the bytes of ``count`` UUIDs that are all written in the same of the three ways."""
    width, rest = divmod(len(joined), count)
    if rest:
        return None
    if width == _BYTES:
        return joined
    if width == _TEXT_LENGTH:
        hyphens = b"-" * count
        if any(joined[at::_TEXT_LENGTH] != hyphens for at in _HYPHENS):
            return None
        joined = joined.replace(b"-", b"")
    # More hyphens than those four make it shorter.
    if len(joined) != _HEX_LENGTH * count:
        return None
    try:
        return unhexlify(joined)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Uuid7(Order):
    """UUIDs of version 7; see `dedup_sdk.orders.uuid7`."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "uuid7"

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of a UUID of version 7: its bits as a number."""
        bits = read_uuid(dedup_id, 7)
        return None if bits is None else Place(ONLY_ORIGIN, bits)

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are well-formed and written alike."""
        halves = read_uuids(dedup_ids, 7)
        if halves is None:
            return None
        high, low = halves
        return [one << 64 | other for one, other in zip(high.tolist(), low.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class UuidTime(Order):
    """UUIDs of version 1 or 6, which have the same fields; see `dedup_sdk.orders.uuid1` and `dedup_sdk.orders.uuid6`."""

    version: int
    by_node: bool

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name(f"uuid{self.version}", by_node=self.by_node)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of a UUID of this version: its time, then its clock sequence, then (or before all) its node."""
        bits = read_uuid(dedup_id, self.version)
        if bits is None:
            return None
        clock, node = bits >> 48 & 0x3FFF, bits & _NODE
        time = self._time(bits >> 64) << 14 | clock
        return Place(node, time) if self.by_node else Place(ONLY_ORIGIN, time << 48 | node)

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many, where all are well-formed, written alike, and of one count."""
        columns = None if self.by_node else self._columns(dedup_ids)
        if columns is None:
            return None
        return [rank << 48 | node for rank, node in zip(*columns, strict=True)]

    def places(self, dedup_ids: Sequence[bytes | None], /) -> list[Place | None]:
        """Return the places of many, quickly where all are well-formed and written alike."""
        columns = self._columns(dedup_ids) if self.by_node else None
        if columns is None:
            return Order.places(self, dedup_ids)
        ranks, nodes = columns
        return list(map(Place, nodes, ranks))

    def _columns(self, dedup_ids: Sequence[bytes | None]) -> tuple[list[int], list[int]] | None:
        """Return times with their clock sequences, and nodes; None unless all are well-formed and written alike."""
        halves = read_uuids(dedup_ids, self.version)
        if halves is None:
            return None
        high, low = halves
        times, clocks = self._time(high).tolist(), (low >> 48 & 0x3FFF).tolist()
        ranks = [time << 14 | clock for time, clock in zip(times, clocks, strict=True)]
        return ranks, (low & _NODE).tolist()

    def _time(self, high: Half) -> Half:
        """The 60 bits of 100 ns each since 1582-10-15, of the first half of the bits, or of many."""
        if self.version == 1:  # section 5.1: time_low, time_mid, version, time_high
            return (high & 0xFFF) << 48 | (high >> 16 & 0xFFFF) << 32 | high >> 32  # type: ignore[return-value] # an int beside a column is taken for signed
        return high >> 16 << 12 | high & 0xFFF  # type: ignore[return-value] # section 5.6: time_high, time_mid, version, time_low
