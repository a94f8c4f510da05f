"""An engine that lives through a log beside the plainest model of it, and is compared with it all the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.ids import key
from dedup_sdk.observe import VerdictEvent
from dedup_sdk.record import Record, Settled, Verdict, VerdictKind
from dedup_sdk.strategy import Lookup
from dedup_sdk.window import Window
from tests.support.naive_log import End, Entry, first_open, read_log

WALL_CLOCK_MS = 10_000
DELIVERED = {VerdictKind.FRESH, VerdictKind.UNVERIFIED, VerdictKind.UNKEYED}


@dataclass
class Lived:
    """A new group's partition, the log it has seen, and what happened to every record.

    With few ``recent_marks`` the engine flushes and forgets all the time; ``may_doubt`` has the records that came so
    late that it may then call them unverified.
    """

    window: Window
    recent_marks: int = 10**6
    entries: dict[int, Entry] = field(default_factory=dict)
    in_flight: list[int] = field(default_factory=list)
    parked: set[int] = field(default_factory=set)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    observed: Counter[int] = field(default_factory=Counter)
    may_doubt: set[int] = field(default_factory=set)
    clock_ms: int = -1

    def __post_init__(self) -> None:
        """Make the engine."""
        self.engine = Deduplicator(
            Lookup(id=key(), window=self.window),
            recent_marks=self.recent_marks,
            clock=lambda: WALL_CLOCK_MS / 1000,
            observers=[self._observe],
        )

    def _observe(self, event: VerdictEvent) -> None:
        self.observed[event.offset] += 1

    def record(self, offset: int) -> Record:
        """The record at an offset."""
        entry = self.entries[offset]
        ident = None if entry.ident is None else entry.ident.encode()
        return Record("t", 0, offset, entry.timestamp_ms, key=ident)

    def admit(self, entries: list[Entry]) -> None:
        """Let the engine judge a batch."""
        for entry in entries:
            self.entries[entry.offset] = entry
            self.clock_ms = max(self.clock_ms, min(entry.timestamp_ms, WALL_CLOCK_MS))
        verdicts = self.engine.admit([self.record(entry.offset) for entry in entries])
        assert len(verdicts) == len(entries)
        for entry, verdict in zip(entries, verdicts, strict=True):
            if verdict.kind is VerdictKind.PARKED:
                assert not verdict.deliver
                self.parked.add(entry.offset)
            else:
                self._take(entry, verdict)

    def _take(self, entry: Entry, verdict: Verdict) -> None:
        """Note a final verdict."""
        assert verdict.deliver == (verdict.kind in DELIVERED)
        assert entry.offset not in self.verdicts
        self.verdicts[entry.offset] = verdict
        self.parked.discard(entry.offset)
        entry.doubtful = verdict.kind is VerdictKind.UNVERIFIED
        reserve_ms = (self.window.time_ms or 0) // 16
        if entry.doubtful and self.window.time_ms and entry.timestamp_ms < self.clock_ms - reserve_ms:
            self.may_doubt.add(entry.offset)
        if verdict.deliver:
            self.in_flight.append(entry.offset)
        else:
            entry.end = End.DUPLICATE

    def _settle(self, settled: list[Settled]) -> None:
        for one in settled:
            assert one.record.offset in self.parked
            assert one.record == self.record(one.record.offset)
            self._take(self.entries[one.record.offset], one.verdict)

    def end(self, which: int, *, dead_letter: bool = False) -> None:
        """Complete or dead-letter one of the records in flight."""
        offset = self.in_flight.pop(which % len(self.in_flight))
        self.entries[offset].end = End.HANDLED
        act = self.engine.dead_letter if dead_letter else self.engine.complete
        self._settle(act([self.record(offset)]))

    def release(self, which: int) -> None:
        """Hand one of the records in flight back."""
        offset = self.in_flight[which % len(self.in_flight)]
        [again] = self.engine.release([self.record(offset)])
        before = self.verdicts[offset]
        assert again.record == self.record(offset)
        assert (again.verdict.kind, again.verdict.deliver) == (before.kind, True)
        assert again.verdict.attempt == before.attempt + 1
        self.verdicts[offset] = again.verdict

    def check(self) -> None:
        """What holds at every moment: the offset to commit, and that whatever waits will be settled."""
        log = list(self.entries.values())
        next_offset, limit = self.engine.next_offset("t", 0), first_open(log)
        assert next_offset is not None
        assert next_offset <= limit
        between = [entry for entry in log if next_offset <= entry.offset < limit]
        assert not between, "only holes may lie between the watermark and the first record that is not over"
        for offset in self.parked:
            assert any(earlier < offset for earlier in self.in_flight), (
                "what waits for nothing waits for ever"
            )

    def check_verdicts(self) -> None:
        """Compare every verdict with what the whole log says; only when all records are over."""
        duplicates = read_log(self.entries.values(), self.window.time_ms, self.window.count).duplicates
        for entry in self.entries.values():
            verdict, seen = self.verdicts[entry.offset], duplicates.get(entry.offset)
            if entry.ident is None:
                assert verdict.kind is VerdictKind.UNKEYED
            elif verdict.kind is VerdictKind.UNVERIFIED:
                assert entry.offset in self.may_doubt, entry
            elif seen is None:
                assert verdict.kind is VerdictKind.FRESH, entry
            else:
                assert verdict.kind is VerdictKind.DUPLICATE, entry
                assert verdict.seen_offset == seen.offset
                assert verdict.age_ms == entry.timestamp_ms - seen.timestamp_ms
        assert self.observed == Counter(self.entries.keys())
        assert self.engine.counters.stale == 0
        assert self.engine.counters.observer_errors == 0
