"""Disks without room: a real one of a few megabytes, and a store in memory that pretends."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._store.memory import MemoryPartition, MemoryStore
from dedup_sdk.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dedup_sdk._marks import Marks, Progress
    from dedup_sdk._store.protocol import Identity, KeyStore
    from dedup_sdk._window import Window


def keeping(recent_marks: int, store: KeyStore | None = None) -> KeyStore:
    """A store whose next engine keeps so many recent marks; in memory by default."""
    changed: Any = MemoryStore() if store is None else store
    changed.recent_marks = recent_marks
    return changed  # type: ignore[no-any-return]


class FullStore(MemoryStore):
    """A store in memory that refuses every write while ``full``."""

    full = False

    def open(self, identity: Identity, window: Window) -> FullPartition:
        """See `KeyStore.open`."""
        super().open(identity, window).close()
        held = self._partitions[identity.cluster, identity.group, identity.topic, identity.partition]
        partition = FullPartition(held)
        partition.disk = self
        return partition


class FullPartition(MemoryPartition):
    """A partition of a `FullStore`."""

    disk: FullStore

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        self._refuse()
        super().append(progress, marks)

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        self._refuse()
        super().flush(progress, marks)

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`."""
        return not self.disk.full

    def _refuse(self) -> None:
        if self.disk.full:
            raise StoreUnavailableError("there is no room")


class SmallDisk:
    """A file system of its own; one file takes its room."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the room that is left."""
        with contextlib.suppress(OSError), self._ballast.open("ab", buffering=0) as file:
            while file.write(bytes(4096)) == 4096:
                pass

    def make_room(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system of this size in memory; skip the test where that is not allowed."""
    folder.mkdir()
    mount, unmount = shutil.which("mount") or "/bin/false", shutil.which("umount") or "/bin/false"
    command = [mount, "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system of its own cannot be mounted here")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run([unmount, "--lazy", str(folder)], check=True)
