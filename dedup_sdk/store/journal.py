"""The journal record of a step: the progress, and the marks that were completed with it.

Layout, little-endian::

magic        2 bytes  "DJ"
format       uint8    10
flags        uint8    2: committed  4: since_ms  8: since_number  16: the done ranges are a delta
(`dedup_sdk.progress.latest`)  32: leader epoch  128: witness
A field without its flag is 0 and means None.
done         uint32   d
era          uint32   e bytes
page         uint32   p bytes
low, high, committed, since_ms, accepted, since_number, newest_ms, floor_number, dropped_to      9 x int64
epoch        int64
witness      int64 offset, int64 timestamp, 8 bytes check
done ranges  d x (int64 start, int64 end)
era          e bytes of UTF-8
marks        p bytes  one page (`pages`), its marks in the order of their completion
checksum     uint32   CRC-32 (zlib) of everything before it

One value a step, not one a mark: a step is one put, in one atomic write with its progress. RocksDB's ``write()`` holds
the interpreter's lock, so that many puts would stop all threads.
"""

from __future__ import annotations

import struct
from itertools import starmap
from typing import Final
from zlib import crc32

from dedup_sdk.errors import StoreCorruptError, StoreError
from dedup_sdk.marks import NO_MARKS, Marks
from dedup_sdk.progress import Progress, Witness
from dedup_sdk.store.pages import decode_page, encode_page

MAGIC: Final = b"DJ"
FORMAT: Final = 10

_HEADER: Final = struct.Struct("<2sBBIII10q2q8s")
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
            _HEADER.pack(
                MAGIC, FORMAT, flags, len(progress.done), len(era), len(page), progress.low, progress.high, progress.committed or 0,
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
    if len(record) < _HEADER.size + _CRC.size or record[:2] != MAGIC:
        raise _corrupt(record, "it does not begin as one")
    _, version, flags, done_count, era_size, page_size, *words = _HEADER.unpack_from(record)
    if version != FORMAT:
        raise _corrupt(record, f"its format is {version}, this version reads {FORMAT}")
    era_at = _HEADER.size + done_count * _RANGE.size
    page_at = era_at + era_size
    expected = page_at + page_size + _CRC.size
    if len(record) != expected or flags & ~_FLAGS:
        raise _corrupt(record, f"its header (flags {flags}) wants {expected} bytes")
    if crc32(memoryview(record)[: -_CRC.size]) != _CRC.unpack_from(record, expected - _CRC.size)[0]:
        raise _corrupt(record, "its checksum differs")
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
        done=tuple(_RANGE.iter_unpack(record[_HEADER.size : era_at])),
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


def _corrupt(record: bytes, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"a journal record of {len(record)} bytes cannot be read: {why}; rebuild the store"
    )
