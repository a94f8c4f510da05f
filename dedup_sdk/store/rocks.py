"""The key store in RocksDB: one database a partition; caches, buffers and open files are bounded for the whole process."""

from __future__ import annotations

import contextlib
from pathlib import Path

from dedup_sdk.checks import flag, seconds, whole
from dedup_sdk.errors import StoreCorruptError
from dedup_sdk.store.evidence import set_aside
from dedup_sdk.store.options import shared_memory
from dedup_sdk.store.paths import make_private, partition_folder, usable
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.rocks_partition import RocksPartition
from dedup_sdk.window import Window


class RocksStore:
    """A `KeyStore` in the folder ``path``, which is made when it is missing; several processes may share it.

    ``block_cache_bytes``: memory for blocks of sorted files (default 32 MiB), shared by all partitions of all stores of this process
    that ask for the same; more helps when many duplicates come in. Write buffers (64 MiB) are shared by all. ``fsync``: flush every step to the disk, so that completed records are remembered across a power
    cut too (the default remembers them when the process dies; a power cut costs a replay of the topic's tail).
    ``generation_marks``: marks that are dropped together at least (default 100,000). ``max_disk``: bytes that the partitions which
    are open here may take together; above it their oldest marks are dropped, ``generation_marks`` or more at a time, and the
    window is as long as what remains (default None: no limit). Journals of recent marks count, a merge of files may take the size of
    a generation for a moment. ``lock_wait``: seconds for which a consumer waits for another process on this host that keeps a
    partition's store open, before it warns of that; it goes on waiting.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        block_cache_bytes: int = 32 * 2**20,
        fsync: bool = False,
        generation_marks: int = 100_000,
        max_disk: int | None = None,
        lock_wait: float = 30.0,
    ) -> None:
        for name, value in (
            ("block_cache_bytes", block_cache_bytes), ("generation_marks", generation_marks), ("max_disk", max_disk),
        ):  # fmt: skip
            if value is not None:
                whole(name, value, advice="give a number above 0; leave it out for the default")
        flag("fsync", fsync)
        self.lock_wait_s = seconds("lock_wait", lock_wait)
        self._root = usable(path)
        self._max_disk_bytes = max_disk
        self._fsync = fsync
        self._generation_marks = generation_marks
        self._memory = shared_memory(block_cache_bytes)
        self._open: list[RocksPartition] = []
        self._damaged: dict[Path, tuple[int, str]] = {}

    @property
    def path(self) -> Path:
        """The folder of this store."""
        return self._root

    def open(self, identity: Identity, window: Window) -> RocksPartition:
        """See `KeyStore.open`."""
        folder = partition_folder(self._root, identity)
        self._refuse_damaged(folder)
        make_private(self._root, folder)
        self._open = [other for other in self._open if not other.closed]
        partition = RocksPartition(
            folder,
            identity,
            window,
            self._memory,
            report_damage=lambda error: self._note_damage(folder, error),
            fsync=self._fsync,
            generation_marks=self._generation_marks,
        )
        self._open += [partition]
        return partition

    def excess_bytes(self) -> int:
        """See `KeyStore.excess_bytes`; as of each partition's last flush."""
        if self._max_disk_bytes is None:
            return 0
        taken = sum(partition.disk_bytes for partition in self._open if not partition.closed)
        return max(0, taken - self._max_disk_bytes)

    def set_aside(self, identity: Identity) -> str:
        """See `KeyStore.set_aside`: the folder is renamed, e.g. to ``0.damaged-1``; the newest three stay."""
        folder = partition_folder(self._root, identity)
        kept = set_aside(folder)
        self._damaged.pop(folder, None)
        return str(kept)

    def _note_damage(self, folder: Path, error: StoreCorruptError) -> None:
        with contextlib.suppress(OSError):
            self._damaged[folder] = (folder.stat().st_ino, str(error))

    def _refuse_damaged(self, folder: Path) -> None:
        """Raise what was found when it was open: RocksDB would open it again, and find the damage only when it reads there."""
        inode, text = self._damaged.get(folder, (None, ""))
        if inode is None:
            return
        if folder.exists() and folder.stat().st_ino == inode:
            raise StoreCorruptError(text)
        del self._damaged[folder]

    def close(self) -> None:
        """See `KeyStore.close`."""
        for partition in self._open:
            partition.close()
        self._open.clear()
