"""The faults of disks: bytes that change, ends that are missing, files that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import random
    from pathlib import Path

_LARGER_THAN_WHAT_A_STORE_SAYS_OF_ITSELF = 8_192
Damage = Literal["flip", "cut", "zero", "empty", "gone"]


def damage_file(path: Path, kind: Damage, source: random.Random) -> None:
    """Change a file in place, at a place of the source's choice."""
    data = bytearray(path.read_bytes())
    at = source.randrange(len(data))
    if kind == "gone":
        path.unlink()
        return
    if kind == "flip":
        data[at] ^= 1 << source.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "zero":
        data[at : at + 64] = bytes(len(data[at : at + 64]))
    else:
        data.clear()
    path.write_bytes(data)


def flip_marks(folder: Path) -> None:
    """Change bytes all over every sorted file of marks below a folder, in place: who has one open sees it."""
    large = [
        path
        for path in folder.rglob("*.sst")
        if path.stat().st_size > _LARGER_THAN_WHAT_A_STORE_SAYS_OF_ITSELF
    ]
    assert large, "there are no marks to damage"
    for path in large:
        with path.open("r+b") as file:
            for place in range(0, path.stat().st_size // 2, 64):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 0xFF]))
