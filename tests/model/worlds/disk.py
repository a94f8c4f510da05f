"""A disk under a key store: it may be full, and the process may die at any step that would be durable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from dedup_sdk._marks import NONE_FOUND, Find, Found, Marks, Progress, latest
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, KeyStore, Loaded, PartitionStore, StoreStats
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreUnavailableError
from tests.support.steps import finish


class CrashError(BaseException):
    """The process dies here; no handler of errors may survive it."""


class Disk:
    """The data that outlive a process.

    ``fuse``: so many edges of durable steps (before and after each) until the process dies. ``written`` hears which
    progress the disk has of a partition from now on.
    """

    def __init__(
        self, make_store: Callable[[], KeyStore], written: Callable[[int, Progress], None] = lambda *_: None
    ) -> None:
        self._make_store, self.written = make_store, written
        self.inner = make_store()
        self.full = False
        self.fuse: int | None = None
        self.dead = False

    def lose(self) -> None:
        """Begin with an empty one."""
        self.inner.close()
        self.inner = self._make_store()

    def reopen(self) -> None:
        """Start a process again."""
        self.fuse, self.dead = None, False

    def burn(self) -> None:
        """Come to an edge of a durable step."""
        if self.fuse is not None:
            self.fuse -= 1
            self.dead |= self.fuse <= 0
        if self.dead:
            raise CrashError

    def write(self, step: Callable[..., Any], *arguments: Any) -> Any:
        """Take a durable step."""
        self.burn()
        if self.full:
            raise StoreUnavailableError("there is no room; make some")
        answer = step(*arguments)
        self.burn()
        return answer


class DiskStore:
    """A `KeyStore` on a disk; several processes may use one."""

    lock_wait_s = 30.0
    path = None

    def __init__(self, disk: Disk, recent_marks: int) -> None:
        self._disk, self.recent_marks = disk, recent_marks

    def open(self, identity: Identity, window: Window) -> PartitionStore:
        """See `KeyStore.open`."""
        return DiskPartition(self._disk, self._disk.inner.open(identity, window), identity, window)

    def excess_bytes(self) -> int:
        """See `KeyStore.excess_bytes`."""
        return 0

    def set_aside(self, identity: Identity) -> str:
        """See `KeyStore.set_aside`."""
        return self._disk.inner.set_aside(identity)

    def close(self) -> None:
        """See `KeyStore.close`; the disk stays for the next process."""


def found_in(parts: list[Found]) -> Found:
    """Return what was found at several places; of several marks of an ID the highest offset wins."""
    rows: dict[int, tuple[int, int, int, bytes]] = {}
    for found in parts:
        numbers, payloads = found.numbers or repeat(0), found.payloads or repeat(b"")
        for index, *row in zip(
            found.indexes, found.offsets, found.timestamps, numbers, payloads, strict=False
        ):
            mark: Any = tuple(row)
            rows[index] = max(rows.get(index, (-1, 0, 0, b"")), mark)
    if not rows:
        return NONE_FOUND
    indexes = sorted(rows)
    offsets, timestamps, order, payload = map(list, zip(*map(rows.__getitem__, indexes), strict=True))
    return Found(
        indexes, offsets, timestamps, order if any(order) else None, payload if any(payload) else None
    )


class DiskPartition:
    """A partition's store on a disk: a `PartitionStore`. Each flush in steps takes two."""

    def __init__(self, disk: Disk, inner: PartitionStore, identity: Identity, window: Window) -> None:
        self._disk, self._inner = disk, inner
        self._identity, self._window = identity, window
        self._pending: Find | None = None
        self._progress: Progress | None = None
        self._meanwhile: list[tuple[Progress, Marks]] = []

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`."""
        loaded = self._inner.load()
        self._progress = None if loaded is None else loaded.progress
        return loaded

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        self._disk.write(self._step, self._inner.append, progress, marks)
        self._meanwhile.append((progress, marks))

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        finds = [self._inner.find] if self._pending is None else [self._inner.find, self._pending]
        return found_in([find(digests, count) for find in finds])

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        self._disk.write(self._step, self._inner.flush, progress, marks)

    def flush_steps(self, progress: Progress, marks: Marks, find: Find | None = None) -> Iterator[None]:
        """See `PartitionStore.flush_steps`: after the first step the marks are in memory only."""
        if find is None:
            pending = MemoryStore().open(self._identity, self._window)
            pending.flush(progress, marks)
            find = pending.find
        self._pending = find
        self._meanwhile.clear()
        try:
            yield
            self._disk.write(self._flush, progress, marks)
        finally:
            self._pending = None

    def _flush(self, progress: Progress, marks: Marks) -> None:
        self._step(self._inner.flush, progress, marks)
        for step in self._meanwhile:
            self._step(self._inner.append, *step)

    def _step(self, step: Callable[..., None], progress: Progress, *marks: Marks) -> None:
        step(progress, *marks)
        self._progress = latest(each for each in (self._progress, progress) if each is not None)
        assert self._progress is not None
        self._disk.written(self._identity.partition, self._progress)

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """See `PartitionStore.expire`."""
        dropped: int | None = self._disk.write(self._inner.expire, before_ms, up_to_number)
        return dropped

    def expires_to_ms(self, before_ms: int) -> int | None:
        """See `PartitionStore.expires_to_ms`."""
        return self._inner.expires_to_ms(before_ms)

    def install_steps(
        self, snapshot: str, progress: Progress, *, manifest: Manifest, move: bool = False
    ) -> Iterator[None]:
        """See `PartitionStore.install_steps`."""
        yield
        self._disk.write(
            self._step,
            lambda at: finish(self._inner.install_steps(snapshot, at, move=move, manifest=manifest)),
            progress,
        )

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        self._disk.write(self._step, self._inner.reset, progress)

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        return self._inner.scan()

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`."""
        return self._inner.oldest_ms

    @property
    def evicts_to_ms(self) -> int | None:
        """See `PartitionStore.evicts_to_ms`."""
        return self._inner.evicts_to_ms

    def evict(self) -> int | None:
        """See `PartitionStore.evict`."""
        dropped: int | None = self._disk.write(self._inner.evict)
        return dropped

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`."""
        return not self._disk.full and self._inner.reopen()

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`."""
        return self._inner.stats()

    def close(self) -> None:
        """See `PartitionStore.close`."""
        self._inner.close()
