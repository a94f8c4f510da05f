"""Disks without room.

Small ones (tmpfs) that are filled or, where mounting is not allowed, processes that may write no more.
"""

from __future__ import annotations

import logging
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_SIZE_MIB: Final = 24
_BALLAST: Final = "ballast"
_BLOCK: Final = bytes(65_536)


logger = logging.getLogger("chaos")


class _NoMountError(Exception):
    """Small disks cannot be mounted here."""


@contextmanager
def small_disks(folders: list[Path], *, mount: bool = True) -> Iterator[bool]:
    """Mount a small disk at each folder while the block runs; False where that is not allowed (or not wanted)."""
    mounted: list[Path] = []
    try:
        try:
            if mount:
                _mount(folders, mounted)
        except _NoMountError as error:
            logger.info("%s; processes may write no more instead", error)
            mount = False
        yield mount
    finally:
        for folder in mounted:
            subprocess.run([_program("umount"), "--lazy", str(folder)], capture_output=True, check=False)


def _mount(folders: list[Path], mounted: list[Path]) -> None:
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
            raise _NoMountError(f"a small disk cannot be mounted ({done.stderr.strip()})")
        mounted.append(folder)


def forbid_writing(pid: int) -> None:
    """Let no file of a process grow: each write is refused, as by a disk without room."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))


def allow_writing(pid: int) -> None:
    """Undo `forbid_writing`."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


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
        raise _NoMountError(f"a small disk cannot be mounted: there is no program {name}")
    return found
