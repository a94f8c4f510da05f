"""The bytes of a source's memory, little-endian throughout: the payload of its mark, behind offset and timestamp.

Each ID is *framed*: its length (uint32) and its bytes::

    kind    uint8    1: dense  2: sparse  3: partial
    flags   uint8    1: something was forgotten
    zero    uint16
    known   uint32   2^32 - 1: all is known
    dense   depth (uint32), last ID, then the bits, lowest first, to the end
    sparse  IDs in ascending order, to the end
    partial last ID, IDs in the order of their coming, to the end

Twelve bytes at least: a store takes a shorter payload for damage (`dedup_sdk._store.pages`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from dedup_sdk.errors import StoreCorruptError

DENSE: Final = 1
SPARSE: Final = 2
PARTIAL: Final = 3

_HEAD: Final = struct.Struct("<BBHI")
_LENGTH: Final = struct.Struct("<I")
_DENSE_HEAD: Final = struct.Struct("<BBHIII")
"""The head, the depth and the length of the last ID, at once: this is written for every source of every batch."""
_FORGOT: Final = 1
_ALL_KNOWN: Final = 2**32 - 1


class SeenBytes(NamedTuple):
    """The decoded bytes.

    ``last_id`` is the last of ``ids`` where the kind is sparse; ``bits`` and ``depth`` are those of a dense memory.
    """

    kind: int
    last_id: bytes
    ids: list[bytes]
    known: int | None
    forgot: bool
    bits: int = 0
    depth: int = 0


# Without keywords: it is called for every source of every batch.
def encode_dense(last_id: bytes, bits: int, depth: int, known: int | None, forgot: bool) -> bytes:  # noqa: FBT001
    """Return the bytes of a dense memory."""
    return (
        _DENSE_HEAD.pack(DENSE, forgot, 0, _ALL_KNOWN if known is None else known, depth, len(last_id))
        + last_id
        + bits.to_bytes((bits.bit_length() + 7) // 8, "little")
    )


def encode_sparse(items: Sequence[bytes], *, known: int | None, forgot: bool) -> bytes:
    """Return the bytes of a sparse memory, ``items`` framed and ascending."""
    return _head(SPARSE, known, forgot=forgot) + b"".join(items)


def encode_partial(last_id: bytes, ids: Sequence[bytes], *, known: int | None, forgot: bool) -> bytes:
    """Return the bytes of a partial memory, ``ids`` in the order of their coming."""
    return _head(PARTIAL, known, forgot=forgot) + framed(last_id) + b"".join(map(framed, ids))


def _head(kind: int, known: int | None, *, forgot: bool) -> bytes:
    return _HEAD.pack(kind, forgot, 0, _ALL_KNOWN if known is None else known)


def framed(id_bytes: bytes) -> bytes:
    """Return an ID with its length in front."""
    return _LENGTH.pack(len(id_bytes)) + id_bytes


def unframed(item: bytes) -> bytes:
    """Return the ID that was framed."""
    return item[_LENGTH.size :]


def decode_seen(record: bytes) -> SeenBytes:
    """Decode the bytes; raises `StoreCorruptError` where they are no memory of a source."""
    try:
        return _decode(record)
    except (ValueError, struct.error) as error:
        raise StoreCorruptError(
            f"{len(record)} bytes are no memory of a source: {error}; "
            "rebuild the store from the topic or from a snapshot"
        ) from error


def _decode(record: bytes) -> SeenBytes:
    kind, flags, zero, count = _HEAD.unpack_from(record)
    if kind not in (DENSE, SPARSE, PARTIAL) or flags & ~_FORGOT or zero:
        raise ValueError(f"kind {kind}, flags {flags}")
    known, forgot = None if count == _ALL_KNOWN else count, bool(flags & _FORGOT)
    if kind == SPARSE:
        ids = _read_ids(record, _HEAD.size)
        return SeenBytes(kind, ids[-1], ids, known, forgot)
    if kind == PARTIAL:
        last_id, at = _read_id(record, _HEAD.size)
        return SeenBytes(kind, last_id, _read_ids(record, at), known, forgot)
    (depth,) = _LENGTH.unpack_from(record, _HEAD.size)
    last_id, at = _read_id(record, _HEAD.size + _LENGTH.size)
    bits = int.from_bytes(record[at:], "little")
    if not bits & 1:
        raise ValueError("its last ID is not among those seen")
    return SeenBytes(kind, last_id, [], known, forgot, bits, depth)


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
