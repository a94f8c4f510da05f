"""The filters of one partition: they answer for most unknown digests that they are not stored, without asking RocksDB.

They are built from the filter words that each generation keeps on disk. There are two kinds:

- `Filter`: few and large, over all generations. Words can be read again at any time, so a full filter is
  replaced by one of twice the size without reading a key. A filter with `MAX_PER_FILTER` digests is left as
  it is, and another one begins.
- `ExtentFilters`: one small filter, and a page index, per extent. They select the pages to read for the few
  digests that pass the large filters.

**Large filters.** A `Filter` is a Bloom filter whose bits of one digest lie in one 64-bit word, the *block*
("register blocked": Putze, Sanders, Singler, "Cache-, hash- and space-efficient Bloom filters", 2007).
Block and bits come from the digest's own bytes, which are uniform:

- block: ``rank * blocks >> 32``, where rank is its first 4 bytes as a big-endian number, so that ascending
  digests access the table in order;
- bits: pattern ``p & 4095`` of a fixed table, where ``p`` is its last 2 bytes as a big-endian number.
  Pattern ``i`` has the first `PATTERN_BITS` different values of ``byte & 63`` over the bytes of SHA-256 of
  ``dedup filter pattern i``.

One gather over a thousand digests rejects nearly all new IDs, at some 0.05 µs of CPU per ID.

**Extent filters.** Asking RocksDB for a page of an extent without the digest costs one block read per
extent; a small filter rejects it for a hundredth of that. The index then selects the page: the last one
whose rank is not above the digest's. All tables lie in one array, so that one operation looks digests up in
all of them. The block is found as in `Filter`. The pattern is number ``h >> 20`` of `PATTERNS`, where
``h = rank * 0x9E3779B1 + pattern * 0x85EBCA77`` (rank and pattern as in the words, in 32 bits), so that false
positives of both kinds are independent.

**Image.** While the partition is closed, the filters are stored on disk as they are in memory. Reading this
image takes a tenth of the time of building them from words. It is used only if it is complete and belongs
to exactly the marks that the store has. Layout, little-endian; the file ``filters/image``::

    magic     4 bytes  "DFI3"
    checksum  uint32   CRC-32 (zlib) of everything after it
    length    uint32   of the heading, at most 16 MiB
    heading   JSON     {"content": SHA-256 of `StoreState.content`, hex,
                        "segments": [{"capacity": ..., "count": ..., "extents": [{...}]}]}
    tables    uint64s  of each segment: its table, ``table_blocks(capacity)`` words; then the tables of its extents,
                       each of ``extent_blocks(marks)`` words; then the ranks of their pages, a word each
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from hashlib import sha256
from itertools import compress, groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk._store.filter_words import FilterWords, decode_words, encode_words, iter_words
from dedup_sdk._store.identity import Fields
from dedup_sdk._store.pages import Uint64s
from dedup_sdk.errors import StoreCorruptError

BITS_PER_ID: Final = 12
BITS_PER_ID_AND_EXTENT: Final = 8
PATTERN_BITS: Final = 5

_BLOCK_BITS: Final = 64
_PATTERNS: Final = 4096
_WORDS: Final = struct.Struct(">I10xH")
_FIRST: Final = np.zeros(1, np.intp)
_NONE: Final = np.empty(0, np.intp)
_NO_RANKS: Final = np.empty(0, np.uint64)
_RANK_BITS: Final = np.uint64(32)
_RANK_FACTOR: Final = np.uint32(0x9E3779B1)
_PATTERN_FACTOR: Final = np.uint32(0x85EBCA77)
_PATTERN_SHIFT: Final = np.uint32(20)
_PATTERN_MASK: Final = np.uint32(2**16 - 1)
_RANKS: Final = np.dtype(">u4")
_DIGEST: Final = np.dtype(f"V{DIGEST_BYTES}")
_BATCH_DIGESTS: Final = 4096
_MOVED_AT_ONCE: Final = 2**16


def _pattern(index: int) -> int:
    positions = dict.fromkeys(byte & 63 for byte in sha256(f"dedup filter pattern {index}".encode()).digest())
    return sum(1 << position for position in list(positions)[:PATTERN_BITS])


PATTERNS: Final[Uint64s] = np.array([_pattern(index) for index in range(_PATTERNS)], dtype=np.uint64)


def table_blocks(capacity: int) -> int:
    """Return the number of 64-bit words in the table of a filter for ``capacity`` digests."""
    return max(1, capacity * BITS_PER_ID // _BLOCK_BITS)


class Filter:
    """A filter for up to ``capacity`` digests; above that it stays correct, with more false positives.

    ``table``: that of another filter of this capacity with ``count`` digests; it is used directly, not
    copied.
    """

    def __init__(self, capacity: int, table: Uint64s | None = None, count: int = 0) -> None:
        self.capacity = capacity
        self.count = count
        self._blocks = np.uint64(table_blocks(capacity))
        self._table = np.zeros(table_blocks(capacity), dtype=np.uint64) if table is None else table

    @property
    def table(self) -> Uint64s:
        """The bits."""
        return self._table

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._table.nbytes

    def add(self, words: FilterWords) -> None:
        """Add digests, ascending by rank."""
        if not words.count:
            return
        blocks = (words.ranks.astype(np.uint64) * self._blocks) >> _RANK_BITS
        # Digests of one block are joined first: of equal indexes, numpy's `|=` carries out only the last.
        starts = np.flatnonzero(np.concatenate(([True], blocks[1:] != blocks[:-1])))
        bits = np.bitwise_or.reduceat(PATTERNS[words.patterns & (_PATTERNS - 1)], starts)
        self._table[blocks[starts].astype(np.intp)] |= bits
        self.count += words.count

    def may_contain(self, digests: bytes) -> NDArray[np.intp]:
        """Return the positions, ascending, of the digests (``16 * n`` bytes) that may be in it; no false negatives."""
        if len(digests) == DIGEST_BYTES:
            # One digest at a time, as with poll(): numpy calls would cost ten times as much.
            rank, pattern = _WORDS.unpack(digests)
            wanted = PATTERNS.item(pattern & (_PATTERNS - 1))
            block = self._table.item(rank * len(self._table) >> 32)
            return _FIRST if block & wanted == wanted else _NONE
        ranks = np.frombuffer(digests, _RANKS)[::4].astype(np.uint64)
        ranks *= self._blocks
        ranks >>= _RANK_BITS
        patterns = np.frombuffer(digests, ">u2")[7::8] & (_PATTERNS - 1)
        bits = PATTERNS.take(patterns)
        passed: NDArray[np.intp] = ((self._table.take(ranks.view(np.int64)) & bits) == bits).nonzero()[0]
        return passed


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of a generation's file of filter words: whole blocks, ``marks`` digests in all, on ``pages`` pages.

    ``number`` counts the extents of a generation; a higher one is younger.
    """

    generation: int
    start: int
    size: int
    marks: int
    number: int = 0
    pages: int = 0


class Candidates(NamedTuple):
    """The digests that one generation may have: positions, digests, and the key of the page to read for each.

    Keys ascend. A position occurs once per extent that may have it, the youngest extent last. A generation
    may come in several parts, the youngest first.
    """

    generation: int
    positions: list[int]
    digests: list[bytes]
    keys: list[bytes]


def extent_blocks(marks: int) -> int:
    """Return the number of 64-bit words in the table of an extent with ``marks`` digests."""
    return max(1, marks * BITS_PER_ID_AND_EXTENT // _BLOCK_BITS)


def fill_extent(table: Uint64s, words: FilterWords) -> None:
    """Add words, ascending, to the filter of an extent; without words it rejects everything."""
    if not len(words.ranks):
        return
    places = (words.ranks.astype(np.uint64) * np.uint64(len(table))) >> _RANK_BITS
    # Joined first, as in `Filter.add`.
    starts = np.flatnonzero(np.concatenate(([True], places[1:] != places[:-1])))
    bits = _bits(words.ranks, words.patterns.astype(np.uint32))
    table[places[starts].astype(np.intp)] |= np.bitwise_or.reduceat(bits, starts)


class ExtentWords:
    """The words of one extent: ``blocks``, each ascending, and ``encoded``, each block as it is stored."""

    def __init__(self, blocks: Iterable[FilterWords] = ()) -> None:
        self.blocks: list[FilterWords] = []
        self.encoded: list[bytes] = []
        self.count = self.pages = self.size = 0
        self._table = _NO_RANKS
        for block in blocks:
            self.add(block)

    def add(self, block: FilterWords) -> None:
        """Add the next block."""
        self.blocks.append(block)
        self.count += block.count
        self.pages += len(block.pages)
        self.encoded.append(encode_words(block))
        self.size += len(self.encoded[-1])

    def forget_encoded(self) -> None:
        """Forget the encoded blocks: they are written."""
        self.encoded.clear()

    def filter_steps(self) -> Iterator[None]:
        """Build the filter, when all blocks are there; each step takes a few milliseconds."""
        table = np.zeros(extent_blocks(self.count), np.uint64)
        for block in self.blocks:
            yield
            fill_extent(table, block)
        self._table = table

    @property
    def table(self) -> Uint64s:
        """The filter."""
        if not len(self._table):
            for _ in self.filter_steps():
                pass
        return self._table


_generation, _pages = attrgetter("generation"), attrgetter("pages")


def _blocks(extent: Extent) -> int:
    return extent_blocks(extent.marks)


class _GrowingArray:
    """An array, shape ``(n,)``, that grows and shrinks in place: a copy of many megabytes would take too long."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._room, self._count = values, len(values)
        self._larger, self._copied = values[:0], 0
        """A larger array that has the first ``_copied`` values."""

    @property
    def values(self) -> NDArray[Any]:
        """What it has now: a view, valid until the next `extend` or `keep`."""
        return self._room[: self._count]

    def make_room(self, more: int) -> Iterator[None]:
        """Prepare `extend` by so many values; each step copies a few of those that are there.

        Between the steps anything may be called here.
        """
        while (end := self._count + more) > len(self._room):
            if end > len(self._larger):
                self._larger, self._copied = np.empty(max(end, self._count * 3 // 2), self._room.dtype), 0
            if self._copied == self._count:
                break
            some = slice(self._copied, min(self._count, self._copied + _MOVED_AT_ONCE))
            self._larger[some] = self._room[some]
            self._copied = some.stop
            yield

    def extend(self, more: NDArray[Any]) -> None:
        """Add values at the end."""
        end = self._count + len(more)
        if end > len(self._room):
            for _ in self.make_room(len(more)):
                pass
            self._room = self._larger
            self._larger, self._copied = self._larger[:0].copy(), 0
        self._room[self._count : end] = more
        self._count = end

    def keep(self, parts: Iterable[slice]) -> None:
        """Remove all other values; ``parts`` ascend."""
        # The values move: a larger array that was begun has others, and is filled anew.
        self._copied = to = 0
        for part in parts:
            start = part.start
            # A move that overlaps itself would make a copy.
            at_once = max(start - to, _MOVED_AT_ONCE)
            while start < part.stop and start != to:
                count = min(at_once, part.stop - start)
                self._room[to : to + count] = self._room[start : start + count]
                start, to = start + count, to + count
            to += part.stop - start
        self._count = to


class ExtentFilters:
    """The filters of a partition's extents.

    ``extents``, ``table``, ``pages``: those of other filters. Tables, and ranks of pages, are concatenated
    in the order of the extents; the tables are used directly, not copied.
    """

    def __init__(
        self, extents: Sequence[Extent] = (), table: Uint64s | None = None, pages: Uint64s | None = None
    ) -> None:
        self._extents = list(extents)
        # Row numbers ascend, and stay when other extents go.
        self._row_numbers = list(range(len(self._extents)))
        index, keys = _page_columns(self._extents, _NO_RANKS if pages is None else pages)
        self._tables = _GrowingArray(_NO_RANKS if table is None else table)
        self._indexes, self._page_keys = _GrowingArray(index), _GrowingArray(keys)
        self._update_positions()

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._table.nbytes + self._index.nbytes + self._keys.nbytes

    def table(self, extents: Sequence[Extent]) -> Uint64s:
        """Return the concatenated bits of some extents, in the order of this object's extents."""
        parts = self._parts({*extents}.__contains__, _blocks)
        return np.concatenate([self._table[part] for part in parts]) if parts else self._table[:0]

    def pages(self, extents: Sequence[Extent]) -> Uint64s:
        """Return the concatenated page ranks of some extents, in the order of this object's extents."""
        ranks = self._keys.view(_RANKS)[1::2].astype(np.uint64)
        parts = self._parts({*extents}.__contains__, _pages)
        return np.concatenate([ranks[part] for part in parts]) if parts else ranks[:0]

    def make_room(self, words: ExtentWords) -> Iterator[None]:
        """Prepare `add`; each step takes a few milliseconds."""
        yield from self._tables.make_room(extent_blocks(words.count))
        yield from self._indexes.make_room(words.pages)
        yield from self._page_keys.make_room(words.pages)

    def add(self, extent: Extent, words: ExtentWords) -> None:
        """Add the filter of an extent."""
        pages = np.concatenate([_NO_RANKS, *(block.pages for block in words.blocks)])
        row = self._row_numbers[-1] + 1 if self._row_numbers else 0
        index, keys = _page_columns([extent], pages, row)
        self._indexes.extend(index)
        self._page_keys.extend(keys)
        self._tables.extend(words.table)
        self._extents.append(extent)
        self._row_numbers.append(row)
        self._update_positions()

    def retain(self, wanted: Callable[[Extent], bool]) -> None:
        """Remove all other extents."""
        kept = list(map(wanted, self._extents))
        if not all(kept):
            pages = self._parts(wanted, _pages)
            self._indexes.keep(pages)
            self._page_keys.keep(pages)
            self._tables.keep(self._parts(wanted, _blocks))
            self._row_numbers = list(compress(self._row_numbers, kept))
            self._extents = list(compress(self._extents, kept))
            self._update_positions()

    def by_generation(self, digests: bytes, positions: NDArray[np.intp]) -> list[Candidates]:
        """Return the digests (``16 * n`` bytes) at ``positions`` that each generation may have; no false negatives.

        ``positions`` ascend. Generations that have none of them are left out.
        """
        wanted = np.frombuffer(digests, _DIGEST)[positions]
        words = wanted.view(_RANKS).astype(np.uint32).reshape(-1, DIGEST_BYTES // _RANKS.itemsize)
        found: list[Candidates] = []
        # In parts: each operation makes a table of all extents by so many digests.
        for start in range(0, len(words), _BATCH_DIGESTS):
            some = words[start : start + _BATCH_DIGESTS]
            bits = _bits(some[:, 0], some[:, -1] & _PATTERN_MASK)
            ranks = some[:, 0].astype(np.uint64)
            places = ranks * self._blocks
            places >>= _RANK_BITS
            places += self._starts
            rows, columns = ((self._table.take(places.view(np.int64)) & bits) == bits).nonzero()
            if not rows.size:
                continue
            # The last page that does not begin above the digest.
            pages = self._index.searchsorted(self._rows[rows] | ranks[columns], "right") - 1
            # RocksDB finds ascending keys in half the time.
            order = pages.argsort()
            columns = columns[order] + start
            keys, asked = self._keys[pages[order]].tolist(), positions[columns].tolist()
            candidates = wanted[columns].tolist()
            # Rows of one generation are adjacent.
            edges = [0, *rows.searchsorted(self._edges).tolist(), len(asked)]
            for generation, (first, last) in zip(self._generations, pairwise(edges), strict=True):
                if first < last:
                    found.append(
                        Candidates(generation, asked[first:last], candidates[first:last], keys[first:last])
                    )
        # The youngest first, also among the parts of one generation, which nobody sorts later.
        return found[::-1]

    def _parts(self, wanted: Callable[[Extent], bool], size_of: Callable[[Extent], int]) -> list[slice]:
        """Return where the wanted extents have their parts in a column, adjacent ones as one slice.

        ``size_of`` returns the length of an extent's part.
        """
        parts, end = list[slice](), 0
        for extent in self._extents:
            start, end = end, end + size_of(extent)
            if wanted(extent):
                joins = parts and parts[-1].stop == start
                parts.append(slice(parts.pop().start if joins else start, end))
        return parts

    def _update_positions(self) -> None:
        """Update the columns, the offset of each table (shape ``(extents, 1)``), and the rows of each generation."""
        self._table, self._index, self._keys = (
            self._tables.values,
            self._indexes.values,
            self._page_keys.values,
        )
        blocks = np.array([extent_blocks(extent.marks) for extent in self._extents], np.uint64)
        self._blocks = blocks[:, None]
        self._starts = (np.cumsum(blocks, dtype=np.uint64) - blocks)[:, None]
        self._rows = np.array(self._row_numbers, np.uint64) << _RANK_BITS
        runs = [(number, len(list(run))) for number, run in groupby(map(_generation, self._extents))]
        self._generations = [number for number, _ in runs]
        self._edges = np.cumsum([rows for _, rows in runs][:-1], dtype=np.int64)


def _page_columns(
    extents: Sequence[Extent], ranks: Uint64s, first: int = 0
) -> tuple[Uint64s, NDArray[np.void]]:
    """Return the page index of extents, whose rows are numbered from ``first``, and the keys of the pages.

    An index entry combines row and rank of a page in one number. Entries ascend, so that one search serves
    all digests.
    """
    counts = np.array([extent.pages for extent in extents], np.int64)
    numbers = np.array([extent.number for extent in extents], np.uint64) << _RANK_BITS
    keys = (np.repeat(numbers, counts) | ranks).astype(">u8").view("V8")
    rows = np.arange(first, first + len(extents), dtype=np.uint64) << _RANK_BITS
    index = np.repeat(rows, counts) | ranks
    # Digests below the first page are not stored; let the search select the first page, which says so.
    some = counts > 0
    index[(np.cumsum(counts) - counts)[some]] = rows[some]
    return index, keys


def _bits(ranks: NDArray[np.uint32], patterns: NDArray[np.uint32]) -> Uint64s:
    bits: Uint64s = PATTERNS.take((ranks * _RANK_FACTOR + patterns * _PATTERN_FACTOR) >> _PATTERN_SHIFT)
    return bits


IMAGE: Final = "image"

_MAGIC: Final = b"DFI3"
_HEAD: Final = struct.Struct("<4sII")
_MAX_HEADING_BYTES: Final = 2**24
_WORD_BYTES: Final = 8
_REMEDY: Final = "it is rebuilt"


@dataclass(frozen=True, slots=True)
class SegmentImage:
    """The image of one filter.

    ``capacity`` and ``count`` are in digests; ``extents`` locate the words it was built from; then its
    table, the tables of the extents, and the ranks of their pages.
    """

    capacity: int
    count: int
    extents: tuple[Extent, ...]
    table: Uint64s
    extent_table: Uint64s
    pages: Uint64s


def write_image(path: Path, content: bytes, segments: Sequence[SegmentImage]) -> None:
    """Write the filters of a state with this content, complete or not at all; raises OSError."""
    heading = json.dumps(
        {
            "content": sha256(content).hexdigest(),
            "segments": [
                {
                    "capacity": each.capacity,
                    "count": each.count,
                    "extents": [asdict(extent) for extent in each.extents],
                }
                for each in segments
            ],
        }
    ).encode()
    tables = [
        table.astype("<u8", copy=False)
        for each in segments
        for table in (each.table, each.extent_table, each.pages)
    ]
    checksum = crc32(heading, crc32(struct.pack("<I", len(heading))))
    for table in tables:
        checksum = crc32(table.data, checksum)
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            file.write(_HEAD.pack(_MAGIC, checksum, len(heading)))
            file.write(heading)
            for table in tables:
                file.write(table.data)
        # No fsync: an image damaged by a power cut fails its check and is rebuilt.
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def read_image(path: Path, content: bytes) -> list[SegmentImage]:
    """Return the filters that were written for exactly this content.

    Raises FileNotFoundError when there is no image, `StoreCorruptError` when it belongs to another one or
    fails a check, and OSError when it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise _corrupt_image(path, "is not a filter image of this version")
        _, checksum, length = _HEAD.unpack(head)
        # Before the checksum is known to be right: a damaged length must not make us read gigabytes.
        if length > min(_MAX_HEADING_BYTES, size):
            raise _corrupt_image(path, "is truncated")
        heading = file.read(length)
        words = np.fromfile(file, dtype="<u8")
    if crc32(words.data, crc32(heading, crc32(struct.pack("<I", length)))) != checksum:
        raise _corrupt_image(path, "has a wrong checksum")
    read = Fields(
        f"filter image {path} cannot be read",
        "",
        json.loads(heading),
        error=StoreCorruptError,
        remedy=_REMEDY,
    )
    if read.text("content") != sha256(content).hexdigest():
        raise _corrupt_image(path, "belongs to other marks than the store has")
    segments, at = [], 0
    for entry in read.objects("segments"):
        capacity, count = entry.integer("capacity", least=1), entry.integer("count", least=0)
        extents = tuple(map(_extent, entry.objects("extents")))
        middle = at + table_blocks(capacity)
        pages_at = middle + sum(extent_blocks(extent.marks) for extent in extents)
        end = pages_at + sum(extent.pages for extent in extents)
        segments.append(
            SegmentImage(
                capacity, count, extents, words[at:middle], words[middle:pages_at], words[pages_at:end]
            )
        )
        at = end
    if size != _HEAD.size + length + _WORD_BYTES * at:
        raise _corrupt_image(path, f"has {size} bytes, which contradicts its heading")
    return segments


def _extent(read: Fields) -> Extent:
    return Extent(*(read.integer(entry.name, least=0) for entry in fields(Extent)))


def _corrupt_image(path: Path, why: str) -> StoreCorruptError:
    return StoreCorruptError(f"filter image {path} {why}; {_REMEDY}")


MAX_PER_FILTER: Final = 2**26
MIN_PER_FILTER: Final = 2**16
_ADDED_AT_ONCE: Final = 2**16
"""Digests that are added to a filter in one step."""


@dataclass(slots=True)
class _Segment:
    filter: Filter
    extents: list[Extent] = field(default_factory=list)

    @property
    def marks(self) -> int:
        return sum(extent.marks for extent in self.extents)


def write_words(path: Path, start: int, blocks: Sequence[bytes]) -> int:
    """Write encoded words at byte ``start`` of a file, truncate the rest, return the new end."""
    # Bytes after ``start`` are left over from an interrupted flush.
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(start)
        file.seek(start)
        file.writelines(blocks)
        file.flush()
        # Before a state names the words: else a power cut could leave a state whose words are gone.
        os.fsync(file.fileno())
    return start + sum(map(len, blocks))


class FilterSet:
    """All filters of one partition; ``folder`` has one file of words per generation.

    ``expected``: number of digests about to be loaded; the first filter gets that size at once.
    """

    def __init__(self, folder: Path, expected: int = 0) -> None:
        self._folder = folder
        self._expected = expected
        self._segments: list[_Segment] = []
        self._extents = ExtentFilters()
        self._prepared: list[tuple[ExtentWords, Filter]] = []
        """Words that are in a filter already, and are about to be added: at most those of a fold and of a flush."""
        self._has_image = False

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self._extents.nbytes + sum(segment.filter.nbytes for segment in self._segments)

    @property
    def marks(self) -> int:
        """The number of digests that were added and not dropped."""
        return sum(segment.marks for segment in self._segments)

    def path(self, generation: int) -> Path:
        """Return the file of words of a generation."""
        return self._folder / f"g{generation}.filter"

    def may_contain(self, digests: bytes) -> NDArray[np.intp]:
        """Return the positions, ascending, of the digests that may be stored; no false negatives."""
        if len(self._segments) == 1:
            return self._segments[0].filter.may_contain(digests)
        if not self._segments:
            return _NONE
        found = [segment.filter.may_contain(digests) for segment in self._segments]
        return np.unique(np.concatenate(found))

    def by_generation(self, digests: bytes) -> list[Candidates]:
        """Return the digests that each generation may have, and their pages; no false negatives."""
        if not self._segments:
            return []
        passed = self.may_contain(digests)
        return self._extents.by_generation(digests, passed) if passed.size else []

    def append(self, generation: int, start: int, words: ExtentWords, number: int = 0) -> int:
        """Write words as `write` does, add them as the extent of this number, and return the new end of the file."""
        end = self.write(generation, start, words.encoded)
        self.add(generation, start, words, number)
        return end

    def add(self, generation: int, start: int, words: ExtentWords, number: int) -> None:
        """Add words that were written at ``start`` as the extent of this number."""
        self._delete_image()
        # Remove an earlier attempt of the same flush; its bytes were overwritten.
        self._retain(lambda known: known.generation != generation or known.start < start)
        self._add(Extent(generation, start, words.size, words.count, number, words.pages), words)

    def fold(self, old: int, new: int, words: ExtentWords) -> None:
        """Replace generation ``old`` by ``new``: the same digests in one extent, with its words already written."""
        self._delete_image()
        # Before the old extents go: afterwards nobody knows which filters had their digests.
        holders = self._holders(old)
        self._retain(lambda known: known.generation != old)
        extent = Extent(new, 0, self.path(new).stat().st_size, words.count, 0, words.pages)
        if len(holders) == 1:
            # Its filter has these digests already.
            holders[0].extents.append(extent)
            self._extents.add(extent, words)
        else:
            self._add(extent, words)
        self.path(old).unlink(missing_ok=True)

    def prepare_fold(self, old: int, words: ExtentWords) -> Iterator[None]:
        """Do the long part of `fold`; each step takes a few milliseconds."""
        if len(self._holders(old)) == 1:
            yield from self._extents.make_room(words)
        else:
            yield from self.prepare(words)

    def _holders(self, generation: int) -> list[_Segment]:
        return [
            segment
            for segment in self._segments
            if any(extent.generation == generation for extent in segment.extents)
        ]

    def write(self, generation: int, start: int, blocks: Sequence[bytes]) -> int:
        """Write encoded words at byte ``start`` of the generation's file, truncate the rest, return the new end."""
        return write_words(self.path(generation), start, blocks)

    def adopt(self, generation: int, path: Path) -> None:
        """Move a file of encoded words to the path of a new generation."""
        path.replace(self.path(generation))

    def load(self, generation: int, extents: Sequence[int]) -> int:
        """Add the extents of a generation, given by their sizes in its file; return the number of digests.

        Raises `StoreCorruptError` or OSError when they cannot be read; then nothing was added.
        """
        size = sum(extents)
        data = self.read(generation, 0, size)
        if len(data) < size:
            message = (
                f"{self.path(generation)} has {len(data)} bytes instead of {size}; rebuild it from its keys"
            )
            raise StoreCorruptError(message)
        read, start = [], 0
        for number, length in enumerate(extents):
            blocks = decode_words(data[start : start + length])
            counts = [sum(block.count for block in blocks), sum(len(block.pages) for block in blocks)]
            if counts[0]:
                read.append((Extent(generation, start, length, counts[0], number, counts[1]), blocks))
            start += length
        if read:
            self._delete_image()
        for extent, blocks in read:
            self._add(extent, ExtentWords(blocks))
        return sum(extent.marks for extent, _ in read)

    def read(self, generation: int, start: int, size: int) -> bytes:
        """Read ``size`` bytes of a generation's file (fewer if it is shorter)."""
        with self.path(generation).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def save(self, content: bytes) -> None:
        """Write the image of the filters for a state with this content, unless it is there already; raises OSError."""
        if self._has_image or not self._segments:
            return
        images = [
            SegmentImage(
                segment.filter.capacity,
                segment.filter.count,
                tuple(segment.extents),
                segment.filter.table,
                self._extents.table(segment.extents),
                self._extents.pages(segment.extents),
            )
            for segment in self._segments
        ]
        write_image(self._folder / IMAGE, content, images)
        self._has_image = True

    def restore(self, content: bytes) -> bool:
        """Load the filters from their image, if there is one for this content; only into an empty set.

        Raises `StoreCorruptError` or OSError when the image cannot be used; then nothing was added.
        """
        try:
            images = read_image(self._folder / IMAGE, content)
        except FileNotFoundError:
            return False
        ends = {extent.generation: extent.start + extent.size for image in images for extent in image.extents}
        for generation, end in ends.items():
            # The words are not read now, but needed later to enlarge a filter: check that they exist.
            if self.path(generation).stat().st_size < end:
                message = (
                    f"{self.path(generation)} is shorter than the filter image says; both must be rebuilt"
                )
                raise StoreCorruptError(message)
        self._segments = [
            # Copied: a view would keep the whole image in memory, also when this filter is replaced.
            _Segment(Filter(image.capacity, image.table.copy(), image.count), list(image.extents))
            for image in images
        ]
        self._extents = ExtentFilters(
            [extent for image in images for extent in image.extents],
            np.concatenate([image.extent_table for image in images]),
            np.concatenate([image.pages for image in images]),
        )
        self._has_image = True
        return True

    def _delete_image(self) -> None:
        """Delete the image before a change: a later state with the same content must never match an outdated image."""
        self._has_image = False
        (self._folder / IMAGE).unlink(missing_ok=True)

    def drop(self, generations: Iterable[int]) -> None:
        """Remove generations and delete their files; their bits disappear when their filter is rebuilt."""
        dropped = set(generations)
        if dropped:
            self._delete_image()
        self._retain(lambda extent: extent.generation not in dropped)
        self._segments = [segment for segment in self._segments if segment.extents]
        for generation in dropped:
            self.path(generation).unlink(missing_ok=True)

    def _retain(self, wanted: Callable[[Extent], bool]) -> None:
        for segment in self._segments:
            segment.extents = [extent for extent in segment.extents if wanted(extent)]
        self._extents.retain(wanted)

    def _add(self, extent: Extent, words: ExtentWords) -> None:
        last = self._segments[-1].filter if self._segments else None
        # Words that were prepared for a filter that was replaced since are in no filter now.
        if not any(known is words and held is last for known, held in self._prepared):
            for _ in self.prepare(words):
                pass
        self._prepared = [each for each in self._prepared if each[0] is not words]
        self._extents.add(extent, words)
        # At the end: an extent that is listed is in the filter, whatever interrupts this.
        self._segments[-1].extents.append(extent)

    def prepare(self, words: ExtentWords) -> Iterator[None]:
        """Do the long part of `add`; each step takes a few milliseconds.

        Between the steps anything may be called here: a fold goes on from one flush to the next. Bits of words that are
        not added after all cost a few false positives.
        """
        yield from self._make_room(words.count)
        yield from self._extents.make_room(words)
        if not self._segments:
            # All that there was has been dropped.
            self._segments.append(_Segment(Filter(_capacity(words.count))))
        held = self._segments[-1].filter
        for block in words.blocks:
            for start in range(0, block.count, _ADDED_AT_ONCE):
                yield
                held.add(block.cut(start, start + _ADDED_AT_ONCE))
        self._prepared = [*self._prepared[-1:], (words, held)]

    def _make_room(self, more: int) -> Iterator[None]:
        """Make room for ``more`` digests: enlarge the last filter, or begin another one."""
        last = self._segments[-1] if self._segments else None
        if last is None or last.marks + more > MAX_PER_FILTER:
            self._segments.append(_Segment(Filter(_capacity(max(more, self._expected)))))
            self._expected = 0
        elif last.filter.count + more > last.filter.capacity:
            # For the extents that are left: `count` still has dropped ones, whose bits go with this filter.
            larger, read = Filter(_capacity(last.marks + more)), list[Extent]()
            try:
                # Extents may come between the steps, also one that is equal to another one that went.
                while (known := _first_other(last.extents, read)) is not None:
                    for block in self._words(known):
                        yield
                        larger.add(block)
                    read.append(known)
            except (StoreCorruptError, OSError):
                # The filter in memory came from an image. Its words are rebuilt from the keys at the next open
                # that needs them.
                self._segments.append(_Segment(Filter(_capacity(more))))
            else:
                # Only with all words in: until then the smaller filter answers.
                last.filter = larger

    def _words(self, extent: Extent) -> Iterator[FilterWords]:
        with self.path(extent.generation).open("rb") as file:
            file.seek(extent.start)
            yield from iter_words(file, extent.size)


def _first_other(extents: Sequence[Extent], known: Sequence[Extent]) -> Extent | None:
    return next((each for each in extents if not any(each is other for other in known)), None)


def _capacity(marks: int) -> int:
    return max(MIN_PER_FILTER, marks if marks > MAX_PER_FILTER else min(2 * marks, MAX_PER_FILTER))
