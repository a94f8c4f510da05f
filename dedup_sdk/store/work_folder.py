"""A folder of this run alone beside something, gone at its end; what a killed run left is removed by the next one."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_ABANDONED_S: Final = 60
"""One that is younger may have been made, and not be locked yet."""


@contextmanager
def work_folder(beside: Path, purpose: str) -> Generator[Path, None, None]:
    """Make a private folder next to ``beside``, locked while it is in use; raises OSError where that is not possible.

    The block may move it elsewhere.
    """
    prefix = f".{beside.name}.{purpose}-"
    beside.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(beside.parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=beside.parent))
    descriptor = _locked(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{glob.escape(prefix)}*"):
        try:
            if time.time() - folder.stat().st_mtime < _ABANDONED_S:
                continue
            descriptor = _locked(folder)
        except OSError:
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """Lock a folder; the kernel gives the lock back however this process ends. Raises OSError when somebody has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
