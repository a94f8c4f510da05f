"""A small filter for each extent, and its index of pages: where the few digests are looked up that the large filters let pass.

Asking RocksDB for the page of an extent that does not have a digest costs a block, times the extents; a filter says no for a hundredth of that.
In an extent that may have it the index says which page: the last whose rank is not above the digest's. All tables lie in one array, so that digests are looked up in all of them at
once. A digest's block is found as in `filter`; its pattern is number ``h >> 20`` of `filter.PATTERNS`, where ``h = rank * 0x9E3779B1 +
pattern * 0x85EBCA77`` (rank and pattern as in `filter_words`, in 32 bits), so that what fooled a large filter does not fool these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.store.filter import PATTERNS
from dedup_sdk.store.filter_words import FilterWords, filter_words
from dedup_sdk.store.pages import Uint64s

BITS_PER_ID: Final = 8

_BLOCK_BITS: Final = 64
_RANK_BITS: Final = np.uint64(32)
_RANK_MASK: Final = np.uint64(2**32 - 1)
_RANK_FACTOR: Final = np.uint32(0x9E3779B1)
_PATTERN_FACTOR: Final = np.uint32(0x85EBCA77)
_PATTERN_SHIFT: Final = np.uint32(20)
_MOST_AT_ONCE: Final = 4096


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of a generation's file of filter words: whole blocks, ``marks`` digests in all, in so many ``pages``.

    ``number`` counts the extents of a generation; the higher one is the younger.
    """

    generation: int
    start: int
    size: int
    marks: int
    number: int = 0
    pages: int = 0


class Asked(NamedTuple):
    """The digests that a generation may have, by their positions, and beside each the key of the page that it would be in.

    A position comes once for each extent that may have it, the youngest extent last.
    """

    generation: int
    positions: list[int]
    keys: list[bytes]


def extent_blocks(marks: int) -> int:
    """Return how many words the table of an extent with so many digests has."""
    return max(1, marks * BITS_PER_ID // _BLOCK_BITS)


class ExtentFilters:
    """The filters of a partition's extents.

    ``extents``, ``table``, ``pages``: those of other filters, whose tables, and ranks of pages, lie one after the other in them; they are taken
    over, not copied.
    """

    def __init__(
        self, extents: Sequence[Extent] = (), table: Uint64s | None = None, pages: Uint64s | None = None
    ) -> None:
        self._extents = list(extents)
        self._table = np.empty(0, np.uint64) if table is None else table
        ranks = np.empty(0, np.uint64) if pages is None else pages
        self._pages = np.split(ranks, np.cumsum([extent.pages for extent in extents])[:-1]) if extents else []
        self._place()

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        pages: int = self._index.nbytes + sum(each.nbytes for each in self._pages)
        return self._table.nbytes + pages

    @property
    def extents(self) -> list[Extent]:
        """Those that have a filter."""
        return list(self._extents)

    def table(self, extents: Sequence[Extent]) -> Uint64s:
        """Return the bits of some of them, one after the other, to be kept as they are."""
        parts = [self._part(self._extents.index(extent)) for extent in extents]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def pages(self, extents: Sequence[Extent]) -> Uint64s:
        """Return the ranks of the pages of some of them, one after the other."""
        parts = [self._pages[self._extents.index(extent)] for extent in extents]
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
        self._pages.append(np.concatenate([words.pages for words in blocks]).astype(np.uint64))
        self._place()

    def keep(self, wanted: Callable[[Extent], bool]) -> None:
        """Forget the other extents."""
        kept = [extent for extent in self._extents if wanted(extent)]
        if len(kept) < len(self._extents):
            self._table = self.table(kept)
            self._pages = [
                pages for extent, pages in zip(self._extents, self._pages, strict=True) if wanted(extent)
            ]
            self._extents = kept
            self._place()

    def by_generation(self, digests: bytes, positions: NDArray[np.intp]) -> list[Asked]:
        """Return which of the digests (``16 * n`` bytes) at ``positions`` each generation may have.

        Positions ascend; a generation that has none of them is left out, and none is missed.
        """
        words = filter_words(np.frombuffer(digests, "V16")[positions].tobytes())
        ranks = words.ranks.astype(np.uint64)
        found: dict[int, Asked] = {}
        for start in range(0, len(positions), _MOST_AT_ONCE):
            end = start + _MOST_AT_ONCE
            places = ranks[start:end] * self._blocks
            places >>= _RANK_BITS
            places += self._starts
            bits = _bits(FilterWords(words.ranks[start:end], words.patterns[start:end]))
            rows, columns = np.nonzero((self._table.take(places.view(np.int64)) & bits) == bits)
            if not rows.size:
                continue
            columns += start
            keys = self._keys(rows, ranks[columns])
            of = self._generations[rows].tolist()
            for generation, position, key in zip(of, positions[columns].tolist(), keys, strict=True):
                if generation not in found:
                    found[generation] = Asked(generation, [], [])
                asked = found[generation]
                asked.positions.append(position)
                asked.keys.append(key)
        return list(found.values())

    def _keys(self, rows: NDArray[np.intp], ranks: Uint64s) -> list[bytes]:
        """Return the keys of the pages in which digests of these ranks are, each in the extent of its row."""
        wanted = (rows.astype(np.uint64) << _RANK_BITS) | ranks
        # Of a digest before the first page it is another page, which does not have it either.
        places = self._index.searchsorted(wanted, "right") - 1
        pages = self._index[places] & _RANK_MASK if len(self._index) else np.zeros_like(wanted)
        keys: list[bytes] = (self._numbers[rows] | pages).astype(">u8").view("V8").tolist()
        return keys

    def _part(self, index: int) -> Uint64s:
        start = int(self._starts[index, 0])
        return self._table[start : start + int(self._blocks[index, 0])]

    def _place(self) -> None:
        """Note where each table lies, in columns of shape ``(extents, 1)``, and where each page is."""
        blocks = np.array([extent_blocks(extent.marks) for extent in self._extents], np.uint64)
        self._blocks = blocks[:, None]
        self._starts = (np.cumsum(blocks, dtype=np.uint64) - blocks)[:, None]
        self._generations = np.array([extent.generation for extent in self._extents], np.int64)
        self._numbers = np.array([extent.number for extent in self._extents], np.uint64) << _RANK_BITS
        # Pages of all extents, ascending, so that one search is enough for all that are asked for.
        rows = np.repeat(
            np.arange(len(self._extents), dtype=np.uint64), [len(pages) for pages in self._pages]
        )
        self._index = (rows << _RANK_BITS) | np.concatenate([*self._pages, np.empty(0, np.uint64)])


def _bits(words: FilterWords) -> Uint64s:
    mixed = words.ranks * _RANK_FACTOR + words.patterns.astype(np.uint32) * _PATTERN_FACTOR
    bits: Uint64s = PATTERNS.take(mixed >> _PATTERN_SHIFT)
    return bits
