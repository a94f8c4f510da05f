"""Which partition a producer gives a key: the partitioners of Java's client and of librdkafka, over Arrow columns.

``murmur2``
    Java's default, and librdkafka's ``murmur2`` and ``murmur2_random``: MurmurHash2 of the key's bytes, its sign
    bit cleared, modulo the number of partitions. An empty key is a key.
``consistent_random``
    librdkafka's default, and its ``consistent``: CRC-32 of the key's bytes, modulo the number of partitions. An
    empty key is none.

A record without a key goes anywhere, so that nobody can say where another of its ID would go.
"""

from __future__ import annotations

from typing import Final, Literal, get_args
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dedup_sdk._marks import Int64s

Partitioner = Literal["murmur2", "consistent_random"]
PARTITIONERS: Final[tuple[Partitioner, ...]] = get_args(Partitioner)
NO_KEY: Final = -1
"""In place of a partition, where a record has no key that places it."""

_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_WORD_BYTES: Final = 4


def partitions_of(keys: pa.Array, partitioner: Partitioner, partitions: int) -> Int64s:
    """Return where each of ``n`` keys (Arrow ``binary``, null: none) goes among so many partitions.

    Shape ``(n,)``, `NO_KEY` without one.
    """
    found = np.full(len(keys), NO_KEY, np.int64)
    placed = np.asarray(keys.is_valid())
    if partitioner == "consistent_random":
        values = keys.drop_null().to_pylist()
        hashes = np.fromiter(map(crc32, values), np.int64, len(values))
        filled = np.fromiter(map(len, values), np.int64, len(values)) > 0
        placed[placed] = filled
        found[placed] = hashes[filled] % partitions
    else:
        found[placed] = (_murmur2(keys.drop_null()) & np.uint32(0x7FFFFFFF)).astype(np.int64) % partitions
    return found


def _murmur2(keys: pa.Array) -> NDArray[np.uint32]:
    """Hash keys of which none is null, those of one length together."""
    _, ends, data = keys.buffers()
    hashes = np.empty(len(keys), np.uint32)
    if not len(keys):
        return hashes
    edges = np.frombuffer(ends, np.int32)[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    lengths = np.diff(edges)
    content = np.frombuffer(b"" if data is None else data, np.uint8)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashes[rows] = _murmur2_of(content[edges[rows][:, None] + np.arange(length)])
    return hashes


def _murmur2_of(block: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Hash keys of one length, shape ``(n, length)``."""
    count, length = block.shape
    whole = length - length % _WORD_BYTES
    hashes = np.full(count, _SEED ^ np.uint32(length), np.uint32)
    for word in np.ascontiguousarray(block[:, :whole]).view("<u4").T:
        mixed = word * _FACTOR
        mixed = (mixed ^ (mixed >> np.uint32(24))) * _FACTOR
        hashes = (hashes * _FACTOR) ^ mixed
    if whole < length:
        for place, byte in enumerate(block[:, whole:].T):
            hashes = hashes ^ (byte.astype(np.uint32) << np.uint32(8 * place))
        hashes = hashes * _FACTOR
    hashes = (hashes ^ (hashes >> np.uint32(13))) * _FACTOR
    return hashes ^ (hashes >> np.uint32(15))
