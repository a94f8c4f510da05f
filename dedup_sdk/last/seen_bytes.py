"""Bytes of what a lane remembers, little-endian throughout: what a mark of such a lane bears behind offset and timestamp.

Each ID is its length (uint32) and its bytes::

    kind    uint8    1: dense  2: sparse  3: partial
    flags   uint8    1: there is a floor (partial: more was seen than is remembered)
    zero    3 bytes
    dense   last ID, floor (uint32: how far below the last rank, only with flag 1), then the bits, lowest first, to the end
    sparse  floor (an ID, only with flag 1), IDs in ascending order, to the end
    partial last ID, IDs in the order of their coming, to the end

Nine bytes at least, so that a mark that bears it is never taken for one without (16 or 24 bytes).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from dedup_sdk.errors import StoreCorruptError

DENSE: Final = 1
SPARSE: Final = 2
PARTIAL: Final = 3

_HEAD: Final = struct.Struct("<BB3x")
_LENGTH: Final = struct.Struct("<I")
_DENSE_HEAD: Final = struct.Struct("<BB3xI")
"""The head and the length of the last ID, at once: this is written for every lane of every batch."""
_FLOOR: Final = 1


class SeenBytes(NamedTuple):
    """What the bytes say. ``last_id`` is the last of ``ids`` where the kind is sparse; ``below`` and ``bits`` are for dense ones."""

    kind: int
    last_id: bytes
    ids: list[bytes]
    has_floor: bool
    floor_id: bytes = b""
    below: int = 0
    bits: int = 0


def encode_dense(last_id: bytes, bits: int, below: int | None) -> bytes:
    """Return the bytes of a dense memory; ``below``: how far the floor lies below the last rank."""
    seen = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    if below is None:
        return _DENSE_HEAD.pack(DENSE, 0, len(last_id)) + last_id + seen
    return _DENSE_HEAD.pack(DENSE, _FLOOR, len(last_id)) + last_id + _LENGTH.pack(below) + seen


def encode_sparse(items: Sequence[bytes], floor_id: bytes | None) -> bytes:
    """Return the bytes of a sparse memory, ``items`` framed and ascending."""
    floor = b"" if floor_id is None else framed(floor_id)
    return _HEAD.pack(SPARSE, 0 if floor_id is None else _FLOOR) + floor + b"".join(items)


def encode_partial(last_id: bytes, ids: Sequence[bytes], *, forgot: bool) -> bytes:
    """Return the bytes of a partial memory, ``ids`` in the order of their coming."""
    return _HEAD.pack(PARTIAL, _FLOOR if forgot else 0) + framed(last_id) + b"".join(map(framed, ids))


def framed(id_bytes: bytes) -> bytes:
    """Return an ID with its length in front."""
    return _LENGTH.pack(len(id_bytes)) + id_bytes


def unframed(item: bytes) -> bytes:
    """Return the ID that was framed."""
    return item[_LENGTH.size :]


def decode_seen(record: bytes) -> SeenBytes:
    """Return what the bytes say; raises `StoreCorruptError` where they are no memory of a lane."""
    try:
        return _decode(record)
    except (ValueError, struct.error) as error:
        raise StoreCorruptError(
            f"{len(record)} bytes are no memory of a lane: {error}; rebuild the store from the topic or from a snapshot"
        ) from error


def _decode(record: bytes) -> SeenBytes:
    kind, flags = _HEAD.unpack_from(record)
    if kind not in (DENSE, SPARSE, PARTIAL) or flags & ~_FLOOR:
        raise ValueError(f"kind {kind}, flags {flags}")
    has_floor = bool(flags & _FLOOR)
    at = _HEAD.size
    if kind == SPARSE:
        floor_id = b""
        if has_floor:
            floor_id, at = _read_id(record, at)
        ids = _read_ids(record, at)
        return SeenBytes(kind, ids[-1], ids, has_floor, floor_id)
    last_id, at = _read_id(record, at)
    if kind == PARTIAL:
        return SeenBytes(kind, last_id, _read_ids(record, at), has_floor)
    below = 0
    if has_floor:
        (below,) = _LENGTH.unpack_from(record, at)
        at += _LENGTH.size
    bits = int.from_bytes(record[at:], "little")
    if not bits & 1:
        raise ValueError("its last ID is not among those seen")
    return SeenBytes(kind, last_id, [], has_floor, below=below, bits=bits)


def _read_id(record: bytes, at: int) -> tuple[bytes, int]:
    (size,) = _LENGTH.unpack_from(record, at)
    at += _LENGTH.size
    if at + size > len(record):
        raise ValueError(f"an ID of {size} bytes is cut off")
    return record[at : at + size], at + size


def _read_ids(record: bytes, at: int) -> list[bytes]:
    ids = []
    while at < len(record):
        id_bytes, at = _read_id(record, at)
        ids.append(id_bytes)
    if not ids:
        raise ValueError("it remembers no ID")
    return ids
