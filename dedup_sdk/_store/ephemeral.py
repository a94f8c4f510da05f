"""A partition store that persists progress and keeps marks in memory only.

The engine uses it with ``persist=False``, and where the window is off. The stored progress says that no
mark is known, so a consumer that later opens the store with a window treats all earlier IDs as unverified.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dedup_sdk._marks import NO_MARKS, Find, Found, Marks, Progress
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, Loaded, PartitionStore, StoreStats
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreError


class EphemeralStore:
    """A `PartitionStore` that stores progress, without marks, in another one.

    `reset` drops marks that the other one still has.
    """

    def __init__(self, kept: PartitionStore, identity: Identity, window: Window) -> None:
        self._durable = kept
        self._marks = MemoryStore().open(identity, window)

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`: the progress, without marks."""
        loaded = self._durable.load()
        return None if loaded is None else Loaded(progress=loaded.progress, recent=NO_MARKS)

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        # The disk first: after a refusal nothing has changed, and the caller writes the step again.
        self._durable.append(_without_marks(progress), NO_MARKS)
        self._marks.append(progress, marks)

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        return self._marks.find(digests, count)

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        # The disk first, as above.
        self._durable.flush(_without_marks(progress), NO_MARKS)
        self._marks.flush(progress, marks)

    def flush_steps(
        self,
        progress: Progress,
        marks: Marks,
        find: Find | None = None,  # noqa: ARG002 (one step leaves nothing pending)
    ) -> Iterator[None]:
        """See `PartitionStore.flush_steps`; it is one step."""
        self.flush(progress, marks)
        yield from ()

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """See `PartitionStore.expire`."""
        return self._marks.expire(before_ms, up_to_number)

    def expires_to_ms(self, before_ms: int) -> int | None:
        """See `PartitionStore.expires_to_ms`."""
        return self._marks.expires_to_ms(before_ms)

    def install_steps(
        self,
        snapshot: str,
        progress: Progress,  # noqa: ARG002
        *,
        manifest: Manifest,  # noqa: ARG002
        move: bool = False,  # noqa: ARG002
    ) -> Iterator[None]:
        """See `PartitionStore.install_steps`; always raises `StoreError`: snapshots need durable marks."""
        raise StoreError(
            f"snapshot {snapshot} cannot be installed: this partition keeps its marks in memory only; use persist=True"
        )

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        self._durable.reset(_without_marks(progress))
        self._marks.reset(progress)

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        return self._marks.scan()

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`; always None, there is no sorted file to drop."""
        return None

    @property
    def evicts_to_ms(self) -> int | None:
        """See `PartitionStore.evicts_to_ms`; always None, there are no marks on the disk."""
        return None

    def evict(self) -> int | None:
        """See `PartitionStore.evict`; always None, there are no marks on the disk."""
        return None

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`."""
        return self._durable.reopen()

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`: disk sizes of the durable part, mark counts of the memory."""
        kept, marks = self._durable.stats(), self._marks.stats()
        return replace(kept, marks=marks.marks, recent=marks.recent, filter_bytes=marks.filter_bytes)

    def close(self) -> None:
        """See `PartitionStore.close`."""
        self._marks.close()
        self._durable.close()


def _without_marks(progress: Progress) -> Progress:
    """Return the progress of a store that has no marks."""
    return replace(progress, known=progress.known.nothing_before())
