"""A partition store that keeps what is completed, and forgets which IDs that were: its marks are in memory, and gone with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dedup_sdk.core.reach import NOTHING_KNOWN
from dedup_sdk.errors import StoreError
from dedup_sdk.marks import NO_MARKS, Found, Marks, Progress
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import Identity, Loaded, PartitionStore, StoreStats
from dedup_sdk.window import Window


class ForgetfulStore:
    """A `PartitionStore` around another one, which gets the progress and no marks; `reset` deletes those that it has from before.

    What the other one is told is true for whoever opens it without this: it knows no mark.

    So a consumer that opens it later with a window knows that everything before is in doubt.
    """

    def __init__(self, kept: PartitionStore, identity: Identity, window: Window) -> None:
        self._kept = kept
        self._marks = MemoryStore().open(identity, window)

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`: what is completed, without marks."""
        loaded = self._kept.load()
        return None if loaded is None else Loaded(progress=loaded.progress, recent=NO_MARKS)

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        self._kept.append(_without_marks(progress), NO_MARKS)
        self._marks.append(progress, marks)

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        return self._marks.find(digests, count)

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        self._kept.flush(_without_marks(progress), NO_MARKS)
        self._marks.flush(progress, marks)

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """See `PartitionStore.expire`."""
        return self._marks.expire(before_ms, up_to_number)

    def install(
        self,
        snapshot: str,
        progress: Progress,
        *,
        move: bool = False,
    ) -> None:
        """See `PartitionStore.install`; always raises `StoreError`."""
        for _ in self.installing(snapshot, progress, move=move):
            pass

    def installing(
        self,
        snapshot: str,
        progress: Progress,  # noqa: ARG002
        *,
        move: bool = False,  # noqa: ARG002
    ) -> Iterator[None]:
        """See `PartitionStore.installing`; always raises `StoreError`: what begins without marks takes none over."""
        raise StoreError(
            f"snapshot {snapshot} is not for a partition that begins without marks; choose persist=True"
        )

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        self._kept.reset(_without_marks(progress))
        self._marks.reset(progress)

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        return self._marks.scan()

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`; no sorted file is worth dropping."""
        return None

    def evict(self) -> int | None:
        """See `PartitionStore.evict`; there is nothing on the disk to drop."""
        return None

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`."""
        return self._kept.reopen()

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`: the disk of the one, the marks of the other."""
        kept, marks = self._kept.stats(), self._marks.stats()
        return replace(kept, marks=marks.marks, recent=marks.recent, filter_bytes=marks.filter_bytes)

    def close(self) -> None:
        """See `PartitionStore.close`."""
        self._marks.close()
        self._kept.close()


def _without_marks(progress: Progress) -> Progress:
    """Return what is true of a store that has no marks."""
    return replace(progress, since_ms=NOTHING_KNOWN, since_number=progress.accepted)
