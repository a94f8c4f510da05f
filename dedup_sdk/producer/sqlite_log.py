"""What lies in SQLite's write-ahead log, damaged places or not: SQLite reads it up to the first one, and says nothing of what comes behind.

header    magic, version, page size, number, salt 1, salt 2, checksums          32 bytes, big-endian
frame     page number, size after a commit (0: none), salt 1, salt 2, checksums  24 bytes, and a page
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct(">4I8s8s")
_FRAME: Final = struct.Struct(">2I8s8s")


def ends_of_transactions(log: Path) -> list[int]:
    """Return the numbers, from 1 on, of the frames that end a transaction of this log; frames of an earlier round have other salts."""
    ends: list[int] = []
    with log.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return ends
        _, _, page_bytes, _, salts, _ = _HEADER.unpack(header)
        number = 0
        while len(frame := file.read(_FRAME.size)) == _FRAME.size:
            number += 1
            _, size_after, of, _ = _FRAME.unpack(frame)
            if of == salts and size_after:
                ends.append(number)
            file.seek(page_bytes, 1)
    return ends
