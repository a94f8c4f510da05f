"""What a filter needs of each digest, kept beside the sorted files so that a filter of any size is made without their keys.

Layout, little-endian; a filter file (``NAME.filter``) is any number of blocks, one after the other::

    magic     4 bytes  "DFW1"
    count     uint32   n
    checksum  uint32   CRC-32 (zlib) of the count's 4 bytes and of the columns
    ranks     n x uint32   the first 4 bytes of each digest as an unsigned big-endian number, ascending
    patterns  n x uint16   the last 2 bytes of each digest as an unsigned big-endian number
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.errors import StoreCorruptError

MAGIC: Final = b"DFW1"
WORD_BYTES: Final = 6

_HEADER: Final = struct.Struct("<4sII")
_COUNT: Final = struct.Struct("<I")
_RANKS: Final = np.dtype("<u4")
_PATTERNS: Final = np.dtype("<u2")
_MOST_PER_BLOCK: Final = 2**22


@dataclass(frozen=True, slots=True)
class FilterWords:
    """``n`` digests as a filter sees them: ``ranks`` (their order) and ``patterns``, both of shape ``(n,)``."""

    ranks: NDArray[np.uint32]
    patterns: NDArray[np.uint16]

    @property
    def count(self) -> int:
        """How many digests these are."""
        return len(self.ranks)


NO_WORDS = FilterWords(np.empty(0, np.uint32), np.empty(0, np.uint16))


def filter_words(digests: bytes) -> FilterWords:
    """Return the words of ``n`` digests (``16 * n`` bytes), in their order."""
    ranks = np.frombuffer(digests, dtype=">u4")[::4]
    patterns = np.frombuffer(digests, dtype=">u2")[7::8]
    return FilterWords(ranks.astype(np.uint32), patterns.astype(np.uint16))


def encode_words(words: FilterWords) -> bytes:
    """Return the words as blocks; none give no bytes."""
    blocks = []
    for start in range(0, words.count, _MOST_PER_BLOCK):
        ranks, patterns = (
            words.ranks[start : start + _MOST_PER_BLOCK],
            words.patterns[start : start + _MOST_PER_BLOCK],
        )
        columns = (
            ranks.astype(_RANKS, copy=False).tobytes() + patterns.astype(_PATTERNS, copy=False).tobytes()
        )
        blocks += [_HEADER.pack(MAGIC, len(ranks), _checksum(len(ranks), columns)), columns]
    return b"".join(blocks)


def decode_words(data: bytes) -> list[FilterWords]:
    """Return one entry a block.

    Raises `StoreCorruptError` when the bytes are foreign, truncated or changed, or a block is out of order.
    """
    blocks, at, view = [], 0, memoryview(data)
    while at < len(data):
        if len(data) - at < _HEADER.size or data[at : at + len(MAGIC)] != MAGIC:
            raise _corrupt(at, "no block begins here")
        _, count, checksum = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        columns = view[at : at + WORD_BYTES * count]
        if len(columns) != WORD_BYTES * count or _checksum(count, columns) != checksum:
            raise _corrupt(at, "the block is truncated or its checksum differs")
        ranks = np.frombuffer(columns, dtype=_RANKS, count=count)
        if (ranks[1:] < ranks[:-1]).any():
            raise _corrupt(at, "the block is out of order")
        blocks.append(FilterWords(ranks, np.frombuffer(columns, dtype=_PATTERNS, offset=4 * count)))
        at += WORD_BYTES * count
    return blocks


def merge_words(blocks: Iterable[FilterWords]) -> FilterWords:
    """Return the words of all blocks, ascending by rank."""
    kept = list(blocks)
    if len(kept) <= 1:
        return kept[0] if kept else NO_WORDS
    ranks = np.concatenate([block.ranks for block in kept])
    patterns = np.concatenate([block.patterns for block in kept])
    if (ranks[1:] >= ranks[:-1]).all():
        # Blocks of sorted files, in their order: to see that takes a twentieth of a sort.
        return FilterWords(ranks, patterns)
    # Rank and pattern in one number: one sort of plain words instead of a sort of positions and two gathers.
    joined = np.sort((ranks.astype(np.uint64) << np.uint64(16)) | patterns)
    return FilterWords((joined >> np.uint64(16)).astype(np.uint32), joined.astype(np.uint16))


def _checksum(count: int, columns: bytes | memoryview) -> int:
    return crc32(columns, crc32(_COUNT.pack(count)))


def _corrupt(at: int, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"filter words cannot be read at byte {at}: {why}; the file is to be made again from its keys"
    )
