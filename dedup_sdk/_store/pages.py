"""The byte layouts of marks and progress: pages (in generations, snapshots and the journal) and journal steps.

A *page* is a group of marks encoded as one value. In a sorted file it is one RocksDB value, and its marks
ascend by digest (unsigned bytes: the order of RocksDB, and of binaries in Spark). Its key is:

    extent   uint32 big-endian   number of the sorted file within its generation, 0 in a snapshot
    rank     uint32 big-endian   the first 4 bytes of its first digest

No two pages of an extent share a rank: a page ends only where the first 4 bytes change. So the ranks of the
pages, which `filter_words` stores, select the page that has a digest if it is stored. In the journal a step
has one page, with its marks in the order of their completion. Layout, little-endian:

    count      uint32   n
    flags      uint8    1: numbers  2: payloads
    bits       3 x uint8   size in bits of an offset, a timestamp and a number, 0 to 64; multiples of 8 if their sum
                           is above 64
    least      3 x int64   the least offset, timestamp and number, 0 where there are none
    marks      n x (digest 16 bytes; one integer in as few bytes as its bits need: offset, timestamp and number, each
               minus the least, the offset in the lowest bits)
    sizes      n x uint32, only with flag 2: bytes of each payload, 0 where there is none
    payloads   the bytes of all payloads, only with flag 2

RocksDB protects blocks of pages by a checksum; a journal step has its own. RocksDB's writer is called once
per page, which keeps it cheap: sorting 200,000 marks and writing them uncompressed takes some 0.5 µs of CPU
per mark. The file has 22 bytes per mark; one key per mark would make it 44.

A *step* is one journal record: the progress, and the marks that were completed with it. Layout,
little-endian:

    magic        2 bytes  "DJ"
    format       uint8    11
    flags        uint8    2: committed  4: since_ms  8: since_number  16: the done ranges are a delta
                          (`dedup_sdk._marks.latest`)  32: leader epoch  128: witness
                          A field without its flag is 0 and means None.
    done         uint32   d
    era          uint32   e bytes
    page         uint32   p bytes
    low, high, committed, since_ms, accepted, since_number, newest_ms, floor_number, dropped_to      9 x int64
    epoch        int64
    witness      int64 offset, int64 timestamp, 8 bytes check
    done ranges  d x (int64 start, int64 end)
    era          e bytes of UTF-8
    marks        p bytes  one page, its marks in the order of their completion
    checksum     uint32   CRC-32 (zlib) of everything before it

A step is one value, so that it is one put, in one atomic write with its progress. RocksDB's ``write()``
holds the interpreter's lock; one put per mark would block all threads.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, starmap
from operator import sub
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dedup_sdk._marks import (
    DIGEST_BYTES,
    NO_MARKS,
    Int64s,
    Known,
    Marks,
    Progress,
    Witness,
    cut_marks,
    join_marks,
    select_marks,
)
from dedup_sdk.errors import StoreCorruptError, StoreError

Uint64s = NDArray[np.uint64]

PAGE_MARKS: Final = 64
PAGE_BYTES: Final = 8192
"""Maximum size of the payloads of a page; with larger payloads a page has fewer marks."""
MAX_PAYLOAD_BYTES: Final = 2**31
MAX_EXTENT: Final = 2**32 - 1
"""No extent has this number: its key lies above those of all pages."""

_LAYOUT: Final = struct.Struct("<4B3q")
_COUNT_BYTES: Final = 4
_HEAD_BYTES: Final = _COUNT_BYTES + _LAYOUT.size
_KEY: Final = struct.Struct(">II")
_SIZE: Final = np.dtype("<u4")
_WORD: Final = np.dtype("<u8")
_BIG_ENDIAN_U64: Final = np.dtype(">u8")
_RANKS: Final = np.dtype(">u4")
_NUMBERS, _PAYLOADS = 1, 2
_KINDS: Final = frozenset({0, _NUMBERS, _PAYLOADS})
_RANK_BYTES: Final = 4
_WORD_BYTES: Final = 8
_WORD_BITS: Final = 64
_NO_TIME: Final = np.iinfo(np.int64).min


class Page(NamedTuple):
    """An encoded page, its rank, and its number of marks."""

    rank: int
    value: bytes
    marks: int


FoundMark = tuple[int, int, int, bytes]
"""Offset, timestamp (ms), acceptance number and payload of a mark; 0 and b"" where it has none of the last two.

A plain tuple, because a look-up creates many.
"""


class _Layout:
    """The decoded head of a page, without its count."""

    __slots__ = (
        "bits", "flags", "least", "number_at", "offset", "offset_mask", "stride", "time", "time_at", "time_mask",
    )  # fmt: skip

    def __init__(self, head: bytes) -> None:
        self.flags, *rest = _LAYOUT.unpack(head)
        self.bits, self.least = rest[:3], rest[3:]
        size = sum(self.bits)
        whole = size <= _WORD_BITS or self.bits == _whole_bytes(self.bits)
        if max(self.bits) > _WORD_BITS or self.flags not in _KINDS or not whole:
            message = f"a page has invalid flags {self.flags} or bits {self.bits}; rebuild the store"
            raise StoreCorruptError(message)
        self.stride = DIGEST_BYTES + (size + 7) // 8
        self.offset, self.time, _ = self.least
        self.time_at, self.number_at = self.bits[0], self.bits[0] + self.bits[1]
        self.offset_mask, self.time_mask = (1 << self.bits[0]) - 1, (1 << self.bits[1]) - 1


def _whole_bytes(bits: Sequence[int]) -> list[int]:
    """Return sizes in bits rounded up to whole bytes."""
    return [(each + 7) // 8 * 8 for each in bits]


_layout: Final = lru_cache(maxsize=1024)(_Layout)


def page_key(extent: int, rank: int) -> bytes:
    """Return the key of the page of an extent with this rank; other ranks sort between existing keys."""
    return _KEY.pack(extent, rank)


def rank_of(digest: bytes) -> int:
    """Return the rank of a digest: its first 4 bytes as a number."""
    return int.from_bytes(digest[:_RANK_BYTES], "big")


def digest_ranks(digests: bytes) -> NDArray[np.uint32]:
    """Return the rank of each of ``n`` digests, shape ``(n,)``, big-endian."""
    return np.frombuffer(digests, _RANKS)[:: DIGEST_BYTES // _RANK_BYTES]


def check_payloads(marks: Marks) -> None:
    """Raise `StoreError` for payloads that cannot be stored: larger than 2 GiB, or on marks with numbers.

    Also when the number of payloads differs from the number of marks.
    """
    if marks.payloads is None:
        return
    if len(marks.payloads) != marks.count:
        message = (
            f"marks have {marks.count} offsets and {len(marks.payloads)} payloads: give columns of one length"
        )
        raise StoreError(message)
    if not marks.bear_payloads:
        return
    if marks.numbers is not None:
        message = "marks have numbers and payloads: a store with a count window keeps no payload"
        raise StoreError(message)
    largest = int(marks.payload_sizes.max())
    if largest > MAX_PAYLOAD_BYTES:
        message = f"a payload of {largest} bytes cannot be stored: give {MAX_PAYLOAD_BYTES} bytes at most"
        raise StoreError(message)


def encode_page(marks: Marks) -> bytes:
    """Return marks, in any order, as one page.

    Raises `StoreError` when the columns differ in length, and as `check_payloads` does.
    """
    (page,) = _encode(marks, [0, marks.count])
    return page


def encode_pages(marks: Marks) -> list[Page]:
    """Return marks, ascending by digest, as the pages of a sorted file; raises `StoreError` as `encode_page` does."""
    if not marks.count:
        return []
    bounds = _page_bounds(marks)
    ranks = digest_ranks(marks.digests)[bounds[:-1]].tolist()
    return list(map(Page, ranks, _encode(marks, bounds), map(sub, bounds[1:], bounds)))


def decode_page(page: bytes) -> Marks:
    """Return the marks of a page, in its order.

    Raises `StoreCorruptError` when the bytes are inconsistent.
    """
    if len(page) < _HEAD_BYTES:
        raise _corrupt(page, f"a page has at least {_HEAD_BYTES} bytes")
    return _decode_alike(_layout(page[_COUNT_BYTES:_HEAD_BYTES]), [page])


def decode_pages(pages: Sequence[bytes]) -> Marks:
    """Return the marks of all pages, concatenated; raises `StoreCorruptError` as `decode_page` does."""
    if pages and min(map(len, pages)) < _HEAD_BYTES:
        raise _corrupt(min(pages, key=len), f"a page has at least {_HEAD_BYTES} bytes")
    return join_marks([_decode_alike(_layout(head), list(some)) for head, some in groupby(pages, _head)])


def _head(page: bytes) -> bytes:
    return page[_COUNT_BYTES:_HEAD_BYTES]


def marks_in_page(page: bytes) -> int:
    """Return the number of marks in a page, by its head."""
    return int.from_bytes(page[:_COUNT_BYTES], "little")


def _decode_alike(layout: _Layout, pages: list[bytes]) -> Marks:
    """Return the marks of pages with the same layout."""
    bodies, payloads = [], []
    for page in pages:
        end = _HEAD_BYTES + layout.stride * int.from_bytes(page[:_COUNT_BYTES], "little")
        bodies.append(page[_HEAD_BYTES:end])
        if layout.flags & _PAYLOADS:
            payloads += _payloads(page, end)
        elif len(page) != end:
            raise _corrupt(page, f"its head requires {end} bytes")
    table = np.frombuffer(b"".join(bodies), np.uint8).reshape(-1, layout.stride)
    offsets, timestamps, numbers = _columns(table[:, DIGEST_BYTES:], layout)
    return Marks(
        table[:, :DIGEST_BYTES].tobytes(),
        offsets,
        timestamps,
        numbers if layout.flags & _NUMBERS else None,
        payloads if layout.flags & _PAYLOADS else None,
    )


def _payloads(page: bytes, sizes_at: int) -> list[bytes]:
    count = marks_in_page(page)
    end = sizes_at + _SIZE.itemsize * count
    # A page that is cut off has no sizes, and fails the check below.
    sizes: list[int] = np.frombuffer(page, _SIZE, count, sizes_at).tolist() if len(page) >= end else []
    if len(page) != end + sum(sizes):
        raise _corrupt(page, f"its head requires {end + sum(sizes)} bytes")
    return [page[start:stop] for start, stop in pairwise(accumulate(sizes, initial=end))]


def decode_items(items: Sequence[tuple[bytes, bytes]]) -> Marks:
    """Return the marks of keys and pages of a sorted file, concatenated.

    Raises `StoreCorruptError` as `decode_page` does, and when a page is stored under a key where look-ups
    would not find it.
    """
    for key, page in items:
        if len(key) != _KEY.size or key[_RANK_BYTES:] != page[_HEAD_BYTES : _HEAD_BYTES + _RANK_BYTES]:
            message = (
                f"a page of {len(page)} bytes is stored under key {key.hex()}, not under the rank of its first digest; "
                "rebuild the store"
            )
            raise StoreCorruptError(message)
    return decode_pages([page for _, page in items])


def find_in_pages(
    pages: Iterable[bytes | None],
    digests: Iterable[bytes],
    positions: Iterable[int],
    found: dict[int, FoundMark],
) -> None:
    """Search each digest in the page beside it, and store its mark in ``found`` under its position.

    A later mark replaces an earlier one. Raises `StoreCorruptError` when a page is truncated.
    """
    read, rest = int.from_bytes, slice(_COUNT_BYTES, _HEAD_BYTES)
    head = bytes(_LAYOUT.size)
    layout = _layout(head)
    for page, digest, position in zip(pages, digests, positions, strict=True):
        if page is None:
            continue
        place = page.find(digest, _HEAD_BYTES)
        if place < 0:
            continue
        # Adjacent pages mostly have the same head.
        if page[rest] != head:
            head = page[rest]
            layout = _layout(head)
        end = place + layout.stride
        # A match across two marks is no mark of this digest, and may hide the real one behind.
        if layout.flags or (place - _HEAD_BYTES) % layout.stride or end > len(page):
            mark = _find(page, digest, layout)
            if mark is not None:
                found[position] = mark
            continue
        packed = read(page[place + DIGEST_BYTES : end], "little")
        found[position] = (
            layout.offset + (packed & layout.offset_mask),
            layout.time + (packed >> layout.time_at),
            0,
            b"",
        )


def find_in_page(page: bytes, digest: bytes) -> FoundMark | None:
    """Return the mark of a digest, None when the page has none; raises `StoreCorruptError` as `find_in_pages` does."""
    if len(page) < _HEAD_BYTES:
        raise _corrupt(page, f"a page has at least {_HEAD_BYTES} bytes")
    return _find(page, digest, _layout(_head(page)))


def _find(page: bytes, digest: bytes, layout: _Layout) -> FoundMark | None:
    stride, count = layout.stride, marks_in_page(page)
    end = _HEAD_BYTES + stride * count
    if len(page) < end:
        raise _corrupt(page, f"its head requires {end} bytes")
    place = page.find(digest, _HEAD_BYTES, end)
    # A digest must be at the start of a mark: skip byte matches across marks.
    while place >= 0 and (place - _HEAD_BYTES) % stride:
        place = page.find(digest, place + 1, end)
    if place < 0:
        return None
    packed = int.from_bytes(page[place + DIGEST_BYTES : place + stride], "little")
    offset, time, number = layout.least
    return (
        offset + (packed & layout.offset_mask),
        time + (packed >> layout.time_at & layout.time_mask),
        number + (packed >> layout.number_at),
        _payloads(page, end)[(place - _HEAD_BYTES) // stride] if layout.flags & _PAYLOADS else b"",
    )


def _encode(marks: Marks, bounds: list[int]) -> list[bytes]:
    """Return the pages between consecutive bounds; all have the same widths and least values."""
    _check_columns(marks)
    count, numbers = marks.count, marks.numbers
    payloads = marks.payloads if marks.bear_payloads else None
    least, bits, words = [0, 0, 0], [0, 0, 0], list[Uint64s]()
    for index, column in enumerate((marks.offsets, marks.timestamps, numbers)):
        if column is None or not count:
            continue
        least[index] = int(column.min())
        # Unsigned, modulo 2**64: a difference of two 64-bit integers may need all 64 bits.
        words.append(column.astype(np.uint64) - np.uint64(least[index] % 2**64))
        bits[index] = int(words[-1].max()).bit_length()
    columns: list[tuple[bytes | Uint64s, int]] = [(marks.digests, DIGEST_BYTES)]
    if sum(bits) > _WORD_BITS:
        bits = _whole_bytes(bits)
        # Not strict: without numbers there are two columns, and three sizes.
        columns += [(word, size // 8) for word, size in zip(words, bits, strict=False)]
    elif words:
        columns.append((_packed(words, bits), (sum(bits) + 7) // 8))
    body, stride = _interleaved(columns, count), DIGEST_BYTES + (sum(bits) + 7) // 8
    flags = (_NUMBERS if numbers is not None else 0) | (_PAYLOADS if payloads is not None else 0)
    head = _LAYOUT.pack(flags, *bits, *least)
    pages = []
    for start, end in pairwise(bounds):
        page = (end - start).to_bytes(_COUNT_BYTES, "little") + head + body[stride * start : stride * end]
        if payloads is not None:
            some = cut_marks(marks, start, end)
            page = b"".join((page, some.payload_sizes.astype(_SIZE).tobytes(), some.payloads_joined))
        pages.append(page)
    return pages


def _interleaved(columns: Sequence[tuple[bytes | Uint64s, int]], count: int) -> bytes:
    """Return ``count`` rows: row *i* has the first ``width`` bytes of item *i* of each column ``(items, width)``.

    Items of ``bytes`` have ``width`` bytes each, those of an array 8 bytes.
    """
    stride = sum(width for _, width in columns)
    rows, at = np.empty(stride * count, np.uint8), 0
    for column, width in columns:
        if width:
            # Opaque items are copied whole; rows of single bytes take twice as long.
            size = width if isinstance(column, bytes) else _WORD_BYTES
            cells = np.ndarray(count, f"V{width}", rows, at, (stride,))
            cells[:] = np.ndarray(count, f"V{width}", column, 0, (size,))
        at += width
    return rows.tobytes()


def _check_columns(marks: Marks) -> None:
    count, numbers = marks.count, marks.numbers
    if len(marks.digests) != DIGEST_BYTES * count or len(marks.timestamps) != count:
        message = (
            f"marks have {len(marks.digests)} digest bytes, {count} offsets and {len(marks.timestamps)} timestamps: "
            "give columns of one length"
        )
        raise StoreError(message)
    if numbers is not None and len(numbers) != count:
        message = f"marks have {count} offsets and {len(numbers)} numbers: give columns of one length"
        raise StoreError(message)
    check_payloads(marks)


def _page_bounds(marks: Marks) -> list[int]:
    """Return the indexes where the pages of ascending marks begin, and the end of the last one."""
    count, ranks = marks.count, digest_ranks(marks.digests).astype(np.uint32)
    alike = ranks[1:] == ranks[:-1]
    changes = np.append(np.flatnonzero(~alike) + 1, count)
    bounds, start = list[int](), 0
    if marks.bear_payloads:
        ends = np.cumsum(marks.payload_sizes)
        while start < count:
            bounds.append(start)
            before = int(ends[start - 1]) if start else 0
            by_bytes = int(np.searchsorted(ends, before + PAGE_BYTES)) + 1
            wanted = min(start + PAGE_MARKS, max(by_bytes, start + 1), count)
            start = int(changes[np.searchsorted(changes, wanted)])
    else:
        # Only marks that must not begin a page, because they have the rank of the one before them, are visited.
        for tied in (np.flatnonzero(alike) + 1).tolist():
            if tied > start and (tied - start) % PAGE_MARKS == 0:
                bounds += range(start, tied, PAGE_MARKS)
                start = int(changes[np.searchsorted(changes, tied)])
        bounds += range(start, count, PAGE_MARKS)
    return [*bounds, count]


def _packed(words: Sequence[Uint64s], bits: Sequence[int]) -> Uint64s:
    """Return columns of so many bits each as one column, the first in the lowest bits."""
    packed = words[-1]
    for word, size in zip(words[-2::-1], bits[len(words) - 2 :: -1], strict=True):
        # Above 64 bits there is nothing, and a shift by all of a word is undefined.
        packed = word | packed << np.uint64(size % _WORD_BITS)
    return packed


def _columns(rows: NDArray[np.uint8], layout: _Layout) -> list[Int64s]:
    """Return offsets, timestamps and numbers from the bytes behind the digests, shape ``(n, bytes)``."""
    columns, at, packed = list[Int64s](), 0, sum(layout.bits) <= _WORD_BITS
    word = _words(rows) if packed else np.empty(0, np.uint64)
    for size, least in zip(layout.bits, layout.least, strict=True):
        if packed:
            above = word & np.uint64((1 << size) - 1)
            word = word >> np.uint64(size % _WORD_BITS)
        else:
            above = _words(rows[:, at // 8 : (at + size) // 8])
            at += size
        columns.append((above + np.uint64(least % 2**64)).view(np.int64))
    return columns


def _words(rows: NDArray[np.uint8]) -> Uint64s:
    """Return rows of up to 8 bytes, little-endian, as numbers."""
    words = np.zeros((len(rows), _WORD_BYTES), np.uint8)
    words[:, : rows.shape[1]] = rows
    return words.view(_WORD).ravel().astype(np.uint64, copy=False)


def _corrupt(page: bytes, why: str) -> StoreCorruptError:
    return StoreCorruptError(f"a page of {len(page)} bytes cannot be read: {why}; rebuild the store")


def digest_words(digests: bytes) -> tuple[Uint64s, Uint64s]:
    """Return the high and the low words of ``n`` digests (``16 * n`` bytes), each of shape ``(n,)``.

    Raises ValueError when ``digests`` is not a whole number of digests.
    """
    if len(digests) % DIGEST_BYTES:
        message = f"{len(digests)} bytes are not a whole number of {DIGEST_BYTES}-byte digests"
        raise ValueError(message)
    words = np.frombuffer(digests, dtype=_BIG_ENDIAN_U64).reshape(-1, 2)
    return words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)


def newest_per_digest(marks: Marks) -> Marks:
    """Return ``marks`` ascending by digest (unsigned bytes), of each digest only the mark with the highest offset.

    Of marks with the same digest and offset, the one with the earliest timestamp stays, because it expires
    first; any timestamp precedes none. So the result does not depend on the order of the input. Of marks
    with the same timestamp, too, the last one stays.
    """
    return _last_per_digest(marks, marks.timestamps)


def sorted_parts(marks: Marks, count: int) -> Iterator[Marks]:
    """Yield marks as `newest_per_digest` returns them, in parts of about ``count``; marks of one rank are never split.

    Each part is sorted when it is due.
    """
    parts = -(-marks.count // count)
    if parts == 1:
        yield newest_per_digest(marks)
        return
    part_of = digest_ranks(marks.digests).astype(np.uint64) * np.uint64(parts) >> np.uint64(32)
    for part in range(parts):
        yield newest_per_digest(select_marks(marks, np.flatnonzero(part_of == part)))


def last_given_per_digest(marks: Marks) -> Marks:
    """Like `newest_per_digest`, but of marks with the same digest and offset the last one in the input stays."""
    return _last_per_digest(marks, None)


def _last_per_digest(marks: Marks, timestamps: NDArray[np.int64] | None) -> Marks:
    if not marks.count:
        return marks
    high, low = digest_words(marks.digests)
    order = digest_order(high, low, marks.offsets, timestamps)
    high, low = high[order], low[order]
    last = np.ones(len(order), dtype=np.bool_)
    np.logical_or(high[1:] != high[:-1], low[1:] != low[:-1], out=last[:-1])
    return select_marks(marks, order[last])


def digest_order(
    high: Uint64s,
    low: Uint64s,
    offsets: NDArray[np.int64],
    timestamps: NDArray[np.int64] | None = None,
) -> NDArray[np.intp]:
    """Return the order in which rows, of shape ``(n,)``, ascend by digest (its words), then by offset.

    With ``timestamps`` (ms), rows of one offset are ordered from none (below 0) over the latest to the
    earliest.
    """
    order: NDArray[np.intp] = np.argsort(high)
    ranked = high[order]
    equal_next = ranked[1:] == ranked[:-1]
    if not equal_next.any():
        return order
    # One 8-byte sort is several times cheaper than a sort by three columns, and ties are few.
    tied = np.zeros(len(order), dtype=np.bool_)
    tied[1:] = equal_next
    tied[:-1] |= equal_next
    # In the order of the input, which the stable sort below keeps: of equal marks the last one given counts.
    among = np.sort(order[tied])
    keys = [offsets[among], low[among], high[among]]
    if timestamps is not None:
        times = timestamps[among]
        keys.insert(0, np.where(times < 0, _NO_TIME, -times))
    order[tied] = among[np.lexsort(keys)]
    return order


_STEP_MAGIC: Final = b"DJ"
STEP_FORMAT: Final = 11

_STEP: Final = struct.Struct("<2sBBIII10q2q8s")
_RANGE: Final = struct.Struct("<qq")
_CRC: Final = struct.Struct("<I")
_COMMITTED, _SINCE_MS, _SINCE_NUMBER, _DELTA, _EPOCH, _WITNESS = 2, 4, 8, 16, 32, 128
_EMPTY_PAGE: Final = encode_page(NO_MARKS)
"""Many steps have no marks, e.g. those of a commit or of the start of a partition."""
_FLAGS: Final = _COMMITTED | _SINCE_MS | _SINCE_NUMBER | _DELTA | _EPOCH | _WITNESS


def encode_step(progress: Progress, marks: Marks) -> bytes:
    """Return the journal record of one step.

    Raises `StoreError` when a number does not fit in 64 bits, and as `encode_page` does.
    """
    page = encode_page(marks) if marks.digests or len(marks.offsets) else _EMPTY_PAGE
    era, witness, known = progress.era.encode(), progress.witness, progress.known
    flags = (
        (_COMMITTED if progress.committed is not None else 0)
        | (_SINCE_MS if known.since_ms is not None else 0)
        | (_SINCE_NUMBER if known.since_number is not None else 0)
        | (_DELTA if progress.delta else 0)
        | (_EPOCH if progress.epoch is not None else 0)
        | (_WITNESS if witness is not None else 0)
    )
    seen = (
        (0, 0, b"")
        if witness is None
        else (witness.offset, witness.timestamp_ms, bytes.fromhex(witness.check))
    )
    try:
        parts = [
            _STEP.pack(
                _STEP_MAGIC, STEP_FORMAT, flags, len(progress.done), len(era), len(page),
                progress.low, progress.high, progress.committed or 0, known.since_ms or 0, known.accepted,
                known.since_number or 0, known.newest_ms, known.floor_number, known.dropped_to,
                progress.epoch or 0, *seen,
            ),
            *starmap(_RANGE.pack, progress.done),
            era,
            page,
        ]  # fmt: skip
    except struct.error as error:
        message = f"progress {progress} cannot be stored: {error}"
        raise StoreError(message) from error
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def decode_step(record: bytes) -> tuple[Progress, Marks]:
    """Return the arguments of `encode_step`.

    Raises `StoreCorruptError` when the bytes are foreign, truncated, too long or changed, or have another
    format.
    """
    if len(record) < _STEP.size + _CRC.size or record[:2] != _STEP_MAGIC:
        raise _corrupt_step(record, "it has no header")
    _, version, flags, done_count, era_size, page_size, *words = _STEP.unpack_from(record)
    if version != STEP_FORMAT:
        raise _corrupt_step(record, f"its format is {version}, this version reads {STEP_FORMAT}")
    era_at = _STEP.size + done_count * _RANGE.size
    page_at = era_at + era_size
    expected = page_at + page_size + _CRC.size
    if len(record) != expected or flags & ~_FLAGS:
        raise _corrupt_step(record, f"its header (flags {flags}) requires {expected} bytes")
    if crc32(memoryview(record)[: -_CRC.size]) != _CRC.unpack_from(record, expected - _CRC.size)[0]:
        raise _corrupt_step(record, "its checksum differs")
    (
        low,
        high,
        committed,
        since_ms,
        accepted,
        since_number,
        newest_ms,
        floor,
        dropped_to,
        epoch,
        offset,
        timestamp_ms,
        check,
    ) = words
    progress = Progress(
        low=low,
        high=high,
        done=tuple(_RANGE.iter_unpack(record[_STEP.size : era_at])),
        committed=committed if flags & _COMMITTED else None,
        era=record[era_at:page_at].decode(),
        known=Known(
            since_ms=since_ms if flags & _SINCE_MS else None,
            since_number=since_number if flags & _SINCE_NUMBER else None,
            accepted=accepted,
            newest_ms=newest_ms,
            dropped_to=dropped_to,
            floor_number=floor,
        ),
        epoch=epoch if flags & _EPOCH else None,
        delta=bool(flags & _DELTA),
        witness=Witness(offset, timestamp_ms, check.hex()) if flags & _WITNESS else None,
    )
    page = record[page_at : page_at + page_size]
    # The very object, by which `read_journal` knows a step without marks.
    return progress, NO_MARKS if page == _EMPTY_PAGE else decode_page(page)


def _corrupt_step(record: bytes, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"a journal record of {len(record)} bytes cannot be read: {why}; rebuild the store"
    )


class PageReader:
    """Marks that ascend by digest, read page by page; ``buffered`` are those that were read and not taken yet."""

    def __init__(self, pages: Iterator[Marks]) -> None:
        self._pages = pages
        self.buffered = NO_MARKS

    def fill(self) -> bool:
        """Read a page if none is buffered; return whether one is."""
        while not self.buffered.count:
            page = next(self._pages, None)
            if page is None:
                return False
            self.buffered = page
        return True

    @property
    def last(self) -> bytes:
        """The last digest that is buffered."""
        return self.buffered.digests[-DIGEST_BYTES:]

    def take(self, last: bytes | None = None) -> Marks:
        """Take the buffered marks up to this digest."""
        if last is None:
            taken, self.buffered = self.buffered, NO_MARKS
            return taken
        high, low = digest_words(self.buffered.digests)
        wanted_high, wanted_low = (int(word[0]) for word in digest_words(last))
        end = int(np.count_nonzero((high < wanted_high) | ((high == wanted_high) & (low <= wanted_low))))
        taken, self.buffered = (
            cut_marks(self.buffered, 0, end),
            cut_marks(self.buffered, end, self.buffered.count),
        )
        return taken

    def close(self) -> None:
        """Close the pages, as far as they can be."""
        # A generator has a `close`, an iterator over a tuple has none.
        close = getattr(self._pages, "close", None)
        if close is not None:
            close()


def merge_pages(layers: Sequence[Iterator[Marks]]) -> Generator[Marks, None, None]:
    """Merge pages that ascend by digest in each layer, each ID once: its mark with the highest offset.

    The layers are closed at the end, and after an error.
    """
    readers = list(map(PageReader, layers))
    try:
        while left := [reader for reader in readers if reader.fill()]:
            if len(left) == 1:
                yield left[0].take()
            else:
                # Each layer has been read up to here, so that no later page has one of these IDs.
                last = min(reader.last for reader in left)
                yield newest_per_digest(join_marks([reader.take(last) for reader in left]))
    finally:
        for reader in readers:
            reader.close()
