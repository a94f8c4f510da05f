"""Filter words: the input of filters for each digest, and the first rank of each page.

They are stored beside the sorted files, so that filters of any size (`filter_set`) and the page index are
built without reading a page.

Layout, little-endian; a filter file (``NAME.filter``) is any number of blocks, one after the other::

    magic     4 bytes  "DFW3"
    count     uint32   n
    pages     uint32   p
    steps     uint32   s bytes
    checksum  uint32   CRC-32 (zlib) of the 12 bytes of the counts and of all that follows
    ranks     n x uint16   the rank of each digest (its first 4 bytes as an unsigned big-endian number), ascending; its
                           lower half
    patterns  n x uint16   the last 2 bytes of each digest as an unsigned big-endian number
    pages     p x uint32   the rank of each page that these digests are in, ascending
    steps     s bytes      n x uint16 by zlib: how much more the upper half of a rank is than that of the one before it;
                           mostly 0 or 1, so that they take a quarter of a byte
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import BinaryIO, Final
from zlib import compress, crc32, decompressobj
from zlib import error as ZlibError  # noqa: N812 (a class)

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._store.pages import digest_ranks
from dedup_sdk.errors import StoreCorruptError

MAGIC: Final = b"DFW3"
WORD_BYTES: Final = 4
"""Bytes of a digest, without its step."""
PAGE_WORD_BYTES: Final = 4
MOST_STEP_BYTES: Final = 16
"""A step in a block of its own takes no more, whatever zlib makes of it."""

_HEADER: Final = struct.Struct("<4sIIII")
BLOCK_BYTES: Final = _HEADER.size
"""Bytes of a block before its columns."""
_COUNTS: Final = struct.Struct("<III")
_RANK_TYPE: Final = np.dtype("<u4")
_HALF_TYPE: Final = np.dtype("<u2")
_HALF_BITS: Final = np.uint32(16)
_QUICK: Final = 1
_MAX_PER_BLOCK: Final = 2**17


_NO_PAGES: Final[NDArray[np.uint32]] = np.empty(0, np.uint32)


@dataclass(frozen=True, slots=True)
class FilterWords:
    """The filter words of ``n`` digests: ``ranks`` (ascending) and ``patterns``, both of shape ``(n,)``.

    ``pages``: the ranks of the pages that contain them, ascending; empty where they are not needed.
    """

    ranks: NDArray[np.uint32]
    patterns: NDArray[np.uint16]
    pages: NDArray[np.uint32] = field(default_factory=lambda: _NO_PAGES)

    @property
    def count(self) -> int:
        """The number of digests."""
        return len(self.ranks)

    def cut(self, start: int, end: int) -> FilterWords:
        """Return the words at positions ``[start, end)``, without pages."""
        return FilterWords(self.ranks[start:end], self.patterns[start:end])


NO_WORDS = FilterWords(np.empty(0, np.uint32), np.empty(0, np.uint16))


def filter_words(digests: bytes, pages: Sequence[int] = ()) -> FilterWords:
    """Return the words of ``n`` digests (``16 * n`` bytes), in their order; ``pages`` are the ranks of their pages."""
    ranks = digest_ranks(digests)
    patterns = np.frombuffer(digests, dtype=">u2")[7::8]
    found = np.array(pages, np.uint32) if pages else _NO_PAGES
    return FilterWords(ranks.astype(np.uint32), patterns.astype(np.uint16), found)


def encode_words(words: FilterWords) -> bytes:
    """Return the words as blocks, the pages in the last one; no words give no bytes."""
    blocks = []
    for start in range(0, words.count, _MAX_PER_BLOCK):
        end = start + _MAX_PER_BLOCK
        pages = words.pages if end >= words.count else words.pages[:0]
        ranks = words.ranks[start:end]
        steps = compress(
            np.diff(ranks >> _HALF_BITS, prepend=np.uint32(0)).astype(_HALF_TYPE).tobytes(), _QUICK
        )
        columns = (
            ranks.astype(_HALF_TYPE).tobytes()
            + words.patterns[start:end].astype(_HALF_TYPE, copy=False).tobytes()
            + pages.astype(_RANK_TYPE, copy=False).tobytes()
            + steps
        )
        counts = len(ranks), len(pages), len(steps)
        blocks += [_HEADER.pack(MAGIC, *counts, _checksum(counts, columns)), columns]
    return b"".join(blocks)


def decode_words(data: bytes) -> list[FilterWords]:
    """Return one entry per block; raises the error of `iter_words`."""
    return list(iter_words(BytesIO(data), len(data)))


def iter_words(source: BinaryIO, size: int) -> Iterator[FilterWords]:
    """Read ``size`` bytes of a file from where it stands; yield one entry per block, each read when it is due.

    Raises `StoreCorruptError` when the bytes are foreign, truncated or changed, or a block is not sorted; OSError.
    """
    at = 0
    while at < size:
        header = source.read(min(_HEADER.size, size - at))
        if len(header) < _HEADER.size or not header.startswith(MAGIC):
            raise _corrupt(at, "there is no block header")
        _, *counts, checksum = _HEADER.unpack(header)
        count, page_count, step_bytes = counts
        at += _HEADER.size
        steps_at = WORD_BYTES * count + PAGE_WORD_BYTES * page_count
        block_bytes = steps_at + step_bytes
        columns = memoryview(source.read(min(block_bytes, size - at)))
        if len(columns) != block_bytes or _checksum(counts, columns) != checksum:
            raise _corrupt(at, "the block is truncated or its checksum differs")
        lower = np.frombuffer(columns, dtype=_HALF_TYPE, count=count)
        ranks = (np.cumsum(_steps(columns[steps_at:], count, at), dtype=np.uint32) << _HALF_BITS) | lower
        pages = np.frombuffer(columns, dtype=_RANK_TYPE, count=page_count, offset=WORD_BYTES * count)
        # A rank has one page: a second one would never be read, and its marks never be found.
        if (ranks[1:] < ranks[:-1]).any() or (pages[1:] <= pages[:-1]).any():
            raise _corrupt(at, "the block is not sorted")
        patterns = np.frombuffer(columns, dtype=_HALF_TYPE, count=count, offset=_HALF_TYPE.itemsize * count)
        yield FilterWords(ranks, patterns, pages)
        at += block_bytes


def merge_words(blocks: Iterable[FilterWords]) -> FilterWords:
    """Return the words of all blocks, ascending by rank."""
    kept = list(blocks)
    if len(kept) <= 1:
        return kept[0] if kept else NO_WORDS
    ranks = np.concatenate([block.ranks for block in kept])
    patterns = np.concatenate([block.patterns for block in kept])
    pages = np.sort(np.concatenate([block.pages for block in kept]))
    if (ranks[1:] >= ranks[:-1]).all():
        # Blocks of sorted files in order: this check takes a twentieth of a sort.
        return FilterWords(ranks, patterns, pages)
    # Rank and pattern in one number: one plain sort instead of an index sort and two gathers.
    joined = np.sort((ranks.astype(np.uint64) << np.uint64(16)) | patterns)
    return FilterWords((joined >> np.uint64(16)).astype(np.uint32), joined.astype(np.uint16), pages)


def _steps(packed: memoryview, count: int, at: int) -> NDArray[np.uint16]:
    wanted = _HALF_TYPE.itemsize * count
    reader = decompressobj()
    try:
        # No more than that: a short file may stand for gigabytes.
        steps = reader.decompress(packed, wanted + 1)
    except ZlibError as error:
        raise _corrupt(at, f"its steps cannot be read ({error})") from None
    if len(steps) != wanted:
        raise _corrupt(at, "its steps are of another number")
    return np.frombuffer(steps, _HALF_TYPE)


def _checksum(counts: Sequence[int], columns: bytes | memoryview) -> int:
    return crc32(columns, crc32(_COUNTS.pack(*counts)))


def _corrupt(at: int, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"filter words cannot be read at byte {at}: {why}; rebuild the file from its keys"
    )
