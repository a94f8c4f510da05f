"""The real engine as a host: the Kafka side's work on assignment, without Kafka."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dedup_sdk._admin.rewind import moved
from dedup_sdk._commit_text import CommitMetadata, CompletedAbove, new_era, parse_metadata
from dedup_sdk._core.reach import StartPlan, plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Recovered
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._marks import Witness
from dedup_sdk._record import Record, Settled, Verdict, VerdictKind
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.memory import MemoryStore
from dedup_sdk._store.protocol import DIGEST_NAME, KeyStore
from dedup_sdk._strategy import Lookup
from dedup_sdk._window import Window
from dedup_sdk.errors import ForeignStoreError
from dedup_sdk.ids import IdSpec, digest_one, key, value
from tests.model.host import WINDOW_MS, Assignment, Outcome, Row
from tests.support.disks import keeping

_OUTCOMES = {
    VerdictKind.FRESH: Outcome.FRESH,
    VerdictKind.UNVERIFIED: Outcome.DOUBTFUL,
    VerdictKind.DUPLICATE: Outcome.DUPLICATE,
    VerdictKind.REDELIVERED: Outcome.REDELIVERED,
    VerdictKind.HELD: Outcome.HELD,
}
_SLICE = 7


class EngineHost:
    """A `Deduplicator` over a store of its own; with few ``recent_marks`` it flushes and forgets all the time."""

    def __init__(self, recent_marks: int) -> None:
        self._recent_marks = recent_marks
        self._log: list[Row] = []
        self._rule = 0
        self._complete = False
        self._done: CompletedAbove | None = None
        self._eras = 0
        self._clock: Callable[[], int] = lambda: 0
        self.lose_disk()

    def lose_disk(self) -> None:
        """See `Host`."""
        self._store: KeyStore = MemoryStore()
        self._engine = self._new_engine()

    def _new_engine(self) -> Deduplicator:
        specs: list[IdSpec] = [key(), value()]
        strategy = Lookup(id=specs[self._rule], window=Window(milliseconds=WINDOW_MS))
        return Deduplicator(
            strategy, keeping(self._recent_marks, self._store), clock=lambda: self._clock() / 1000
        )

    @property
    def _held(self) -> Partition:
        return self._engine.partitions["t", 0]

    @property
    def high(self) -> int:
        """See `Host`."""
        next_offset = self._engine.next_offset("t", 0)
        assert next_offset is not None
        return next_offset

    def text(self, offset: int) -> str:
        """See `Host`."""
        return self._recovered(self._held).metadata(offset).text(offset)

    def _recovered(self, held: Partition) -> Recovered:
        return Recovered(Start(offset=held.flight.low), "", held, self._complete, self._done)

    def completed_above(self, offset: int) -> set[int]:
        """See `Host`."""
        return {each for start, end in self._held.completed_above(offset) for each in range(start, end)}

    def rewind(self, text: object, committed: int, offset: int) -> str | None:
        """See `Host`."""
        self._eras += 1
        metadata = moved(committed, self._parsed(text, committed), offset, f"{self._eras:x}")
        return None if metadata is None else metadata.text(offset)

    def note_committed(self, offset: int) -> None:
        """See `Host`."""
        self._held.flight.note_committed(offset)
        self._held.persist()

    def stop(self, *, killed: bool) -> None:
        """See `Host`."""
        if killed:
            self._engine.lose("t", 0)
        else:
            self._engine.close("t", 0)
        self._engine = self._new_engine()

    # --- coming up to date ---------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> int:
        """See `Host`."""
        self._log, self._clock = assignment.log, assignment.clock
        if assignment.rule != self._rule:
            self._rule = assignment.rule
            self._engine = self._new_engine()
        metadata = self._believed(assignment)
        held = self._attach()
        stored = held.loaded.progress if held.loaded else None
        start, new = assignment.commit.offset, assignment.new
        if new and stored is not None and stored.begun:
            # The group's commits are gone: the store goes on, with all that it knows, in a new era.
            assert held.loaded is not None
            stored = replace(stored, era=new_era())
            held.begin_with(replace(held.loaded, progress=stored))
            complete = stored.known.since_ms is None and stored.known.since_number is None
            metadata = CommitMetadata(low=stored.low, era=stored.era, complete=complete, epoch=stored.epoch)
            start, new = stored.high, False
        plan = self._begin(self._plan(held, start, metadata, era=new_era(), new=new), assignment)
        self._complete = new or (metadata is not None and metadata.complete)
        begin = self._one_window_back(plan) if plan.whole else plan.replay_from
        self._fold(begin, plan.replay_to)
        done = None if metadata is None or plan.beginning == "rewound" else metadata.done
        self._done = done
        if done is not None:
            self._held.tell_completed(done.ranges)
        return start

    def _begin(self, plan: StartPlan, assignment: Assignment) -> StartPlan:  # noqa: ARG002 - for snapshots
        self._held.start(plan)
        return plan

    @staticmethod
    def _parsed(text: object, offset: int) -> CommitMetadata | None:
        return parse_metadata(text, committed=offset) if isinstance(text, str) else None

    def _believed(self, assignment: Assignment) -> CommitMetadata | None:
        """Return the commit's text if it is of this rule, and the log has its witness."""
        metadata = self._parsed(assignment.commit.text, assignment.commit.offset)
        if metadata is None or metadata.rule != self._rule_digits():
            return None
        if metadata.done is not None:
            assert metadata.done.witness is not None
            offset = metadata.done.witness.offset
            there = Witness.of(offset, self._log[offset].timestamp_ms, self._digest(offset))
            if there != metadata.done.witness:
                return replace(metadata, done=None)
        return metadata

    def _rule_digits(self) -> str:
        strategy = self._engine.strategy
        return rule_digits(
            strategy.keys, strategy.window_of("t"), digest=DIGEST_NAME, isolation="read_committed"
        )

    def _attach(self) -> Partition:
        try:
            held = self._engine.attach("t", 0)
        except ForeignStoreError:
            self._engine.set_aside("t", 0)
            held = self._engine.attach("t", 0)
        return held

    def _plan(
        self,
        held: Partition,
        committed: int,
        metadata: CommitMetadata | None,
        *,
        era: str,
        new: bool = False,
    ) -> StartPlan:
        stored = held.loaded.progress if held.loaded else None
        if metadata is None:
            return plan_start(stored, committed=committed, low=committed, era=era, new=new)
        return plan_start(
            stored,
            committed=committed,
            low=metadata.low,
            era=metadata.era,
            complete=metadata.complete,
            new=new,
            vouched=True,
        )

    def _one_window_back(self, plan: StartPlan) -> int:
        """Return where the replay may begin, and note from when the marks are known then."""
        if plan.replay_to == plan.replay_from:
            return plan.replay_from
        newest_ms = min(self._log[plan.replay_to - 1].timestamp_ms, self._clock())
        since_ms = self._held.memory.reach.horizon_ms(newest_ms)
        begin = plan.replay_from
        while begin < plan.replay_to and self._log[begin].timestamp_ms < since_ms:
            begin += 1
        if begin > plan.replay_from:
            self._held.memory.reach.since_ms = since_ms
        return begin

    def _fold(self, begin: int, end: int) -> None:
        for first in range(begin, end, _SLICE):
            offsets = list(range(first, min(first + _SLICE, end)))
            times = np.asarray([self._log[offset].timestamp_ms for offset in offsets], np.int64)
            digests: list[bytes | None] = [self._digest(offset) for offset in offsets]
            self._held.fold(offsets, times, digests, offsets[-1] + 1)
        self._engine.trim()

    def _digest(self, offset: int) -> bytes:
        return digest_one(self._key(offset))

    def _key(self, offset: int) -> bytes:
        return str(self._log[offset].idents[self._rule]).encode()

    def jump(self, offset: int) -> None:
        """See `Host`."""
        self._engine.close("t", 0)
        held = self._attach()
        era = held.loaded.progress.era if held.loaded else ""
        self._held.start(self._plan(held, offset, None, era=era))

    # --- judging -------------------------------------------------------------------------------------------------

    def _record(self, offset: int) -> Record:
        one, other = (str(ident).encode() for ident in self._log[offset].idents)
        return Record("t", 0, offset, self._log[offset].timestamp_ms, key=one, value=other)

    def _outcome(self, verdict: Verdict) -> Outcome:
        outcome = _OUTCOMES[verdict.kind]
        assert verdict.deliver == (outcome in {Outcome.FRESH, Outcome.DOUBTFUL})
        return outcome

    def admit(self, offset: int) -> Outcome:
        """See `Host`."""
        [verdict] = self._engine.admit([self._record(offset)])
        return self._outcome(verdict)

    def end(self, offset: int, *, dead: bool) -> list[tuple[int, Outcome]]:
        """See `Host`."""
        act = self._engine.dead_letter if dead else self._engine.complete
        settled: list[Settled] = act([self._record(offset)])
        return [(one.record.offset, self._outcome(one.verdict)) for one in settled]

    def release(self, offset: int) -> list[int]:
        """See `Host`."""
        return [one.record.offset for one in self._engine.release([self._record(offset)])]
