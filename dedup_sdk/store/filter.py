"""A Bloom filter in memory that says of most digests that they are not stored, before RocksDB is asked.

One 64-bit word a block, a few bits of it a digest ("register blocked": Putze, Sanders, Singler, "Cache-, hash- and
space-efficient Bloom filters", 2007). Where a digest lies is read from its own bytes, which are uniform:

- block: ``rank * blocks >> 32``, rank being its first 4 bytes as a big-endian number, so that ascending digests touch the
  table in order;
- bits: pattern ``p & 4095`` of a fixed table, ``p`` being its last 2 bytes as a big-endian number. Pattern ``i`` has the
  first `PATTERN_BITS` different values of ``byte & 63`` over the bytes of SHA-256 of ``dedup filter pattern i``.

A filter is made of `FilterWords`, which are kept on disk; its table is kept only while nobody has the store open (`filter_image`).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.store.filter_words import FilterWords
from dedup_sdk.store.pages import Uint64s

BITS_PER_ID: Final = 12
PATTERN_BITS: Final = 5

_BLOCK_BITS: Final = 64
_RANK_BITS: Final = np.uint64(32)
_PATTERNS: Final = 4096


def _pattern(index: int) -> int:
    positions = dict.fromkeys(byte & 63 for byte in sha256(f"dedup filter pattern {index}".encode()).digest())
    return sum(1 << position for position in list(positions)[:PATTERN_BITS])


PATTERNS: Final[Uint64s] = np.array([_pattern(index) for index in range(_PATTERNS)], dtype=np.uint64)


def table_blocks(capacity: int) -> int:
    """Return how many words the table of a filter for so many digests has."""
    return max(1, capacity * BITS_PER_ID // _BLOCK_BITS)


class Filter:
    """A filter for up to ``capacity`` digests; beyond that it stays right and answers "maybe" too often.

    ``table``: that of another filter of this capacity to which ``count`` digests were added; it is taken over, not copied.
    """

    def __init__(self, capacity: int, table: Uint64s | None = None, count: int = 0) -> None:
        self.capacity = capacity
        self.count = count
        self._blocks = np.uint64(table_blocks(capacity))
        self._table = np.zeros(table_blocks(capacity), dtype=np.uint64) if table is None else table

    @property
    def table(self) -> Uint64s:
        """Its bits, to be kept as they are."""
        return self._table

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._table.nbytes

    def add(self, words: FilterWords) -> None:
        """Add digests, ascending by rank."""
        if not words.count:
            return
        blocks = (words.ranks.astype(np.uint64) * self._blocks) >> _RANK_BITS
        starts = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
        bits = np.bitwise_or.reduceat(PATTERNS[words.patterns & (_PATTERNS - 1)], starts)
        self._table[blocks[starts].astype(np.intp)] |= bits
        self.count += words.count

    def may_contain(self, digests: bytes) -> NDArray[np.intp]:
        """Return the positions, ascending, of the digests (``16 * n`` bytes) that may have been added; never misses one."""
        ranks = np.frombuffer(digests, dtype=">u4")[::4].astype(np.uint64)
        ranks *= self._blocks
        ranks >>= _RANK_BITS
        patterns = np.frombuffer(digests, dtype=">u2")[7::8] & (_PATTERNS - 1)
        bits = PATTERNS.take(patterns)
        return np.flatnonzero((self._table.take(ranks.view(np.int64)) & bits) == bits)
