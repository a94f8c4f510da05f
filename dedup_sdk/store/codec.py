"""Bytes of the key store: the value of a mark, and the journal record of a step. Little-endian throughout.

Value of a mark (the key is its 16-byte digest)::

    offset   int64
    timestamp int64   milliseconds
    number   int64    only where the lane has a count window: 24 bytes instead of 16
    payload  9 bytes or more, only where the mark has one, and then without a number: 25 bytes or more

Journal record::

    magic        2 bytes  "DJ"
    format       uint8    9
    flags        uint8    1: numbers  2: committed  4: since_ms  8: since_number  16: the done ranges are a delta
                          (`dedup_sdk.progress.latest`)  32: leader epoch  64: payloads  128: witness
                          A field without its flag is 0 and means None.
    marks        uint32   n
    done         uint32   d
    era          uint32   e bytes
    low, high, committed, since_ms, accepted, since_number, newest_ms, floor_number, dropped_to      9 x int64
    epoch        int64
    witness      int64 offset, int64 timestamp, 8 bytes check
    done ranges  d x (int64 start, int64 end)
    era          e bytes of UTF-8
    digests      n x 16 bytes
    offsets      n x int64
    timestamps   n x int64
    numbers      n x int64, only with flag 1 (never with flag 64)
    payloads     n x uint32 lengths (0: none), and the bytes of all payloads; only with flag 64
    checksum     uint32   CRC-32 (zlib) of everything before it
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.errors import StoreCorruptError, StoreError
from dedup_sdk.marks import DIGEST_BYTES, Int64s, Marks
from dedup_sdk.progress import Progress, Witness

MAGIC: Final = b"DJ"
FORMAT: Final = 9

_HEADER: Final = struct.Struct("<2sBBIII10q2q8s")
_RANGE: Final = struct.Struct("<qq")
_CRC: Final = struct.Struct("<I")
_I64: Final = np.dtype("<i8")
_SIZE: Final = np.dtype("<u4")
_NUMBERS, _COMMITTED, _SINCE_MS, _SINCE_NUMBER, _DELTA, _EPOCH, _PAYLOADS, _WITNESS = (
    1,
    2,
    4,
    8,
    16,
    32,
    64,
    128,
)
VALUE_BYTES: Final = 16
NUMBERED_VALUE_BYTES: Final = 24
LEAST_PAYLOAD_BYTES: Final = NUMBERED_VALUE_BYTES - VALUE_BYTES + 1
"""A shorter one could not be told from a number."""
MOST_PAYLOAD_BYTES: Final = 2**31


def check_payloads(marks: Marks) -> None:
    """Refuse payloads that cannot be stored: of 1 to 8 bytes, of more than 2 GiB, or in a lane that numbers its marks.

    Raises `StoreError`, also when there are more or fewer payloads than marks.
    """
    if marks.payloads is None:
        return
    if len(marks.payloads) != marks.count:
        message = f"marks of {marks.count} offsets and {len(marks.payloads)} payloads: columns differ"
        raise StoreError(message)
    sizes = set(marks.payload_sizes.tolist()) - {0}
    if not sizes:
        return
    if marks.numbers is not None:
        message = "marks have numbers and payloads: a lane with a count window keeps no payload"
        raise StoreError(message)
    if min(sizes) < LEAST_PAYLOAD_BYTES or max(sizes) > MOST_PAYLOAD_BYTES:
        wrong = min(sizes) if min(sizes) < LEAST_PAYLOAD_BYTES else max(sizes)
        message = f"a payload of {wrong} bytes cannot be stored: give {LEAST_PAYLOAD_BYTES} to {MOST_PAYLOAD_BYTES} bytes, or none"
        raise StoreError(message)


def encode_values(marks: Marks) -> list[bytes]:
    """Return the value of each mark: 16 bytes, or 24 where ``marks`` bear numbers, or 16 and its payload.

    Raises `StoreError` as `check_payloads` does.
    """
    check_payloads(marks)
    columns = [marks.offsets, marks.timestamps]
    if marks.numbers is not None:
        columns.append(marks.numbers)
    table = np.empty((marks.count, len(columns)), dtype=_I64)
    for index, column in enumerate(columns):
        table[:, index] = column
    values: list[bytes] = table.view(f"V{8 * len(columns)}").ravel().tolist()
    if marks.payloads is None:
        return values
    return [value + payload for value, payload in zip(values, marks.payloads, strict=True)]


def decode_values(
    values: Sequence[bytes],
) -> tuple[Int64s, Int64s, Int64s | None, list[bytes] | None]:
    """Return the offsets, timestamps, numbers (0 for those without) and payloads (b"") of mark values; None where no value has any.

    Raises `StoreCorruptError` when a value is shorter than 16 bytes, or between 16 and 24.
    """
    lengths = set(map(len, values))
    if lengths and max(lengths) > NUMBERED_VALUE_BYTES:
        plain = [value if len(value) <= NUMBERED_VALUE_BYTES else value[:VALUE_BYTES] for value in values]
        payloads = [b"" if len(value) <= NUMBERED_VALUE_BYTES else value[VALUE_BYTES:] for value in values]
        return (*decode_values(plain)[:3], payloads)
    if len(lengths) > 1:
        values = [
            value.ljust(NUMBERED_VALUE_BYTES, b"\0") if len(value) == VALUE_BYTES else value
            for value in values
        ]
        lengths = set(map(len, values))
    width = lengths.pop() if lengths else VALUE_BYTES
    if lengths or width not in (VALUE_BYTES, NUMBERED_VALUE_BYTES):
        wrong = next(len(value) for value in values if len(value) not in (VALUE_BYTES, NUMBERED_VALUE_BYTES))
        message = f"a mark of {wrong} bytes is not of 16 or 24, or 25 and more; rebuild the store from the topic or from a snapshot"
        raise StoreCorruptError(message)
    table = np.frombuffer(b"".join(values), dtype=_I64).reshape(-1, width // 8).astype(np.int64)
    return table[:, 0], table[:, 1], table[:, 2] if width == NUMBERED_VALUE_BYTES else None, None


def encode_step(progress: Progress, marks: Marks) -> bytes:
    """Return the journal record of one step.

    Raises `StoreError` when the columns differ in length, a number does not fit in 64 bits, or as `check_payloads` does.
    """
    count, numbers = marks.count, marks.numbers
    if len(marks.digests) != DIGEST_BYTES * count or len(marks.timestamps) != count:
        message = f"marks of {len(marks.digests)} digest bytes, {count} offsets, {len(marks.timestamps)} timestamps: columns differ"
        raise StoreError(message)
    check_payloads(marks)
    payloads = marks.payloads if marks.bear_payloads else None
    era, witness = progress.era.encode(), progress.witness
    flags = (
        (_NUMBERS if numbers is not None else 0)
        | (_COMMITTED if progress.committed is not None else 0)
        | (_SINCE_MS if progress.since_ms is not None else 0)
        | (_SINCE_NUMBER if progress.since_number is not None else 0)
        | (_DELTA if progress.delta else 0)
        | (_EPOCH if progress.epoch is not None else 0)
        | (_PAYLOADS if payloads is not None else 0)
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
                MAGIC, FORMAT, flags, count, len(progress.done), len(era), progress.low, progress.high, progress.committed or 0,
                progress.since_ms or 0, progress.accepted, progress.since_number or 0, progress.newest_ms, progress.floor_number,
                progress.dropped_to, progress.epoch or 0, *seen,
            ),
            *[_RANGE.pack(start, end) for start, end in progress.done],
            era,
            marks.digests,
            _bytes(marks.offsets),
            _bytes(marks.timestamps),
        ]  # fmt: skip
    except struct.error as error:
        message = f"progress {progress} cannot be stored: {error}"
        raise StoreError(message) from error
    if numbers is not None:
        if len(numbers) != count:
            message = f"marks of {count} offsets and {len(numbers)} numbers: columns differ"
            raise StoreError(message)
        parts.append(_bytes(numbers))
    if payloads is not None:
        parts += [marks.payload_sizes.astype(_SIZE).tobytes(), marks.payloads_joined]
    body = b"".join(parts)
    return body + _CRC.pack(crc32(body))


def decode_step(record: bytes) -> tuple[Progress, Marks]:
    """Return what `encode_step` was given.

    Raises `StoreCorruptError` when the bytes are foreign, truncated, too many, changed, or of another format.
    """
    if len(record) < _HEADER.size + _CRC.size or record[:2] != MAGIC:
        raise _corrupt(record, "it does not begin as one")
    _, version, flags, count, done_count, era_size, *words = _HEADER.unpack_from(record)
    if version != FORMAT:
        raise _corrupt(record, f"its format is {version}, this version reads {FORMAT}")
    width = DIGEST_BYTES + 16 + (8 if flags & _NUMBERS else 0)
    payloads_at = _HEADER.size + done_count * _RANGE.size + era_size + count * width
    sizes_bytes = _SIZE.itemsize * count if flags & _PAYLOADS else 0
    sizes: list[int] = []
    if sizes_bytes and len(record) >= payloads_at + sizes_bytes:
        sizes = np.frombuffer(record, _SIZE, count, payloads_at).tolist()
    expected = payloads_at + sizes_bytes + sum(sizes) + _CRC.size
    if len(record) != expected or (flags & _PAYLOADS and flags & _NUMBERS):
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
    at = _HEADER.size
    done = tuple(_RANGE.iter_unpack(record[at : at + done_count * _RANGE.size]))
    at += done_count * _RANGE.size
    era = record[at : at + era_size].decode()
    at += era_size
    digests = record[at : at + count * DIGEST_BYTES]
    at += count * DIGEST_BYTES
    offsets, timestamps = (_column(record, at + index * 8 * count, count) for index in range(2))
    numbers = _column(record, at + 16 * count, count) if flags & _NUMBERS else None
    progress = Progress(
        low=low,
        high=high,
        done=done,
        committed=committed if flags & _COMMITTED else None,
        era=era,
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
    if not any(sizes):
        return progress, Marks(digests, offsets, timestamps, numbers)
    if min(size for size in sizes if size) < LEAST_PAYLOAD_BYTES:
        raise _corrupt(record, f"a payload is shorter than {LEAST_PAYLOAD_BYTES} bytes")
    ends = accumulate(sizes, initial=payloads_at + sizes_bytes)
    payloads = [record[start:end] for start, end in pairwise(ends)]
    return progress, Marks(digests, offsets, timestamps, numbers, payloads)


def _bytes(column: Int64s) -> bytes:
    return column.astype(_I64, copy=False).tobytes()


def _column(record: bytes, at: int, count: int) -> NDArray[np.int64]:
    return np.frombuffer(record, dtype=_I64, count=count, offset=at).astype(np.int64, copy=False)


def _corrupt(record: bytes, why: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"a journal record of {len(record)} bytes cannot be read: {why}; rebuild the store"
    )
