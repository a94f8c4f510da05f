"""Pages: how marks lie in journal steps, in generations and in snapshots, and in which order.

A page is some marks as one value. In a sorted file it is one value of RocksDB's, its marks ascend by digest (unsigned bytes: RocksDB's
order, and Spark's order of binaries), and its key is::

    extent   uint32 big-endian   which sorted file of the generation it came in with, 0 in a snapshot
    rank     uint32 big-endian   the first 4 bytes of its first digest

No two pages of an extent share a rank: a page goes on until 4 bytes change. So the ranks of the pages (`filter_words` keeps them) say in which page a
digest is, if it is stored. In the journal marks stand in the order of their completion, in one page a step. Layout, little-endian::

    count      uint32   n
    flags      uint8    1: numbers  2: payloads
    widths     3 x uint8   bytes that an offset, a timestamp and a number take, 0 to 8
    least      3 x int64   the least offset, timestamp and number, 0 where there are none
    marks      n x (digest 16 bytes, offset, timestamp, number, each less the least, unsigned)
    sizes      n x uint32, only with flag 2: bytes of each payload, 0 where there is none
    payloads   the bytes of all payloads, only with flag 2

RocksDB protects a block of pages by a checksum; a journal step has its own.

RocksDB's own writer is quick enough for pages, because it is called once a page: to sort 200,000 marks and write them
uncompressed takes some 0.5 µs of CPU a mark. The file has 23 bytes a mark; with a key for each mark it has 44.

A *step* is a record of the journal: the progress, and the marks that were completed with it. Layout, little-endian::

    magic        2 bytes  "DJ"
    format       uint8    10
    flags        uint8    2: committed  4: since_ms  8: since_number  16: the done ranges are a delta
    (`dedup_sdk.marks.latest`)  32: leader epoch  128: witness
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

One value a step, not one a mark: a step is one put, in one atomic write with its progress. RocksDB's ``write()`` holds
the interpreter's lock, so that many puts would stop all threads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, starmap
from operator import sub
from typing import Final, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.errors import StoreCorruptError, StoreError
from dedup_sdk.marks import (
    DIGEST_BYTES,
    NO_MARKS,
    Int64s,
    Marks,
    Progress,
    Witness,
    cut_marks,
    join_marks,
    select_marks,
)

Uint64s = NDArray[np.uint64]

PAGE_MARKS: Final = 64
PAGE_BYTES: Final = 8192
"""Of payloads: where they make it larger, a page has fewer marks."""
MOST_PAYLOAD_BYTES: Final = 2**31

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
_NO_TIME: Final = np.iinfo(np.int64).min


class Page(NamedTuple):
    """An encoded page, its rank, and how many marks it has."""

    rank: int
    value: bytes
    marks: int


FoundMark = tuple[int, int, int, bytes]
"""Offset, timestamp (ms), number and payload of one mark of a page; 0 and b"" where it has none of these. Plain, since a look-up makes many."""


class _Layout:
    """What a head says of the marks behind it, but for their count."""

    __slots__ = (
        "flags", "least", "number_at", "offset", "offset_mask", "stride", "time", "time_at", "time_mask", "widths",
    )  # fmt: skip

    def __init__(self, head: bytes) -> None:
        self.flags, *rest = _LAYOUT.unpack(head)
        self.widths, self.least = rest[:3], rest[3:]
        if max(self.widths) > _WORD_BYTES or self.flags not in _KINDS:
            message = (
                f"flags {self.flags} and widths {self.widths} are not those of a page; rebuild the store"
            )
            raise StoreCorruptError(message)
        self.stride = DIGEST_BYTES + sum(self.widths)
        self.offset, self.time, _ = self.least
        # In bits behind the digest.
        self.time_at, self.number_at = 8 * self.widths[0], 8 * (self.widths[0] + self.widths[1])
        self.offset_mask, self.time_mask = (1 << self.time_at) - 1, (1 << 8 * self.widths[1]) - 1


_layout: Final = lru_cache(maxsize=1024)(_Layout)


def page_key(extent: int, rank: int) -> bytes:
    """Return the key of the page of an extent that begins with this rank; that of no page sorts between the pages around it."""
    return _KEY.pack(extent, rank)


def rank_of(digest: bytes) -> int:
    """Return the first 4 bytes of a digest as a number."""
    return int.from_bytes(digest[:_RANK_BYTES], "big")


def digest_ranks(digests: bytes) -> NDArray[np.uint32]:
    """Return the rank of each of ``n`` digests, shape ``(n,)``, big-endian."""
    return np.frombuffer(digests, _RANKS)[:: DIGEST_BYTES // _RANK_BYTES]


def check_payloads(marks: Marks) -> None:
    """Refuse payloads that cannot be stored: of more than 2 GiB, or of marks with numbers.

    Raises `StoreError`, also when there are more or fewer payloads than marks.
    """
    if marks.payloads is None:
        return
    if len(marks.payloads) != marks.count:
        message = f"marks of {marks.count} offsets and {len(marks.payloads)} payloads: columns differ"
        raise StoreError(message)
    if not marks.bear_payloads:
        return
    if marks.numbers is not None:
        message = "marks have numbers and payloads: a store with a count window keeps no payload"
        raise StoreError(message)
    largest = int(marks.payload_sizes.max())
    if largest > MOST_PAYLOAD_BYTES:
        message = f"a payload of {largest} bytes cannot be stored: give {MOST_PAYLOAD_BYTES} bytes at most"
        raise StoreError(message)


def encode_page(marks: Marks) -> bytes:
    """Return marks, in any order, as one page.

    Raises `StoreError` when the columns differ in length, or as `check_payloads` does.
    """
    (page,) = _encoded(marks, [0, marks.count])
    return page


def encode_pages(marks: Marks) -> list[Page]:
    """Return marks, ascending by digest, as the pages of a sorted file; raises `StoreError` as `encode_page` does."""
    if not marks.count:
        return []
    bounds = _page_bounds(marks)
    ranks = digest_ranks(marks.digests)[bounds[:-1]].tolist()
    return list(map(Page, ranks, _encoded(marks, bounds), map(sub, bounds[1:], bounds)))


def decode_page(page: bytes) -> Marks:
    """Return the marks of a page, in its order.

    Raises `StoreCorruptError` when the bytes do not fit together.
    """
    if len(page) < _HEAD_BYTES:
        raise _corrupt(page, f"a page has {_HEAD_BYTES} bytes at least")
    return _alike(_layout(page[_COUNT_BYTES:_HEAD_BYTES]), [page])


def decode_pages(pages: Sequence[bytes]) -> Marks:
    """Return the marks of pages, one after the other; raises `StoreCorruptError` as `decode_page` does."""
    if pages and min(map(len, pages)) < _HEAD_BYTES:
        raise _corrupt(min(pages, key=len), f"a page has {_HEAD_BYTES} bytes at least")
    return join_marks([_alike(_layout(head), list(some)) for head, some in groupby(pages, _head)])


def _head(page: bytes) -> bytes:
    return page[_COUNT_BYTES:_HEAD_BYTES]


def marks_in_page(page: bytes) -> int:
    """Return how many marks a page says that it has."""
    return int.from_bytes(page[:_COUNT_BYTES], "little")


def _alike(layout: _Layout, pages: list[bytes]) -> Marks:
    """Return the marks of pages that have one layout."""
    bodies, payloads = [], []
    for page in pages:
        end = _HEAD_BYTES + layout.stride * int.from_bytes(page[:_COUNT_BYTES], "little")
        bodies.append(page[_HEAD_BYTES:end])
        if layout.flags & _PAYLOADS:
            payloads += _payloads(page, end)
        elif len(page) != end:
            raise _corrupt(page, f"its head wants {end} bytes")
    table = np.frombuffer(b"".join(bodies), np.uint8).reshape(-1, layout.stride)
    (first, second, third), (offset, time, number) = layout.widths, layout.least
    times_at, numbers_at = DIGEST_BYTES + first, DIGEST_BYTES + first + second
    return Marks(
        table[:, :DIGEST_BYTES].tobytes(),
        _column(table[:, DIGEST_BYTES:times_at], offset),
        _column(table[:, times_at:numbers_at], time),
        _column(table[:, numbers_at : numbers_at + third], number) if layout.flags & _NUMBERS else None,
        payloads if layout.flags & _PAYLOADS else None,
    )


def _payloads(page: bytes, sizes_at: int) -> list[bytes]:
    count = marks_in_page(page)
    end = sizes_at + _SIZE.itemsize * count
    sizes: list[int] = np.frombuffer(page, _SIZE, count, sizes_at).tolist() if len(page) >= end else []
    if len(page) != end + sum(sizes):
        raise _corrupt(page, f"its head wants {end + sum(sizes)} bytes")
    return [page[start:stop] for start, stop in pairwise(accumulate(sizes, initial=end))]


def decode_items(items: Sequence[tuple[bytes, bytes]]) -> Marks:
    """Return the marks of keys and pages of a sorted file, one after the other.

    Raises `StoreCorruptError` as `decode_page` does, and when a page does not lie where look-ups would find it.
    """
    for key, page in items:
        if len(key) != _KEY.size or key[_RANK_BYTES:] != page[_HEAD_BYTES : _HEAD_BYTES + _RANK_BYTES]:
            message = f"a page of {len(page)} bytes lies at key {key.hex()}, not at its first digest; rebuild the store"
            raise StoreCorruptError(message)
    return decode_pages([page for _, page in items])


def find_in_pages(
    pages: Iterable[bytes | None],
    digests: Iterable[bytes],
    positions: Iterable[int],
    found: dict[int, FoundMark],
) -> None:
    """Note in ``found``, by its position, the mark of each digest that the page beside it has; a later one takes an earlier one's place.

    Raises `StoreCorruptError` when a page is cut off.
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
        # Neighbours mostly have one head.
        if page[rest] != head:
            head = page[rest]
            layout = _layout(head)
        end = place + layout.stride
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
    """Return the mark of a digest, None when the page does not have it; raises `StoreCorruptError` as `find_in_pages` does."""
    if len(page) < _HEAD_BYTES:
        raise _corrupt(page, f"a page has {_HEAD_BYTES} bytes at least")
    return _find(page, digest, _layout(_head(page)))


def _find(page: bytes, digest: bytes, layout: _Layout) -> FoundMark | None:
    stride, count = layout.stride, marks_in_page(page)
    end = _HEAD_BYTES + stride * count
    if len(page) < end:
        raise _corrupt(page, f"its head wants {end} bytes")
    place = page.find(digest, _HEAD_BYTES, end)
    # A digest lies at the beginning of a mark; what reaches from one mark into the next is none.
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


def _encoded(marks: Marks, bounds: list[int]) -> list[bytes]:
    """Return the pages between consecutive bounds; all have the same widths and least values."""
    _check_columns(marks)
    count, numbers = marks.count, marks.numbers
    payloads = marks.payloads if marks.bear_payloads else None
    columns: list[NDArray[np.uint8]] = []
    least, widths = [0, 0, 0], [0, 0, 0]
    for index, column in enumerate((marks.offsets, marks.timestamps, numbers)):
        if column is None or not count:
            continue
        least[index] = int(column.min())
        above = column.astype(np.uint64) - np.uint64(least[index] % 2**64)
        widths[index] = (int(above.max()).bit_length() + 7) // 8
        table = above.astype(_WORD, copy=False).view(np.uint8).reshape(count, _WORD_BYTES)
        columns.append(table[:, : widths[index]])
    table = np.concatenate(
        [np.frombuffer(marks.digests, np.uint8).reshape(count, DIGEST_BYTES), *columns], axis=1
    )
    body, stride = table.tobytes(), table.shape[1]
    flags = (_NUMBERS if numbers is not None else 0) | (_PAYLOADS if payloads is not None else 0)
    head = _LAYOUT.pack(flags, *widths, *least)
    pages = []
    for start, end in pairwise(bounds):
        page = (end - start).to_bytes(_COUNT_BYTES, "little") + head + body[stride * start : stride * end]
        if payloads is not None:
            some = cut_marks(marks, start, end)
            page = b"".join((page, some.payload_sizes.astype(_SIZE).tobytes(), some.payloads_joined))
        pages.append(page)
    return pages


def _check_columns(marks: Marks) -> None:
    count, numbers = marks.count, marks.numbers
    if len(marks.digests) != DIGEST_BYTES * count or len(marks.timestamps) != count:
        message = f"marks of {len(marks.digests)} digest bytes, {count} offsets, {len(marks.timestamps)} timestamps: columns differ"
        raise StoreError(message)
    if numbers is not None and len(numbers) != count:
        message = f"marks of {count} offsets and {len(numbers)} numbers: columns differ"
        raise StoreError(message)
    check_payloads(marks)


def _page_bounds(marks: Marks) -> list[int]:
    """Return where the pages of ascending marks begin, and where the last one ends."""
    ranks = digest_ranks(marks.digests).astype(np.uint32)
    changes = np.concatenate((np.flatnonzero(ranks[1:] != ranks[:-1]) + 1, [marks.count]))
    if not marks.bear_payloads and len(changes) == marks.count:
        return [*range(0, marks.count, PAGE_MARKS), marks.count]
    sizes = marks.payload_sizes if marks.bear_payloads else np.zeros(marks.count, np.int64)
    ends = np.cumsum(sizes)
    bounds = [0]
    while (start := bounds[-1]) < marks.count:
        before = int(ends[start - 1]) if start else 0
        by_bytes = int(np.searchsorted(ends, before + PAGE_BYTES)) + 1
        wanted = min(start + PAGE_MARKS, max(by_bytes, start + 1), marks.count)
        bounds.append(int(changes[np.searchsorted(changes, wanted)]))
    return bounds


def _column(rows: NDArray[np.uint8], least: int) -> Int64s:
    words = np.zeros((len(rows), _WORD_BYTES), np.uint8)
    words[:, : rows.shape[1]] = rows
    above = words.view(_WORD).ravel().astype(np.uint64, copy=False)
    return (above + np.uint64(least % 2**64)).view(np.int64)


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

    Of marks with the same digest and offset the one with the earliest timestamp stays, which is forgotten first, so that it does
    not hang on the order in which they come (any timestamp before none); of those with the same timestamp, too, the last one given.
    """
    return _last_per_digest(marks, marks.timestamps)


def newest_given(marks: Marks) -> Marks:
    """Do as `newest_per_digest`, but of marks with the same digest and offset the last one given stays, whatever its timestamp."""
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
    """Return in which order rows of shape ``(n,)`` ascend by digest (its words), and those of a digest by offset.

    With ``timestamps`` (ms) those of an offset come from none (below 0) over the latest to the earliest.
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
    among = np.sort(order[tied])
    keys = [offsets[among], low[among], high[among]]
    if timestamps is not None:
        times = timestamps[among]
        keys.insert(0, np.where(times < 0, _NO_TIME, -times))
    order[tied] = among[np.lexsort(keys)]
    return order


_STEP_MAGIC: Final = b"DJ"
STEP_FORMAT: Final = 10

_STEP: Final = struct.Struct("<2sBBIII10q2q8s")
_RANGE: Final = struct.Struct("<qq")
_CRC: Final = struct.Struct("<I")
_COMMITTED, _SINCE_MS, _SINCE_NUMBER, _DELTA, _EPOCH, _WITNESS = 2, 4, 8, 16, 32, 128
_EMPTY_PAGE: Final = encode_page(NO_MARKS)
"""Many steps have no marks: a commit, or the start of a partition, writes one."""
_FLAGS: Final = _COMMITTED | _SINCE_MS | _SINCE_NUMBER | _DELTA | _EPOCH | _WITNESS


def encode_step(progress: Progress, marks: Marks) -> bytes:
    """Return the journal record of one step.

    Raises `StoreError` when a number does not fit in 64 bits, or as `encode_page` does.
    """
    page = encode_page(marks) if marks.digests or len(marks.offsets) else _EMPTY_PAGE
    era, witness = progress.era.encode(), progress.witness
    flags = (
        (_COMMITTED if progress.committed is not None else 0)
        | (_SINCE_MS if progress.since_ms is not None else 0)
        | (_SINCE_NUMBER if progress.since_number is not None else 0)
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
                _STEP_MAGIC, STEP_FORMAT, flags, len(progress.done), len(era), len(page), progress.low, progress.high, progress.committed or 0,
                progress.since_ms or 0, progress.accepted, progress.since_number or 0, progress.newest_ms, progress.floor_number,
                progress.dropped_to, progress.epoch or 0, *seen,
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
    """Return what `encode_step` was given.

    Raises `StoreCorruptError` when the bytes are foreign, truncated, too many, changed, or of another format.
    """
    if len(record) < _STEP.size + _CRC.size or record[:2] != _STEP_MAGIC:
        raise _corrupt_step(record, "it does not begin as one")
    _, version, flags, done_count, era_size, page_size, *words = _STEP.unpack_from(record)
    if version != STEP_FORMAT:
        raise _corrupt_step(record, f"its format is {version}, this version reads {STEP_FORMAT}")
    era_at = _STEP.size + done_count * _RANGE.size
    page_at = era_at + era_size
    expected = page_at + page_size + _CRC.size
    if len(record) != expected or flags & ~_FLAGS:
        raise _corrupt_step(record, f"its header (flags {flags}) wants {expected} bytes")
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
        since_ms=since_ms if flags & _SINCE_MS else None,
        accepted=accepted,
        since_number=since_number if flags & _SINCE_NUMBER else None,
        newest_ms=newest_ms,
        epoch=epoch if flags & _EPOCH else None,
        delta=bool(flags & _DELTA),
        witness=Witness(offset, timestamp_ms, check.hex()) if flags & _WITNESS else None,
        floor_number=floor,
        dropped_to=dropped_to,
    )
    page = record[page_at : page_at + page_size]
    return progress, NO_MARKS if page == _EMPTY_PAGE else decode_page(page)


def _corrupt_step(record: bytes, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"a journal record of {len(record)} bytes cannot be read: {why}; rebuild the store"
    )
