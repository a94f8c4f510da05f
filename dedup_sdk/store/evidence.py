"""Damaged partition stores, moved out of the way and kept: ``<partition>.damaged-<n>`` beside where they were."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

from rocksdict import Options, Rdict

from dedup_sdk.errors import StoreError, StoreLockedError
from dedup_sdk.store.rocks_errors import translated

MOST_KEPT: Final = 3
_DAMAGED: Final = re.compile(r"(\d+)\.damaged-(\d{1,18})")


def set_aside(folder: Path) -> Path:
    """Rename a partition's folder, and return what it is called now; of those of a partition the newest `MOST_KEPT` stay.

    Raises `StoreLockedError` while somebody has it open, and `StoreError` when it cannot be renamed.
    """
    _refuse_open(folder)
    kept = list_evidence(folder)
    number = 1 + max((_number(path) for path in kept), default=0)
    target = folder.with_name(f"{folder.name}.damaged-{number}")
    try:
        folder.rename(target)
    except OSError as error:
        message = f"damaged store {folder} cannot be moved to {target.name} ({error.strerror}); move it away yourself"
        raise StoreError(message) from error
    for old in kept[: len(kept) + 1 - MOST_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def list_evidence(folder: Path) -> list[Path]:
    """Return the damaged stores that are kept of a partition, oldest first."""
    names = [
        path
        for path in folder.parent.glob(f"{folder.name}.damaged-*")
        if (found := _DAMAGED.fullmatch(path.name)) and found[1] == folder.name
    ]
    return sorted(names, key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _refuse_open(folder: Path) -> None:
    """Raise `StoreLockedError` when somebody has a store open; RocksDB itself says so, which asks before it reads anything."""
    options = Options(raw_mode=True)
    options.create_if_missing(False)
    try:
        # One family named of several: where the lock is free it goes no further than that.
        Rdict(str(folder), options, column_families={"default": options}).close()
    except Exception as error:
        if isinstance(better := translated(error, folder), StoreLockedError):
            raise better from error
