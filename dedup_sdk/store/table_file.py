"""RocksDB's block-based tables, written as columns.

RocksDB's own writer takes one key at a time, with the interpreter's lock held; it was the largest single cost of remembering.
A table of marks has keys of 16 bytes and values of one length, so that all entries look alike, and whole blocks are laid out
by a few array operations. RocksDB takes the files in as it does its own, and compresses them when it merges them.

The layout is RocksDB's "block-based table", format version 5, uncompressed; blocks are protected by XXH64. Entry of a data block::

    0, 24, w     3 x uint8       bytes shared with the key before, bytes of the key, bytes of the value: 16 or 24
    digest       16 bytes
    1            uint64          sequence number 0, kind 1 ("value")
    value        w bytes         `codec`: offset, timestamp, number

Data blocks, the index (last digest of each block -> its place), the properties, the index of the properties, and the footer
follow one another. There is no Bloom filter inside: look-ups pass the store's own filters first, and merging adds RocksDB's.
"""

from __future__ import annotations

import secrets
import string
import struct
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.store.xxh64 import xxh64, xxh64_rows

_FORMAT_VERSION: Final = 5
_CHECKSUM_XXH64: Final = 3
_FOOTER_END: Final = struct.pack("<IQ", _FORMAT_VERSION, 0x88E241B785F4CFF7)
_FOOTER_HANDLES_BYTES: Final = 40
_TRAILER: Final = struct.Struct("<BI")
_BLOCK_BYTES: Final = 4096
_RESTART_EVERY: Final = 16
_KEY_BYTES: Final = DIGEST_BYTES + 8
_VALUE_KIND: Final = 1
_PLACE_BYTES: Final = 8
_OFFSET_VARINT_BYTES: Final = 5
_SIZE_VARINT_BYTES: Final = 3
_SESSION_LETTERS: Final = string.digits + string.ascii_uppercase
_SESSION_LENGTH: Final = 20

_Raw = NDArray[np.uint8]


class TableWriter:
    """Writes one table: `add` marks ascending by digest, `finish`. Raises OSError; what it wrote is the caller's to remove.

    Whether marks bear acceptance numbers must not change between two calls.
    """

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._end = 0
        self._marks = 0
        self._value_bytes = 0
        self._last_digests: list[_Raw] = []
        self._places: list[NDArray[np.int64]] = []

    def add(self, marks: Marks) -> None:
        """Append marks; the last block of each call may be shorter than the others."""
        if not marks.count:
            return
        entries = _entries(marks)
        each = max(1, _BLOCK_BYTES // entries.itemsize)
        whole = marks.count // each * each
        for part in (entries[:whole].reshape(-1, each), entries[whole:].reshape(1, -1)):
            if part.size:
                self._write_blocks(part)
        self._marks += marks.count
        self._value_bytes = entries.itemsize - 3 - _KEY_BYTES

    def finish(self) -> int:
        """Write what follows the marks, and close the file; return its size in bytes."""
        data_bytes = self._end
        content = self._index()
        index = self._write_block(content)
        properties = self._write_block(_block(sorted(self._properties(data_bytes, len(content)).items())))
        beginning = self._write_block(
            _block([(b"rocksdb.properties", _varint(properties[0]) + _varint(properties[1]))])
        )
        handles = b"".join(map(_varint, (*beginning, *index)))
        footer = bytes([_CHECKSUM_XXH64]) + handles.ljust(_FOOTER_HANDLES_BYTES, b"\0") + _FOOTER_END
        self._end += self._file.write(footer)
        self._file.close()
        return self._end

    def close(self) -> None:
        """Let go of the file; harmless when repeated."""
        self._file.close()

    def _write_blocks(self, entries: NDArray[np.void]) -> None:
        """Write blocks of equally many entries, shape ``(blocks, entries of a block)``."""
        blocks, each = entries.shape
        restarts = np.arange(0, each, _RESTART_EVERY, dtype="<u4") * np.uint32(entries.itemsize)
        tail = np.concatenate((restarts, [len(restarts)])).astype("<u4").view(np.uint8)
        content = each * entries.itemsize + len(tail)
        rows = np.zeros((blocks, content + _TRAILER.size), np.uint8)
        rows[:, : each * entries.itemsize] = np.ascontiguousarray(entries).view(np.uint8).reshape(blocks, -1)
        rows[:, each * entries.itemsize : content] = tail
        checksums = xxh64_rows(rows[:, : content + 1]).astype("<u4")
        rows[:, content + 1 :] = checksums.view(np.uint8).reshape(blocks, 4)
        self._file.write(rows.data)
        self._last_digests.append(
            np.ascontiguousarray(entries["digest"][:, -1]).view(np.uint8).reshape(blocks, -1)
        )
        at = self._end + np.arange(blocks, dtype=np.int64) * rows.shape[1]
        self._places.append(np.stack((at, np.full(blocks, content, np.int64)), axis=1))
        self._end += rows.size

    def _write_block(self, content: bytes) -> tuple[int, int]:
        """Write one block; return its place: offset and size."""
        checksum = xxh64(content + b"\0") & 0xFFFFFFFF
        place = self._end, len(content)
        self._end += self._file.write(content + _TRAILER.pack(0, checksum))
        return place

    def _index(self) -> bytes:
        """Lay out the index: every entry a restart, places in varints of fixed length."""
        places = np.concatenate(self._places)
        entry = np.dtype(
            [("head", np.uint8, 3), ("digest", np.uint8, DIGEST_BYTES), ("place", np.uint8, _PLACE_BYTES)]
        )
        entries = np.zeros(len(places), entry)
        entries["head"] = (0, DIGEST_BYTES, _PLACE_BYTES)
        entries["digest"] = np.concatenate(self._last_digests)
        entries["place"][:, :_OFFSET_VARINT_BYTES] = _varints(places[:, 0], _OFFSET_VARINT_BYTES)
        entries["place"][:, _OFFSET_VARINT_BYTES:] = _varints(places[:, 1], _SIZE_VARINT_BYTES)
        restarts = np.arange(len(places), dtype="<u4") * np.uint32(entry.itemsize)
        return entries.tobytes() + restarts.tobytes() + struct.pack("<I", len(places))

    def _properties(self, data_bytes: int, index_bytes: int) -> dict[bytes, bytes]:
        """Return what RocksDB wants to know of a table, and of one that it did not write itself."""
        blocks = sum(map(len, self._places))
        counts = {
            b"data.size": data_bytes, b"num.data.blocks": blocks, b"num.entries": self._marks,
            b"raw.key.size": self._marks * _KEY_BYTES, b"raw.value.size": self._marks * self._value_bytes,
            b"deleted.keys": 0, b"merge.operands": 0, b"num.range-deletions": 0, b"num.filter_entries": 0, b"filter.size": 0,
            b"format.version": _FORMAT_VERSION, b"index.key.is.user.key": 1, b"index.value.is.delta.encoded": 0,
            b"fixed.key.length": 0, b"creation.time": 0, b"oldest.key.time": 0, b"key.largest.seqno": 0, b"original.file.number": 1,
            b"tail.start.offset": data_bytes, b"index.size": index_bytes, b"column.family.id": 2**31 - 1,
        }  # fmt: skip
        texts = {
            b"comparator": b"leveldb.BytewiseComparator", b"merge.operator": b"nullptr", b"prefix.extractor.name": b"nullptr",
            b"property.collectors": b"[]", b"compression": b"NoCompression",
            b"creating.db.identity": b"dedup", b"creating.host.identity": b"dedup",
            # RocksDB's block cache goes by it: two files of one session and number would be taken for each other.
            b"creating.session.identity": "".join(secrets.choice(_SESSION_LETTERS) for _ in range(_SESSION_LENGTH)).encode(),
            b"block.based.table.index.type": struct.pack("<I", 0), b"block.based.table.whole.key.filtering": b"1",
            b"block.based.table.prefix.filtering": b"0", b"external_sst_file.version": struct.pack("<I", 2),
            b"external_sst_file.global_seqno": struct.pack("<Q", 0),
        }  # fmt: skip
        properties = {name: _varint(count) for name, count in counts.items()} | texts
        return {b"rocksdb." + name: value for name, value in properties.items()}


def _entries(marks: Marks) -> NDArray[np.void]:
    """Return marks as entries of a data block, shape ``(n,)``."""
    columns = ["offset", "timestamp", "number"][: 2 if marks.numbers is None else 3]
    entry = np.dtype(
        [
            ("head", np.uint8, 3),
            ("digest", f"V{DIGEST_BYTES}"),
            ("trailer", "<u8"),
            *((name, "<i8") for name in columns),
        ]
    )
    entries = np.empty(marks.count, entry)
    entries["head"] = (0, _KEY_BYTES, 8 * len(columns))
    entries["digest"] = np.frombuffer(marks.digests, f"V{DIGEST_BYTES}")
    entries["trailer"] = _VALUE_KIND
    for name, column in zip(columns, (marks.offsets, marks.timestamps, marks.numbers), strict=False):
        entries[name] = column
    return entries


def _block(entries: list[tuple[bytes, bytes]]) -> bytes:
    """Lay out a small block, every entry a restart."""
    content, restarts = b"", []
    for key, value in entries:
        restarts.append(len(content))
        content += _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value
    return content + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def _varint(number: int) -> bytes:
    """Encode an unsigned number, seven bits a byte, the lowest first; the high bit says that more follow."""
    out = bytearray()
    while number > 127:  # noqa: PLR2004
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _varints(numbers: NDArray[np.int64], width: int) -> _Raw:
    """Encode numbers as varints of exactly ``width`` bytes, shape ``(n, width)``: zeros on top are allowed."""
    if numbers.size and int(numbers.max()) >> (7 * width):
        message = f"a table of more than {2 ** (7 * width)} bytes; write smaller ones"
        raise ValueError(message)
    shifts = np.arange(width, dtype=np.int64) * 7
    digits = (numbers[:, None] >> shifts) & 127
    digits[:, :-1] |= 128
    return digits.astype(np.uint8)
