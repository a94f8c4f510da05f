"""What the engine needs of a key store: two small protocols, two implementations, one contract suite.

key store
    all partitions of one consumer on this machine; hands out partition stores.
partition store
    what one group remembers of one partition: its progress, a journal of recent marks, and older marks in sorted files.
journal
    one record a step: progress and the marks of the step, in one atomic write. Read back when the store opens.
recent
    marks that are in the journal only. The engine keeps them in memory; the store never looks them up.
flush
    recent marks become a sorted file, their journal records are dropped. From then on `PartitionStore.find` knows them.
payload
    bytes that are kept with a mark, 9 to 2**31 of them: the memory of a source of `LastId`. They mean nothing to the
    store. They go wherever their mark goes, and are part of its fingerprint.

A partition store has one owner and is not thread-safe. All methods but ``close`` raise `StoreError` after ``close``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from dedup_sdk.marks import Found, Marks, Progress
from dedup_sdk.window import Window

DIGEST_NAME: Final = "sha256-16"
"""How IDs are hashed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whose memory a partition store is; a store opened under another identity is refused.

    ``topic_id`` tells a topic from one of the same name made later; empty where the broker does not say. ``id_spec`` is
    the canonical text of the ID spec, ``digest`` the name of the digest, ``isolation`` the consumer's isolation level.
    """

    cluster: str
    group: str
    topic: str
    partition: int
    topic_id: str = ""
    id_spec: str = ""
    digest: str = DIGEST_NAME
    isolation: str = "read_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a partition store held when it was opened: the last progress, and the recent marks in journal order."""

    progress: Progress
    recent: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Sizes of a partition store: marks in sorted files (an estimate), recent marks, bytes on disk, filter bytes in memory."""

    marks: int
    recent: int
    disk_bytes: int
    filter_bytes: int
    files: int
    details: dict[str, int] = field(default_factory=dict)


class PartitionStore(Protocol):
    """The durable memory of one partition for one group."""

    def load(self) -> Loaded | None:
        """Return what is stored, or None for a store that is new (or was reset and never written)."""

    def append(self, progress: Progress, marks: Marks) -> None:
        """Write one step, atomically: after a crash either all of it is there or nothing.

        A progress that is a delta adds to the steps before; there is one, and `load` returns the whole (`dedup_sdk.marks.latest`).

        ``marks`` in the order of their completion; a later mark of an ID replaces an earlier one unless its offset is lower.
        """

    def find(self, digests: bytes, count: int) -> Found:
        """Look ``count`` digests (16 bytes each) up among the flushed marks; of several marks of an ID the highest offset wins."""

    def flush(self, progress: Progress, marks: Marks) -> None:
        """Turn recent marks into a sorted file and drop the whole journal, atomically as seen after a crash.

        ``marks`` are all recent marks worth keeping, in any order, an ID's highest offset counts; ``progress`` is the newest. What is in the
        journal and not in ``marks`` is forgotten.
        """

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """Drop, in bulk, sorted files that no window reaches any more.

        A file goes when every mark in it is older than ``before_ms``, or when every mark in it has an acceptance number
        of at most ``up_to_number``; None where there is no such window. Returns the newest timestamp that was
        dropped, None when nothing was. Never drops a mark that a window reaches; may keep others.
        """

    def install(
        self,
        snapshot: str,
        progress: Progress,
        *,
        move: bool = False,
    ) -> None:
        """Take over the sorted files of a verified snapshot folder for this partition, replacing everything stored.

        ``move``: the folder is the caller's own and its files were checked, so that they may be moved in.

        Raises `SnapshotError` and leaves the store as it was when the snapshot does not fit or does not check.
        """

    def installing(
        self,
        snapshot: str,
        progress: Progress,
        *,
        move: bool = False,
    ) -> Iterator[None]:
        """Do as `install`, a few milliseconds a step; until the last one, and if there is none, the store is as it was.

        Meanwhile nothing is written to the store.
        """

    def reset(self, progress: Progress) -> None:
        """Forget all marks and begin anew with this progress, atomically as seen after a crash."""

    def scan(self) -> Iterator[Marks]:
        """Yield the flushed marks in pages, ascending by digest, each ID once (its highest offset); the journal is not part of it."""

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp where the oldest sorted file begins, None when there is none."""

    def evict(self) -> int | None:
        """Drop the oldest marks that can be dropped in bulk, whether a window reaches them or not.

        Returns the newest timestamp that was dropped, None when there was nothing to drop.
        """

    def reopen(self) -> bool:
        """Open the database anew after it refused to write (`StoreUnavailableError`); what it holds stays.

        False when its disk still has no room, or cannot be written; then nothing has changed.
        """

    def stats(self) -> StoreStats:
        """Return sizes; cheap enough to call every few seconds."""

    def close(self) -> None:
        """Release the database; harmless when repeated. Durable state is complete without it."""


class KeyStore(Protocol):
    """The partitions of one consumer (or several, on the same folder) on this machine."""

    @property
    def lock_wait_s(self) -> float:
        """Seconds to wait for the previous owner on this host, which keeps a store open, before that is a warning."""

    def open(self, identity: Identity, window: Window) -> PartitionStore:
        """Open or create the partition's store.

        Raises `StoreLockedError`, `ForeignStoreError`, `StoreCorruptError` or `StoreError`, each naming the folder.
        """

    def excess_bytes(self) -> int:
        """Return by how much the open partitions take more room on the disk than they may, 0 where they do not."""

    def set_aside(self, identity: Identity) -> str:
        """Put a damaged partition store out of the way, and return where it is kept; `open` then makes an empty one.

        A partition store that was found damaged while it was open is not opened again before. Raises `StoreLockedError` while
        somebody has it open, and `StoreError` when it cannot be moved.
        """

    def close(self) -> None:
        """Close every partition store that is still open."""
