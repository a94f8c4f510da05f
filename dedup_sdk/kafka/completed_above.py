"""What is completed above a committed offset, as the text of the commit carries it.

Offsets are completed in any order, and a commit says one of them: everything before it is done. What is done above it as well travels
in the commit's text, so that the next owner of the partition does not hand it out again.

Form: ``<ranges>.<timestamp>.<check>``

``ranges``
    lengths by turns, each an unsigned LEB128 number: how many offsets are open, how many are done, and so on, from the committed offset
    on; compressed by zlib, then Base64 with ``-`` and ``_``, without padding.
``timestamp``, ``check``
    those of the `Witness` that the last record in the ranges is. Where the log has another record there, the ranges say nothing.

A broker takes texts of 4,096 characters (``offset.metadata.max.bytes``). Where not everything fits, the nearest ranges stay.
"""

from __future__ import annotations

import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dedup_sdk.lane.ranges import Range
from dedup_sdk.progress import Witness

PATTERN: Final = r"[A-Za-z0-9_-]{1,4096}\.-?\d{1,19}\.[0-9a-f]{16}"
_MOST_BYTES: Final = 2**18
"""So many bytes of lengths are believed: more would be made of 4,096 characters by somebody who means harm."""
_MOST_OFFSET: Final = 2**63 - 1
_CONTINUES: Final = 0x80
_MOST_BITS: Final = 70


@dataclass(frozen=True, slots=True)
class CompletedAbove:
    """Half-open ranges of completed offsets, ascending, apart, and above the committed offset; ``witness`` is their last record."""

    ranges: tuple[Range, ...]
    witness: Witness

    def encode(self, at: int) -> str:
        """Return the text for a commit of offset ``at``."""
        lengths = bytearray()
        position = at
        for start, end in self.ranges:
            _put(lengths, start - position)
            _put(lengths, end - start)
            position = end
        packed = urlsafe_b64encode(zlib.compress(bytes(lengths), 9)).rstrip(b"=").decode()
        return f"{packed}.{self.witness.timestamp_ms}.{self.witness.check}"


def decode(text: str, at: int) -> CompletedAbove | None:
    """Read what `CompletedAbove.encode` wrote for a commit of offset ``at``; None where it is not that."""
    packed, timestamp, check = text.split(".")
    try:
        unpacker = zlib.decompressobj()
        lengths = unpacker.decompress(urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), _MOST_BYTES)
    except (zlib.error, ValueError):
        return None
    numbers = _numbers(lengths)
    if not unpacker.eof or unpacker.unused_data or not numbers or len(numbers) % 2:
        return None
    ranges: list[Range] = []
    position = at
    for gap, length in zip(numbers[::2], numbers[1::2], strict=True):
        if length == 0 or (gap == 0 and ranges):
            return None
        ranges.append((position + gap, position + gap + length))
        position = ranges[-1][1]
    if position > _MOST_OFFSET:
        return None
    return CompletedAbove(tuple(ranges), Witness(position - 1, int(timestamp), check))


def fitting(
    ranges: Sequence[Range], at: int, room: int, witness_of: Callable[[int], Witness | None]
) -> CompletedAbove | None:
    """Return as many of the ranges, the nearest first, as have a text of at most ``room`` characters; None where none has.

    ``witness_of`` gives the witness of an offset, None where it is not known; the last range must have one.
    """

    def attempt(count: int) -> CompletedAbove | None:
        while count:
            witness = witness_of(ranges[count - 1][1] - 1)
            if witness is not None:
                return CompletedAbove(tuple(ranges[:count]), witness)
            count -= 1
        return None

    fits, most = 0, len(ranges)
    while fits < most:
        middle = (fits + most + 1) // 2
        found = attempt(middle)
        if found is None or len(found.encode(at)) <= room:
            fits = middle
        else:
            most = middle - 1
    return attempt(fits)


def _put(lengths: bytearray, number: int) -> None:
    while number >= _CONTINUES:
        lengths.append(number % _CONTINUES | _CONTINUES)
        number //= _CONTINUES
    lengths.append(number)


def _numbers(lengths: bytes) -> list[int]:
    """Return the numbers, none where the last one is not whole or one has more than 64 bits."""
    numbers: list[int] = []
    number = shift = 0
    for byte in lengths:
        number |= (byte % _CONTINUES) << shift
        shift += 7
        if shift > _MOST_BITS:
            return []
        if byte < _CONTINUES:
            numbers.append(number)
            number = shift = 0
    return [] if shift else numbers
