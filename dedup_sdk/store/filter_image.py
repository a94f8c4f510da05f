"""The filters of a partition as they are in memory, kept on disk while nobody has the partition open.

Making them of their words costs ten times as much as reading them back. An image is believed only where it was made of exactly the
state that the store has now, and is whole; else it is as if there was none. Layout, little-endian; the file ``filters/image``::

    magic     4 bytes  "DFI3"
    checksum  uint32   CRC-32 (zlib) of everything after it
    length    uint32   of the heading, at most 16 MiB
    heading   JSON     {"state": SHA-256 of the state, hex, "segments": [{"capacity": ..., "count": ..., "extents": [{...}]}]}
    tables    uint64s  of each segment its table, ``filter.table_blocks(capacity)`` words, then those of its extents, each of
                       ``extent_filters.extent_blocks(marks)`` words, then the ranks of their pages, a word each
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np

from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.extent_filters import Extent, extent_blocks
from dedup_sdk.store.fields import Fields
from dedup_sdk.store.filter import table_blocks
from dedup_sdk.store.pages import Uint64s

IMAGE: Final = "image"

_MAGIC: Final = b"DFI3"
_HEAD: Final = struct.Struct("<4sII")
_MOST_HEADING_BYTES: Final = 2**24
_WORD_BYTES: Final = 8
_REMEDY: Final = "it is made again"


@dataclass(frozen=True, slots=True)
class SegmentImage:
    """One filter: its capacity and count in digests, where the words lie that it was made of, its table, those of the extents, and the ranks of their pages."""

    capacity: int
    count: int
    extents: tuple[Extent, ...]
    table: Uint64s
    extent_table: Uint64s
    pages: Uint64s


def write_image(path: Path, state: bytes, segments: Sequence[SegmentImage]) -> None:
    """Write the filters that belong to ``state``, whole or not at all; raises OSError."""
    heading = json.dumps(
        {
            "state": sha256(state).hexdigest(),
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
        # Not flushed to the disk: what a power cut leaves of it does not check, and nothing is lost with it.
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def read_image(path: Path, state: bytes) -> list[SegmentImage]:
    """Return the filters that were written for exactly this state.

    Raises FileNotFoundError when there is no image, `StoreCorruptError` when it is of another state or does not check, and OSError
    when it cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size or not head.startswith(_MAGIC):
            raise _wrong(path, "is no filter image of this version")
        _, checksum, length = _HEAD.unpack(head)
        if length > min(_MOST_HEADING_BYTES, size):
            raise _wrong(path, "is truncated")
        heading = file.read(length)
        words = np.fromfile(file, dtype="<u8")
    if crc32(words.data, crc32(heading, crc32(struct.pack("<I", length)))) != checksum:
        raise _wrong(path, "does not check")
    read = Fields(
        f"filter image {path} cannot be read",
        "",
        json.loads(heading),
        error=StoreCorruptError,
        remedy=_REMEDY,
    )
    if read.text("state") != sha256(state).hexdigest():
        raise _wrong(path, "is of another state of the store")
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
        raise _wrong(path, f"has {size} bytes, which is not what its heading says")
    return segments


def _extent(read: Fields) -> Extent:
    return Extent(*(read.integer(entry.name, least=0) for entry in fields(Extent)))


def _wrong(path: Path, why: str) -> StoreCorruptError:
    return StoreCorruptError(f"filter image {path} {why}; {_REMEDY}")
