"""A small filter for each extent: which generations the few digests are looked up in that the large filters let pass.

Asking RocksDB for a digest that a generation does not have costs a block of each of its files that is not merged yet, times the
generations; a filter says no for a hundredth of that. All tables lie in one array, so that digests are looked up in all of them at
once. A digest's block is found as in `filter`; its pattern is number ``h >> 20`` of `filter.PATTERNS`, where ``h = rank * 0x9E3779B1 +
pattern * 0x85EBCA77`` (rank and pattern as in `filter_words`, in 32 bits), so that what fooled a large filter does not fool these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.store.filter import PATTERNS
from dedup_sdk.store.filter_words import FilterWords, filter_words
from dedup_sdk.store.words import Uint64s

BITS_PER_ID: Final = 8

_BLOCK_BITS: Final = 64
_RANK_BITS: Final = np.uint64(32)
_RANK_FACTOR: Final = np.uint32(0x9E3779B1)
_PATTERN_FACTOR: Final = np.uint32(0x85EBCA77)
_PATTERN_SHIFT: Final = np.uint32(20)
_MOST_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of a generation's file of filter words: whole blocks, ``marks`` digests in all."""

    generation: int
    start: int
    size: int
    marks: int


def extent_blocks(marks: int) -> int:
    """Return how many words the table of an extent with so many digests has."""
    return max(1, marks * BITS_PER_ID // _BLOCK_BITS)


class ExtentFilters:
    """The filters of a partition's extents.

    ``extents``, ``table``: those of other filters, whose tables lie one after the other in it; it is taken over, not copied.
    """

    def __init__(self, extents: Sequence[Extent] = (), table: Uint64s | None = None) -> None:
        self._extents = list(extents)
        self._table = np.empty(0, np.uint64) if table is None else table
        self._place()

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        return self._table.nbytes

    @property
    def extents(self) -> list[Extent]:
        """Those that have a filter."""
        return list(self._extents)

    def table(self, extents: Sequence[Extent]) -> Uint64s:
        """Return the bits of some of them, one after the other, to be kept as they are."""
        parts = [self._part(self._extents.index(extent)) for extent in extents]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def add(self, extent: Extent, blocks: Sequence[FilterWords]) -> None:
        """Make a filter of an extent's words, ascending in each block."""
        table = np.zeros(extent_blocks(extent.marks), np.uint64)
        for words in blocks:
            if not len(words.ranks):
                # Of a generation whose keys are all gone, or never came: what there is of it is a filter that lets nothing pass.
                continue
            places = (words.ranks.astype(np.uint64) * np.uint64(len(table))) >> _RANK_BITS
            starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
            table[places[starts].astype(np.intp)] |= np.bitwise_or.reduceat(_bits(words), starts)
        self._table = np.concatenate((self._table, table))
        self._extents.append(extent)
        self._place()

    def keep(self, wanted: Callable[[Extent], bool]) -> None:
        """Forget the other extents."""
        kept = [extent for extent in self._extents if wanted(extent)]
        if len(kept) < len(self._extents):
            self._table = self.table(kept)
            self._extents = kept
            self._place()

    def by_generation(self, digests: bytes, positions: NDArray[np.intp]) -> list[tuple[int, list[int]]]:
        """Return which of the digests (``16 * n`` bytes) at ``positions`` each generation may have, the newest first.

        Positions ascend; a generation that has none of them is left out, and none is missed.
        """
        words = filter_words(np.frombuffer(digests, "V16")[positions].tobytes())
        found: dict[int, set[int]] = {}
        for start in range(0, len(positions), _MOST_AT_ONCE):
            end = start + _MOST_AT_ONCE
            places = words.ranks[start:end].astype(np.uint64) * self._blocks
            places >>= _RANK_BITS
            places += self._starts
            bits = _bits(FilterWords(words.ranks[start:end], words.patterns[start:end]))
            rows, columns = np.nonzero((self._table.take(places.view(np.int64)) & bits) == bits)
            for row, position in zip(rows.tolist(), positions[start + columns].tolist(), strict=True):
                found.setdefault(self._extents[row].generation, set()).add(position)
        return [(generation, sorted(found[generation])) for generation in sorted(found, reverse=True)]

    def _part(self, index: int) -> Uint64s:
        start = int(self._starts[index, 0])
        return self._table[start : start + int(self._blocks[index, 0])]

    def _place(self) -> None:
        """Note where each table lies: columns of shape ``(extents, 1)``."""
        blocks = np.array([extent_blocks(extent.marks) for extent in self._extents], np.uint64)
        self._blocks = blocks[:, None]
        self._starts = (np.cumsum(blocks, dtype=np.uint64) - blocks)[:, None]


def _bits(words: FilterWords) -> Uint64s:
    mixed = words.ranks * _RANK_FACTOR + words.patterns.astype(np.uint32) * _PATTERN_FACTOR
    bits: Uint64s = PATTERNS.take(mixed >> _PATTERN_SHIFT)
    return bits
