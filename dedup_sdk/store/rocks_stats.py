"""What a partition's database takes of memory and disk."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from shutil import disk_usage
from typing import Final

from rocksdict import Rdict

from dedup_sdk.store.protocol import StoreStats
from dedup_sdk.store.rocks_generations import RocksGenerations
from dedup_sdk.store.sorted_file import SORTED_SUFFIX

_LEAST_ROOM_BYTES: Final = 2**20
_PROBE: Final = "writable"
_PROBE_BYTES: Final = 4096


def live_bytes(folder: Path, database: Rdict) -> int:
    """Return the bytes on disk: of sorted files those that are valid, since what was dropped goes a little later."""
    size = sum(int(entry["size"]) for entry in database.live_files())
    for pattern in ("*.log", "filters/*"):
        for path in folder.glob(pattern):
            with suppress(FileNotFoundError):
                size += path.stat().st_size
    return size


def is_writable(folder: Path) -> bool:
    """Whether the database can be opened: its disk takes a file, and has room for what its log holds, which becomes sorted files then.

    Raises `FileNotFoundError` where the folder is gone.
    """
    probe = folder / _PROBE
    try:
        logged = sum(path.stat().st_size for path in folder.glob("*.log"))
        if disk_usage(folder).free < _LEAST_ROOM_BYTES + 2 * logged:
            return False
        with probe.open("wb", buffering=0) as file:
            # A disk without room, or a limit of the process, may take a part.
            whole = file.write(bytes(_PROBE_BYTES)) == _PROBE_BYTES
            os.fsync(file.fileno())
        probe.unlink()
    except FileNotFoundError:
        raise
    except OSError:
        with suppress(OSError):
            probe.unlink()
        return False
    return whole


def stats_of(folder: Path, generations: RocksGenerations, recent: int) -> StoreStats:
    """Return the figures of an open store; ``recent``: the marks in its journal."""
    sizes: list[tuple[str, int]] = []
    for path in folder.rglob("*"):
        # Compaction may have just removed it.
        with suppress(FileNotFoundError):
            sizes.append((path.suffix, path.lstat().st_size))
    return StoreStats(
        marks=generations.state.marks,
        recent=recent,
        disk_bytes=sum(size for _, size in sizes),
        filter_bytes=generations.filter_bytes,
        files=sum(suffix == SORTED_SUFFIX for suffix, _ in sizes),
        details={
            "generations": len(generations.state.generations),
            "bloom_generations": generations.count_with_bloom(),
        },
    )
