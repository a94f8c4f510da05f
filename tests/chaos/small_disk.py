"""Small disks (tmpfs), which can be filled; mounting needs root."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SIZE_MIB: Final = 24
_BALLAST: Final = "ballast"
_BLOCK: Final = bytes(65_536)


class NoMountError(Exception):
    """Small disks cannot be mounted here."""


@contextmanager
def small_disks(folders: list[Path]) -> Iterator[None]:
    """Mount a small disk at each folder while the block runs; raises `NoMountError` where that is not allowed."""
    mounted: list[Path] = []
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            command = [
                _program("mount"),
                "-t",
                "tmpfs",
                "-o",
                f"size={_SIZE_MIB}m,mode=700",
                "tmpfs",
                str(folder),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise NoMountError(
                    f"a small disk cannot be mounted ({done.stderr.strip()}): run this as root"
                )
            mounted.append(folder)
        yield
    finally:
        for folder in mounted:
            subprocess.run([_program("umount"), "--lazy", str(folder)], capture_output=True, check=False)


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with (folder / _BALLAST).open("wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(_BLOCK)
    # The last bytes, too: a block may have been too large for them.
    with (folder / _BALLAST).open("ab", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(_BLOCK[:512])


def make_room(folder: Path) -> None:
    """Undo `fill`."""
    with suppress(FileNotFoundError):
        (folder / _BALLAST).unlink()


def _program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NoMountError(f"a small disk cannot be mounted: there is no program {name}")
    return found
