"""The protocols between the engine and a key store. Both implementations pass one contract suite.

key store
    all partitions of one consumer on this machine; it opens partition stores.
partition store
    the progress of one group in one partition, a journal of recent marks, and older marks in sorted files.
journal
    one record per step: the progress and the marks of that step, in one atomic write. Read when the store opens.
recent
    marks that are in the journal only. The engine keeps them in memory; the store never looks them up.
flush
    writes recent marks to a sorted file and drops their journal records. From then on `PartitionStore.find` finds
    them.
payload
    bytes stored with a mark, 9 to 2**31 of them: the state of a source of `LastId`. The store does not interpret
    them. They move with their mark, and are part of its fingerprint.

Before marks are dropped for their age (`PartitionStore.expire`) or for lack of room (`PartitionStore.evict`), the
caller appends the progress that counts on them no longer: `PartitionStore.expires_to_ms` and
`PartitionStore.evicts_to_ms` give the newest timestamp among them. So no crash, and no full disk, leaves a progress
that counts on marks that are gone.

A partition store has one owner and is not thread-safe. All methods but ``close`` raise `StoreError` after
``close``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from dedup_sdk._checks import whole
from dedup_sdk._marks import Find, Found, Marks, Progress
from dedup_sdk._window import Window

if TYPE_CHECKING:
    from dedup_sdk._store.manifest import Manifest

DIGEST_NAME: Final = "sha256-16"
"""The hash of IDs."""
RECENT_MARKS: Final = 500_000
"""The default of ``recent_marks``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The partition that a store belongs to; opening it under another identity is refused.

    ``topic_id`` distinguishes a topic from a later one of the same name; empty where the broker does not
    report it. ``id_spec`` is the canonical text of the ID spec, ``digest`` the name of the digest,
    ``isolation`` the consumer's isolation level.
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
    """The content of a partition store when it opens: the last progress, and the recent marks in journal order."""

    progress: Progress
    recent: Marks


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Sizes of a partition store.

    ``marks``: marks in sorted files (an estimate); ``recent``: marks in the journal; ``disk_bytes``;
    ``filter_bytes``: memory of the filters; ``files``: number of sorted files.
    """

    marks: int
    recent: int
    disk_bytes: int
    filter_bytes: int
    files: int
    details: dict[str, int] = field(default_factory=dict)


class PartitionStore(Protocol):
    """The durable state of one partition for one group."""

    def load(self) -> Loaded | None:
        """Return the stored state, or None for a store that is new (or was reset and never written)."""

    def append(self, progress: Progress, marks: Marks) -> None:
        """Write one step atomically: after a crash either all of it is there or nothing.

        A progress that is a delta adds to the steps before it; an earlier one always exists, and `load`
        returns the sum (`dedup_sdk._marks.latest`). ``marks`` are in the order of their completion; a later
        mark of an ID replaces an earlier one unless its offset is lower.
        """

    def find(self, digests: bytes, count: int) -> Found:
        """Look up ``count`` digests (16 bytes each) among the flushed marks.

        Of several marks of an ID the highest offset wins.
        """

    def flush(self, progress: Progress, marks: Marks) -> None:
        """Write recent marks to a sorted file and drop the whole journal, atomically as seen after a crash.

        ``marks`` are all recent marks worth keeping, in any order; of each ID the highest offset counts.
        ``progress`` is the newest. Journal marks that are not in ``marks`` are forgotten.
        """

    def flush_steps(self, progress: Progress, marks: Marks, find: Find | None = None) -> Iterator[None]:
        """Do as `flush` does, while you iterate: each step takes a few milliseconds, few marks take one step.

        ``find`` looks digests up among the marks; without it the first step sorts them all.

        `find` finds the marks from the first step on. Between the steps you may call `append` (those steps stay in the
        journal), `find` and `close`, and nothing else. If you stop before the last step, or a step raises, the journal
        still has the marks, and `find` may find them or not.
        """

    def expire(self, before_ms: int | None, up_to_number: int | None = None) -> int | None:
        """Drop, in bulk, sorted files that no window reaches any more.

        A file is dropped when every mark in it is older than ``before_ms``, or has an acceptance number of
        at most ``up_to_number``; None disables the respective condition. Returns the newest timestamp that
        was dropped, None when nothing was. Never drops a mark that a window reaches; may keep others.
        """

    def expires_to_ms(self, before_ms: int) -> int | None:
        """Return the newest timestamp that ``expire(before_ms)`` would drop now, None when nothing."""

    def install_steps(
        self, snapshot: str, progress: Progress, *, manifest: Manifest, move: bool = False
    ) -> Iterator[None]:
        """Replace the content by the sorted files of this partition in a verified snapshot folder.

        It works while you iterate, in steps of a few milliseconds. Until the last step, or if it is never reached, the
        store stays as it was. You must not write to the store between the steps.

        ``manifest``: the one that ``progress`` was planned from: another run may publish a newer one in the folder
        meanwhile, which may know less than the progress claims. ``move``: the folder is the caller's own and its files
        were checked; they may be moved instead of copied.

        Raises `SnapshotError`, and leaves the store as it was, when the snapshot does not fit or a check fails.
        """

    def reset(self, progress: Progress) -> None:
        """Drop all marks and start with this progress, atomically as seen after a crash."""

    def scan(self) -> Iterator[Marks]:
        """Yield the flushed marks in pages, ascending by digest, each ID once (its highest offset).

        The journal is not included.
        """

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp where the oldest sorted file begins, None when there is none."""

    @property
    def evicts_to_ms(self) -> int | None:
        """The newest timestamp that `evict` would drop now, None when there is nothing to drop."""

    def evict(self) -> int | None:
        """Drop the oldest marks that can be dropped in bulk, even if a window reaches them.

        Returns the newest timestamp that was dropped, None when there was nothing to drop.
        """

    def reopen(self) -> bool:
        """Reopen the database after it refused to write (`StoreUnavailableError`), with its content.

        False when its disk still has no room, or cannot be written, or when the database does not open for now; call
        it again later. Until it returns True, other methods may raise `StoreUnavailableError`.
        """

    def stats(self) -> StoreStats:
        """Return sizes; cheap enough to call every few seconds."""

    def close(self) -> None:
        """Release the database; may be called again. Durability does not depend on it."""


def checked_recent_marks(value: object) -> int:
    """Return the setting ``recent_marks``; raises `ConfigurationError` if it is no whole number above 0."""
    advice = f"give at least 1, or leave it out for {RECENT_MARKS:,}"
    return whole("recent_marks", value, advice=advice)


class KeyStore(Protocol):
    """The partitions of one consumer (or several, on the same folder) on this machine."""

    @property
    def lock_wait_s(self) -> float:
        """Seconds to wait for another process on this host that has a store open, before a warning is logged."""

    @property
    def path(self) -> Path | None:
        """The folder of this store; None where it has none."""

    @property
    def recent_marks(self) -> int:
        """Recent marks of all partitions of one engine, above which it flushes the partition that has the most."""

    def open(self, identity: Identity, window: Window) -> PartitionStore:
        """Open or create the partition's store.

        Raises `StoreLockedError`, `ForeignStoreError`, `StoreCorruptError` or `StoreError`; each message
        names the folder.
        """

    def excess_bytes(self) -> int:
        """Return by how many bytes the open partitions exceed their disk limit, 0 where they do not."""

    def set_aside(self, identity: Identity) -> str:
        """Quarantine a damaged partition store, and return where it is kept; `open` then creates an empty one.

        A store that was found damaged while it was open cannot be opened before this call. Raises
        `StoreLockedError` while somebody has it open, and `StoreError` when it cannot be moved.
        """

    def close(self) -> None:
        """Close every partition store that is still open."""
