"""The key store in memory, under the same contract as `RocksStore`.

It is for tests, and for consumers that need no durable state. It keeps the content of its partitions for as
long as the `MemoryStore` object lives, so that a partition may be closed and opened again. Nothing outlives
the process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from dedup_sdk._marks import (
    DIGEST_BYTES,
    NONE_FOUND,
    Find,
    Found,
    Marks,
    Progress,
    cut_digests,
    join_marks,
    latest,
)
from dedup_sdk._store.identity import check_identity, check_numbered
from dedup_sdk._store.manifest import Manifest, fitting_partition
from dedup_sdk._store.pages import check_payloads, newest_per_digest
from dedup_sdk._store.protocol import RECENT_MARKS, Identity, Loaded, StoreStats, checked_recent_marks
from dedup_sdk._window import Window
from dedup_sdk.errors import StoreError, StoreLockedError

_PAGE_MARKS = 50_000
_BYTES_PER_MARK = 200


@dataclass(slots=True)
class _FlushedBatch:
    """The marks of one flush, so that expiry looks at old flushes only."""

    digests: list[bytes]
    newest_ms: int
    newest_number: int


@dataclass(slots=True)
class _PartitionContents:
    """The content of one partition.

    ``marks``: digest -> (offset, timestamp in ms, acceptance number); ``payloads``: digest -> payload,
    where there is one.
    """

    identity: Identity
    numbered: bool
    marks: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)
    payloads: dict[bytes, bytes] = field(default_factory=dict)
    flushes: list[_FlushedBatch] = field(default_factory=list)
    journal: list[Marks] = field(default_factory=list)
    steps: list[Progress] = field(default_factory=list)
    is_open: bool = False


class MemoryPartition:
    """A `PartitionStore` in memory; made by `MemoryStore.open`."""

    def __init__(self, memory: _PartitionContents) -> None:
        self._contents: _PartitionContents | None = memory

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._contents is None

    def load(self) -> Loaded | None:
        """See `PartitionStore.load`."""
        memory = self._memory()
        progress = latest(memory.steps)
        return None if progress is None else Loaded(progress=progress, recent=join_marks(memory.journal))

    def append(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.append`."""
        memory = self._memory()
        check_payloads(marks)
        # The marks first: a signal may strike in between, and a progress must not pass marks that are nowhere.
        if marks.count:
            memory.journal.append(marks)
        if progress.delta:
            memory.steps.append(progress)
        else:
            # A whole progress needs no step before: the list must not grow for ever.
            memory.steps[:] = [progress]

    def find(self, digests: bytes, count: int) -> Found:
        """See `PartitionStore.find`."""
        memory = self._memory()
        if len(digests) != DIGEST_BYTES * count:
            message = (
                f"{len(digests)} bytes are not {count} digests of {DIGEST_BYTES} bytes; give whole digests"
            )
            raise StoreError(message)
        if not memory.marks:
            return NONE_FOUND
        values = list(map(memory.marks.get, cut_digests(digests)))
        found = [(index, value) for index, value in enumerate(values) if value is not None]
        if not found:
            return NONE_FOUND
        indexes = [index for index, _ in found]
        payloads = None
        if memory.payloads:
            payloads = _payloads(
                memory, [digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)] for at in indexes]
            )
        return Found(
            indexes,
            [offset for _, (offset, _, _) in found],
            [timestamp for _, (_, timestamp, _) in found],
            [number for _, (_, _, number) in found] if memory.numbered else None,
            payloads,
        )

    def flush(self, progress: Progress, marks: Marks) -> None:
        """See `PartitionStore.flush`."""
        memory = self._memory()
        check_payloads(marks)
        self._keep(memory, marks)
        memory.steps = [progress]
        memory.journal.clear()

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
        memory = self._memory()
        kept, digests, newest_ms = self._expiring(memory, before_ms, up_to_number)
        for digest in digests:
            del memory.marks[digest]
            memory.payloads.pop(digest, None)
        memory.flushes = kept
        return newest_ms

    def expires_to_ms(self, before_ms: int) -> int | None:
        """See `PartitionStore.expires_to_ms`."""
        _, _, newest_ms = self._expiring(self._memory(), before_ms, None)
        return newest_ms

    def install_steps(
        self,
        snapshot: str,
        progress: Progress,
        *,
        manifest: Manifest,
        move: bool = False,  # noqa: ARG002 (reading into memory moves no file)
    ) -> Iterator[None]:
        """See `PartitionStore.install_steps`; the replacement itself is one step."""
        # Imported here: only this method needs RocksDB, to read sorted files.
        from dedup_sdk._store.snapshot import read_snapshot

        memory = self._memory()
        entry = fitting_partition(
            snapshot,
            manifest,
            memory.identity,
            progress,
            numbered=memory.numbered,
        )
        pages: list[Marks] = []
        for page in read_snapshot(snapshot, entry):
            pages.append(page)
            yield
        # Once more: the store may have been closed between the steps.
        memory = self._memory()
        self._forget(memory, progress)
        for page in pages:
            self._keep(memory, page)

    def reset(self, progress: Progress) -> None:
        """See `PartitionStore.reset`."""
        self._forget(self._memory(), progress)

    def scan(self) -> Iterator[Marks]:
        """See `PartitionStore.scan`."""
        memory = self._memory()
        digests = sorted(memory.marks)
        for start in range(0, len(digests), _PAGE_MARKS):
            memory = self._memory()
            # Between two pages marks may have expired.
            page = [digest for digest in digests[start : start + _PAGE_MARKS] if digest in memory.marks]
            table = np.array([memory.marks[digest] for digest in page], np.int64).reshape(-1, 3)
            numbers = table[:, 2].copy() if memory.numbered else None
            payloads = _payloads(memory, page) if memory.payloads else None
            yield Marks(b"".join(page), table[:, 0].copy(), table[:, 1].copy(), numbers, payloads)

    @property
    def oldest_ms(self) -> int | None:
        """See `PartitionStore.oldest_ms`."""
        return min((entry.newest_ms for entry in self._memory().flushes), default=None)

    @property
    def evicts_to_ms(self) -> int | None:
        """See `PartitionStore.evicts_to_ms`."""
        return self.oldest_ms

    def evict(self) -> int | None:
        """See `PartitionStore.evict`."""
        oldest_ms = self.oldest_ms
        return None if oldest_ms is None else self.expire(oldest_ms + 1)

    def reopen(self) -> bool:
        """See `PartitionStore.reopen`; memory never refuses to write."""
        self._memory()
        return True

    def stats(self) -> StoreStats:
        """See `PartitionStore.stats`; ``filter_bytes`` is a rough estimate of the memory of all marks."""
        memory = self._memory()
        return StoreStats(
            marks=len(memory.marks),
            recent=sum(marks.count for marks in memory.journal),
            disk_bytes=0,
            filter_bytes=_BYTES_PER_MARK * len(memory.marks) + sum(map(len, memory.payloads.values())),
            files=0,
        )

    def close(self) -> None:
        """See `PartitionStore.close`."""
        if self._contents is not None:
            self._contents.is_open = False
            self._contents = None

    def _memory(self) -> _PartitionContents:
        if self._contents is None:
            message = "the partition store is closed; open it again"
            raise StoreError(message)
        return self._contents

    @staticmethod
    def _expiring(
        memory: _PartitionContents, before_ms: int | None, up_to_number: int | None
    ) -> tuple[list[_FlushedBatch], set[bytes], int | None]:
        """Return the flushes that an expiry keeps, the digests that it drops, and the newest timestamp of these."""

        def is_out(timestamp_ms: int, number: int) -> bool:
            too_old = before_ms is not None and timestamp_ms < before_ms
            return too_old or (up_to_number is not None and number <= up_to_number)

        kept: list[_FlushedBatch] = []
        digests: set[bytes] = set()
        times: list[int] = []
        for flushed in memory.flushes:
            if not is_out(flushed.newest_ms, flushed.newest_number):
                kept.append(flushed)
                continue
            times.append(flushed.newest_ms)
            for digest in flushed.digests:
                mark = memory.marks.get(digest)
                if mark is not None and is_out(mark[1], mark[2]):
                    # An ID that was flushed again since may be newer than the rest of its first flush.
                    times.append(mark[1])
                    digests.add(digest)
        return kept, digests, max(times, default=None)

    @staticmethod
    def _keep(memory: _PartitionContents, marks: Marks) -> None:
        kept = newest_per_digest(marks)
        if not kept.count:
            return
        digests = cut_digests(kept.digests)
        numbers = kept.numbers if kept.numbers is not None else np.zeros(kept.count, np.int64)
        rows = list(zip(kept.offsets.tolist(), kept.timestamps.tolist(), numbers.tolist(), strict=True))
        for digest, row in zip(digests, rows, strict=True):
            known = memory.marks.get(digest)
            if known is None or known[0] < row[0]:
                memory.marks[digest] = row
        if kept.payloads is not None or memory.payloads:
            payloads = kept.payloads or [b""] * kept.count
            for digest, row, payload in zip(digests, rows, payloads, strict=True):
                # A mark with a higher offset was there: its payload stays as well.
                if memory.marks[digest] is not row:
                    continue
                if payload:
                    memory.payloads[digest] = payload
                else:
                    memory.payloads.pop(digest, None)
        memory.flushes.append(_FlushedBatch(digests, int(kept.timestamps.max()), int(numbers.max())))

    @staticmethod
    def _forget(memory: _PartitionContents, progress: Progress) -> None:
        memory.marks.clear()
        memory.payloads.clear()
        memory.flushes.clear()
        memory.journal.clear()
        memory.steps = [progress]


def _payloads(memory: _PartitionContents, digests: list[bytes]) -> list[bytes] | None:
    """Return the payload of each digest, None where no digest has one."""
    payloads = [memory.payloads.get(digest, b"") for digest in digests]
    return payloads if any(payloads) else None


class MemoryStore:
    """A `KeyStore` in memory; ``recent_marks`` as in `RocksStore`."""

    lock_wait_s = 30.0
    path = None

    def __init__(self, *, recent_marks: int = RECENT_MARKS) -> None:
        self.recent_marks = checked_recent_marks(recent_marks)
        self._partitions: dict[tuple[str, str, str, int], _PartitionContents] = {}
        self._open: list[MemoryPartition] = []

    def open(self, identity: Identity, window: Window) -> MemoryPartition:
        """See `KeyStore.open`."""
        numbered = window.count is not None
        key = (identity.cluster, identity.group, identity.topic, identity.partition)
        memory = self._partitions.setdefault(key, _PartitionContents(identity, numbered))
        where = f"the memory of {identity.topic}[{identity.partition}]"
        if memory.is_open:
            message = f"{where} is open in another consumer; close that one, or use another store"
            raise StoreLockedError(message)
        check_identity(memory.identity, identity, where)
        check_numbered(stored=memory.numbered, window=window, where=where)
        # A window that is off adds no mark, so that the marks that are there keep their kind.
        memory.numbered = memory.numbered if window.is_off else numbered
        partition = MemoryPartition(memory)
        self._open = [*[other for other in self._open if not other.closed], partition]
        # Last of all: an interruption before this line leaves nothing open.
        memory.is_open = True
        return partition

    def excess_bytes(self) -> int:
        """See `KeyStore.excess_bytes`; memory has no limit."""
        return 0

    def set_aside(self, identity: Identity) -> str:
        """See `KeyStore.set_aside`; memory cannot be damaged, so the content is dropped."""
        where = f"the memory of {identity.topic}[{identity.partition}]"
        key = (identity.cluster, identity.group, identity.topic, identity.partition)
        memory = self._partitions.get(key)
        if memory is not None and memory.is_open:
            message = f"{where} is open; close it first"
            raise StoreLockedError(message)
        self._partitions.pop(key, None)
        return f"{where}, which is dropped"

    def close(self) -> None:
        """See `KeyStore.close`."""
        for partition in self._open:
            partition.close()
        self._open.clear()
