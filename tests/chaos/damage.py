"""Bytes that change on a disk."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 8


def flip_bytes(folder: Path, chosen: random.Random) -> str:
    """Change a few bytes of one file below a folder, each kind of file as likely as any other; return the kind.

    Empty when there is no file that matters: RocksDB's own log is for people.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    files = [path for path in files if path.name != "LOG" and not path.name.startswith("LOG.old")]
    if not files:
        return ""
    kind = chosen.choice(sorted({_kind(path) for path in files}))
    path = chosen.choice([path for path in files if _kind(path) == kind])
    content = bytearray(path.read_bytes())
    for _ in range(chosen.randint(1, _MOST_BYTES)):
        content[chosen.randrange(len(content))] ^= chosen.randint(1, 255)
    path.write_bytes(content)
    return kind


def _kind(path: Path) -> str:
    """Return e.g. ``sst`` or ``manifest``: RocksDB numbers files without a suffix."""
    return (path.suffix.lstrip(".") or path.name.split("-")[0]).lower()
