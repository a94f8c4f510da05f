"""Stores beside a partition's own: ``<partition>.2`` and so on, made while another process that has lost the partition keeps its lock.

A partition has one folder at a time that anybody writes to. When neither is locked any more, the one that was written to last
becomes the partition's own again and the other is removed: either is a store of this group, at the worst an older one, which is
replayed from the topic.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dedup_sdk.errors import StoreLockedError
from dedup_sdk.store.evidence import refuse_open

log = logging.getLogger(__name__)

FIRST: Final = 2
LAST: Final = 9
_BESIDE: Final = re.compile(r"(\d+)\.(\d)")
_LEFT: Final = "left"


def places_beside(folder: Path) -> list[Path]:
    """Return where a partition's store may lie while its own folder is locked, in the order in which they are tried."""
    return [folder.with_name(f"{folder.name}.{number}") for number in range(FIRST, LAST + 1)]


@contextmanager
def holding_still(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Let no other process rename the stores of a topic meanwhile; ``alone``: nor open one.

    Raises `StoreLockedError` at once when somebody does.
    """
    topic = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(topic, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except OSError as error:
            message = f"stores in {folder.parent} are being moved by another process; try again, or end it"
            raise StoreLockedError(message) from error
        yield
    finally:
        os.close(topic)


def tidy_beside(folder: Path) -> None:
    """Bring the stores of a partition back to one, where none of them is locked; does nothing where there is only one."""
    others = [path for path in _others(folder) if path.exists()]
    if not others:
        return
    try:
        with holding_still(folder, alone=True):
            stores = [path for path in (folder, *others) if _is_free(path)]
            if folder.exists() and folder not in stores:
                return
            last = max(stores, key=_written_ns, default=folder)
            for path in stores:
                if path not in (last, folder):
                    shutil.rmtree(path)
            if last != folder:
                _replace(folder, last)
    except (OSError, StoreLockedError) as error:
        log.info("stores beside %s stay for now: %s", folder, error)


def _others(folder: Path) -> Iterator[Path]:
    for path in folder.parent.glob(f"{folder.name}.?"):
        found = _BESIDE.fullmatch(path.name)
        if found and found[1] == folder.name:
            yield path


def _is_free(path: Path) -> bool:
    try:
        refuse_open(path)
    except StoreLockedError:
        return False
    return (path / "CURRENT").exists()


def _written_ns(path: Path) -> int:
    """Return when a store was written to last, by its log: opening one writes other files too."""
    return max((log_file.stat().st_mtime_ns for log_file in path.glob("*.log")), default=0)


def _replace(folder: Path, better: Path) -> None:
    left = folder.with_name(f"{folder.name}.{_LEFT}")
    shutil.rmtree(left, ignore_errors=True)
    if folder.exists():
        folder.rename(left)
    better.rename(folder)
    shutil.rmtree(left, ignore_errors=True)
    log.info("store %s is now what was written beside it as %s", folder, better.name)
