"""A partition's database as it is at one moment, beside the consumer that has it open: links to its sorted files, copies of the rest.

RocksDB's own checkpoint is for the process that has the database open. What it does can be done from outside: sorted files
never change, so that a link keeps one however soon it is merged away; the list of files and the log are copied. That list must
not have changed meanwhile: else a file that it names may be missing, or what was taken out of the log be in no file yet.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from pathlib import Path
from typing import Final

from dedup_sdk.errors import StoreCorruptError, StoreLockedError

_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.02
_CURRENT: Final = "CURRENT"
_MANIFEST: Final = re.compile(rb"MANIFEST-\d{1,20}")
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def freeze(database: Path, folder: Path) -> None:
    """Make ``folder`` a copy of a partition's database as it is at one moment, to be read; nobody is disturbed.

    It takes the room of the log (32 MB at most) where ``folder`` is on the same disk, else as much as the database.
    Raises `StoreLockedError` when the database changed at every attempt, `StoreCorruptError` when it is damaged, OSError when it cannot be
    read.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        folder.mkdir(mode=0o700)
        try:
            if _frozen(database, folder):
                return
        except FileNotFoundError:
            if not (database / _CURRENT).exists():
                raise
        shutil.rmtree(folder)
    raise StoreLockedError(f"store {database} changed at each of {_ATTEMPTS} attempts to copy it; try again")


def _frozen(database: Path, folder: Path) -> bool:
    """Copy once; return whether the list of files stayed as it was."""
    before = _list_of_files(database)
    current, size, logs = before
    for path in database.glob("*.sst"):
        _link(path, folder / path.name)
    with (database / current).open("rb") as source:
        (folder / current).write_bytes(source.read(size))
    for name in logs:
        # The last one grows on: what is copied of it ends with a whole step, or with a torn one, which counts for nothing.
        shutil.copyfile(database / name, folder / name)
    (folder / _CURRENT).write_text(f"{current}\n")
    return _list_of_files(database) == before


def _list_of_files(database: Path) -> tuple[str, int, list[str]]:
    """The name and size of RocksDB's list of files, and the names of its logs, ascending."""
    current = (database / _CURRENT).read_bytes().strip()
    if not _MANIFEST.fullmatch(current):
        raise StoreCorruptError(
            f"store {database} is damaged: {_CURRENT} names {current[:80]!r}, which is no list of files; rebuild it from a snapshot or the topic"
        )
    logs = sorted((path.name for path in database.glob("*.log")), key=lambda name: (len(name), name))
    name = current.decode()
    return name, (database / name).stat().st_size, logs


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(path, target)
