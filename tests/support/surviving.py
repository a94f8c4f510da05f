"""A consumer, through crashes or without any, with everything that outlives it.

The log, the commits, the handled records. The oracle asks, of every verdict, whether a record was lost or
doubled, and at the end whether all of them are those that follow from the whole log.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from pathlib import Path
from typing import Protocol

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._record import Record, Verdict, VerdictKind
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import Identity, KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.ids import digest_one, key
from tests.support.disks import keeping
from tests.support.known_marks import newest_marks
from tests.support.logs import Row
from tests.support.naive_log import End, Entry, first_open, read_log

WALL_CLOCK_MS = 10_000
DELIVERED = {VerdictKind.FRESH, VerdictKind.UNVERIFIED, VerdictKind.UNKEYED}


class Disk(Protocol):
    """The disk of a store, and its state after a crash."""

    def store(self) -> KeyStore:
        """Open the store."""

    def crash(self, engine: Deduplicator) -> None:
        """End the engine's life as a kill would, at this very moment."""


class MemoryDisk:
    """The store in memory: it outlives the engine, which writes nothing more."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def store(self) -> KeyStore:
        """See `Disk`."""
        return self._store

    def crash(self, engine: Deduplicator) -> None:
        """See `Disk`."""
        engine.lose("t", 0)


class RocksDisk:
    """A folder, of which a crash leaves a copy made while the store was open and in use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lives = 0

    def store(self) -> KeyStore:
        """See `Disk`."""
        return RocksStore(self._folder / str(self._lives), generation_marks=3, block_cache_bytes=2**20)

    def crash(self, engine: Deduplicator) -> None:
        """See `Disk`."""
        now = self._folder / str(self._lives)
        self._lives += 1
        if now.exists():
            copy_at_one_moment(now, self._folder / str(self._lives))
        engine.lose("t", 0)
        engine.shut()
        shutil.rmtree(now, ignore_errors=True)


def copy_at_one_moment(source: Path, target: Path) -> None:
    """Copy a folder in use, again and again until nothing in it has changed meanwhile."""
    while True:
        before = _listing(source)
        try:
            shutil.copytree(source, target)
        except shutil.Error:  # a file went away meanwhile
            pass
        else:
            if _listing(source) == before:
                return
        shutil.rmtree(target)


def _listing(folder: Path) -> dict[Path, tuple[int, int]]:
    listing = {}
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            listing[path] = (path.stat().st_size, path.stat().st_mtime_ns)
    return listing


class Survivor:
    """One group's consumer of one partition, through its lives."""

    def __init__(self, window: Window, disk: Disk, recent_marks: int) -> None:
        self.window = window
        self.disk = disk
        self.recent_marks = recent_marks
        self.log: list[Entry] = []
        self.committed: int | None = None
        self.low: int | None = None
        self.durable: set[int] = set()
        self.verdicts: dict[int, Verdict] = {}
        self.doubted: set[int] = set()
        """Offsets that were told to be unverified."""
        self.lives = 0
        self.observed: Counter[int] = Counter()
        """How often observers heard of a verdict, by offset."""
        self.clock_ms = -1
        self.begin_life(tell_committed=False)

    # --- lives ---------------------------------------------------------------------------------------------------

    def begin_life(self, *, tell_committed: bool) -> None:
        """Open the engine; uncommitted records come again."""
        self.lives += 1
        self.in_flight: list[int] = []
        self.parked: set[int] = set()
        self.engine = Deduplicator(
            Lookup(id=key(), window=self.window),
            keeping(self.recent_marks, self.disk.store()),
            clock=lambda: WALL_CLOCK_MS / 1000,
            observers=[lambda event: self.observed.update([event.offset])],
        )
        if tell_committed and self.committed is not None:
            self.engine.open("t", 0, committed=self.committed, low=self.low)
        self.position = self.committed or 0
        for entry in self.log:
            if entry.end is not End.OPEN and entry.offset not in self.durable:
                entry.end = End.OPEN

    def crash(self, *, tell_committed: bool) -> None:
        """Die without a word, and begin again on the same disk."""
        self._note_durable()
        self.disk.crash(self.engine)
        self.begin_life(tell_committed=tell_committed)

    def reopen(self, *, tell_committed: bool) -> None:
        """End in order, see that the store agrees with the log, and begin again."""
        self._note_durable()
        self.engine.shut()
        self._check_marks()
        self.begin_life(tell_committed=tell_committed)

    def _check_marks(self) -> None:
        """Compare the marks that a window can still reach, in the store, with those that the log leaves."""
        store = self.disk.store()
        partition = store.open(
            Identity(cluster="", group="", topic="t", partition=0, id_spec="key"), self.window
        )
        loaded = partition.load()
        known = {} if loaded is None else newest_marks([loaded.recent, *partition.scan()])
        store.close()
        durable = [entry for entry in self.log if entry.offset in self.durable]
        reading = read_log(durable, self.window.time_ms, self.window.count)
        for ident, seen in reading.seen.items():
            if self.window.holds(self.clock_ms - seen.timestamp_ms, reading.accepted - seen.number):
                mark = known[digest_one(ident.encode())]
                assert (mark.offset, mark.timestamp_ms) == (seen.offset, seen.timestamp_ms)
                assert self.window.count is None or mark.number == seen.number

    def _note_durable(self) -> None:
        """Records that are over are in the store; with a count window only those below the watermark."""
        below = self.engine.next_offset("t", 0) or 0
        self.durable |= {
            entry.offset
            for entry in self.log
            if entry.end is not End.OPEN and (self.window.count is None or entry.offset < below)
        }

    # --- acts of an application -----------------------------------------------------------------------------------

    def produce(self, rows: list[Row]) -> None:
        """Append to the log."""
        begin = self.log[-1].offset + 1 if self.log else 0
        self.log += [Entry(begin + offset, ident, timestamp_ms) for offset, ident, timestamp_ms in rows]

    def record(self, entry: Entry) -> Record:
        """The record of an entry."""
        return Record(
            "t", 0, entry.offset, entry.timestamp_ms, key=entry.ident.encode() if entry.ident else None
        )

    def entry(self, offset: int) -> Entry:
        """The entry at an offset."""
        return next(entry for entry in self.log if entry.offset == offset)

    def admit(self, count: int) -> None:
        """Read on."""
        batch = [entry for entry in self.log if entry.offset >= self.position][:count]
        if not batch:
            return
        self.position = batch[-1].offset + 1
        for entry in batch:
            self.clock_ms = max(self.clock_ms, min(entry.timestamp_ms, WALL_CLOCK_MS))
        for entry, verdict in zip(batch, self.engine.admit([self.record(e) for e in batch]), strict=True):
            self._take(entry, verdict)

    def end(self, which: int, *, dead_letter: bool = False) -> None:
        """Complete or dead-letter one of the records in flight."""
        entry = self.entry(self.in_flight.pop(which % len(self.in_flight)))
        entry.end = End.HANDLED
        act = self.engine.dead_letter if dead_letter else self.engine.complete
        for settled in act([self.record(entry)]):
            settles = self.entry(settled.record.offset)
            assert settles.offset in self.parked
            assert settled.record == self.record(settles)
            self._take(settles, settled.verdict)

    def release(self, which: int) -> None:
        """Hand one of the records in flight back."""
        entry = self.entry(self.in_flight[which % len(self.in_flight)])
        [again] = self.engine.release([self.record(entry)])
        before = self.verdicts[entry.offset]
        assert again.record == self.record(entry)
        assert (again.verdict.kind, again.verdict.deliver) == (before.kind, True)
        assert again.verdict.attempt == before.attempt + 1
        self.verdicts[entry.offset] = again.verdict

    def commit(self) -> None:
        """Commit up to the watermark."""
        next_offset = self.engine.next_offset("t", 0)
        if next_offset is not None:
            self.committed, self.low = next_offset, self.engine.partitions["t", 0].coverage.low

    # --- the oracle -----------------------------------------------------------------------------------------------

    def _take(self, entry: Entry, verdict: Verdict) -> None:
        assert verdict.deliver == (verdict.kind in DELIVERED)
        if verdict.kind is VerdictKind.HELD:
            self.parked.add(entry.offset)
            return
        self.parked.discard(entry.offset)
        if verdict.kind is VerdictKind.REDELIVERED:
            assert entry.end is not End.OPEN, "lost: taken for completed, and nobody completed it"
            return
        self.verdicts[entry.offset] = verdict
        entry.doubtful = verdict.kind is VerdictKind.UNVERIFIED
        if entry.doubtful:
            self.doubted.add(entry.offset)
        if entry.doubtful and self.window.time_ms:
            assert entry.timestamp_ms < self.clock_ms - self.window.time_ms // 16, "doubted without need"
        if verdict.deliver:
            assert entry.offset not in self.durable, "doubled: its completion was durable"
            assert entry.end is End.OPEN
            self.in_flight.append(entry.offset)
            return
        assert verdict.kind is VerdictKind.DUPLICATE
        entry.end = End.DUPLICATE
        assert any(
            earlier.ident == entry.ident and earlier.offset < entry.offset and earlier.end is End.HANDLED
            for earlier in self.log
        ), "lost: a duplicate of what nobody handled"

    def check(self) -> None:
        """See that the invariants hold at every moment."""
        next_offset = self.engine.next_offset("t", 0)
        if next_offset is not None:
            over = [entry.end is not End.OPEN for entry in self.log if entry.offset < next_offset]
            assert all(over), "the watermark passed a record that is not over"
            # Records not read again since the last crash are not known to the engine.
            limit = min(first_open(self.log), self.position)
            behind = [entry for entry in self.log if next_offset <= entry.offset < limit]
            assert not behind, (
                "only holes may lie between the watermark and the first record that is not over"
            )
        for offset in self.parked:
            assert any(earlier < offset for earlier in self.in_flight), (
                "what waits for nothing waits for ever"
            )

    def check_verdicts(self) -> None:
        """End everything, and compare the last verdict of every record with the truth of the whole log."""
        self.admit(len(self.log))
        while self.in_flight:
            self.end(0)
            self.check()
        assert not self.parked
        duplicates = read_log(self.log, self.window.time_ms, self.window.count).duplicates
        for entry in self.log:
            verdict, seen = self.verdicts[entry.offset], duplicates.get(entry.offset)
            if entry.ident is None:
                assert verdict.kind is VerdictKind.UNKEYED
            elif verdict.kind is not VerdictKind.UNVERIFIED:
                expected = VerdictKind.FRESH if seen is None else VerdictKind.DUPLICATE
                assert verdict.kind is expected, entry
                if seen is not None:
                    told = verdict.seen_offset, verdict.age_ms
                    assert told == (seen.offset, entry.timestamp_ms - seen.timestamp_ms)
        if self.lives == 1:
            assert self.observed == Counter(entry.offset for entry in self.log)
            assert self.engine.counters.stale == 0
        assert self.engine.counters.observer_errors == 0
