"""The real engine as a host: what the Kafka side does with it on assignment, without Kafka."""

from __future__ import annotations

import numpy as np

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.ids import digest_one, key
from dedup_sdk.lane.plan import StartPlan, plan_start
from dedup_sdk.record import Record, Settled, Verdict, VerdictKind
from dedup_sdk.store.memory import MemoryStore
from dedup_sdk.store.protocol import KeyStore
from dedup_sdk.strategy import Lookup
from dedup_sdk.window import Window
from tests.model.host import WINDOW_MS, Assignment, Commit, Outcome, Row

_OUTCOMES = {
    VerdictKind.FRESH: Outcome.FRESH,
    VerdictKind.UNVERIFIED: Outcome.DOUBTFUL,
    VerdictKind.DUPLICATE: Outcome.DUPLICATE,
    VerdictKind.REDELIVERED: Outcome.REDELIVERED,
    VerdictKind.PARKED: Outcome.PARKED,
}
_SLICE = 7


class EngineHost:
    """A `Deduplicator` over a store of its own; with few ``recent_marks`` it flushes and forgets all the time."""

    def __init__(self, recent_marks: int) -> None:
        self._recent_marks = recent_marks
        self._log: list[Row] = []
        self.complete = False
        self.lose_disk()

    def lose_disk(self) -> None:
        """See `Host`."""
        self._store: KeyStore = MemoryStore()
        self._engine = self._new_engine()

    def _new_engine(self) -> Deduplicator:
        strategy = Lookup(id=key(), window=Window(milliseconds=WINDOW_MS))
        return Deduplicator(strategy, store=self._store, recent_marks=self._recent_marks)

    @property
    def _held(self) -> Partition:
        return self._engine.partitions["t", 0]

    @property
    def high(self) -> int:
        """See `Host`."""
        next_offset = self._engine.next_offset("t", 0)
        assert next_offset is not None
        return next_offset

    @property
    def low(self) -> int:
        """See `Host`."""
        return self._held.coverage.low

    def note_committed(self, offset: int) -> None:
        """See `Host`."""
        self._held.lane.note_committed(offset)
        self._held.persist()

    def stop(self, *, killed: bool) -> None:
        """See `Host`."""
        if killed:
            self._engine.lose("t", 0)
        else:
            self._engine.close("t", 0)
        self._engine = self._new_engine()

    # --- coming up to date ---------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        """See `Host`."""
        self._log = assignment.log
        commit = assignment.commit
        self.complete = assignment.new or commit.complete
        plan = self._start(commit, new=assignment.new)
        begin = self._one_window_back(plan) if plan.whole else plan.replay_from
        self._fold(begin, plan.replay_to, assignment.dead)

    def _start(self, commit: Commit, *, new: bool = False) -> StartPlan:
        plan = self._plan(commit, new=new)
        self._held.start(plan)
        return plan

    def _plan(self, commit: Commit, *, new: bool = False) -> StartPlan:
        held = self._engine.attach("t", 0)
        return plan_start(
            held.loaded.progress if held.loaded else None,
            committed=commit.offset,
            low=commit.offset if commit.low is None else commit.low,
            complete=commit.complete,
            new=new,
        )

    def _one_window_back(self, plan: StartPlan) -> int:
        """Return where the replay may begin, and note from when the marks are known then."""
        if plan.replay_to == plan.replay_from:
            return plan.replay_from
        since_ms = self._held.lane.horizon_ms(self._log[plan.replay_to - 1].timestamp_ms)
        begin = plan.replay_from
        while begin < plan.replay_to and self._log[begin].timestamp_ms < since_ms:
            begin += 1
        if begin > plan.replay_from:
            self._held.lane.since_ms = since_ms
        return begin

    def _fold(self, begin: int, end: int, dead: frozenset[int]) -> None:
        for first in range(begin, end, _SLICE):
            offsets = list(range(first, min(first + _SLICE, end)))
            times = np.asarray([self._log[offset].timestamp_ms for offset in offsets], np.int64)
            digests = [None if offset in dead else self._digest(offset) for offset in offsets]
            self._held.fold(offsets, times, digests, offsets[-1] + 1)
        self._engine.trim()

    def _digest(self, offset: int) -> bytes:
        return digest_one(self._key(offset))

    def _key(self, offset: int) -> bytes:
        return str(self._log[offset].ident).encode()

    def jump(self, offset: int) -> None:
        """See `Host`."""
        self._engine.close("t", 0)
        self._start(Commit(offset))
        self.complete = False

    # --- judging -------------------------------------------------------------------------------------------------

    def _record(self, offset: int) -> Record:
        return Record("t", 0, offset, self._log[offset].timestamp_ms, key=self._key(offset))

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
