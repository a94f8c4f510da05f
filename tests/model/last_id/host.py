"""A consumer with a disk that follows the rule of compare-with-the-last-one.

A host that overrides a step breaks it.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.last_id.rule import Answer, LastIdRule, Order, Sent, SourceState, compare

Ahead = dict[int, Sent | None]
Sources = dict[str, SourceState]


@dataclass(slots=True)
class Store:
    """The contents of one write to the disk, and of a process' memory.

    Every offset in ``[low, high)`` is completed and folded into ``sources``; ``ahead`` are those completed above
    it, with their records (None: given up). ``whole``: the sources know the group's history from its beginning.
    ``committed`` is the last offset known to be committed.
    """

    low: int
    high: int
    whole: bool
    sources: Sources = field(default_factory=dict)
    ahead: Ahead = field(default_factory=dict)
    committed: int | None = None


class Commit(NamedTuple):
    """A commit of the group; ``low`` None: nothing but the offset."""

    offset: int
    low: int | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a host begins: the log that is there from ``first`` on, and the group's commit."""

    log: list[Sent]
    first: int
    commit: Commit
    new: bool


class Said(NamedTuple):
    """The verdict on a record, and the records that the watermark had passed and those completed above it then."""

    offset: int
    answer: Answer
    high: int
    ahead: frozenset[int]


class LastIdHost:
    """One consumer; offsets are "the next one" where they are watermarks."""

    def __init__(self, rule: LastIdRule) -> None:
        self.rule = rule
        self.disk: Store | None = None
        self.live = Store(0, 0, whole=True)
        self._log: list[Sent] = []
        self._in_flight: dict[int, Sent] = {}
        self._parked: list[int] = []
        self.complete = False

    # --- coming up to date ---------------------------------------------------------------------------------------

    def assign(self, beginning: Beginning) -> None:
        """Come up to the group's commit: by the disk and the tail of the log, or by the log alone."""
        self._log, self._in_flight, self._parked = beginning.log, {}, []
        commit = beginning.commit
        at, low = commit.offset, commit.offset if commit.low is None else commit.low
        self.complete = beginning.new or commit.complete
        store = None if beginning.new else deepcopy(self.disk)
        if store is not None and store.committed is not None and at < store.committed:
            store = None  # set back: all is judged again as it was the first time
        elif store is not None and low < store.low:
            store = None  # the group's history begins earlier than this disk knows
        if store is None:
            store = Store(low, low, whole=self.complete)
        elif low > store.low:
            store.low = low
            if low > store.high:
                self._move(store, low)
        if store.high < at:
            if beginning.first > store.high:
                self._move(store, min(beginning.first, at))
            self._replay(store, at)
        self._forget_below(store)
        self.live = store
        self._advance()
        self.note_committed(at)
        self.write()

    def _replay(self, store: Store, at: int) -> None:
        for offset in range(store.high, at):
            self._fold(store, self._log[offset])
        store.high = at

    def _move(self, store: Store, offset: int) -> None:
        """Let the watermark pass records that nobody folds: whatever was completed there is missing."""
        store.high, store.whole = offset, False
        store.sources = {name: self.rule.doubt(state) for name, state in store.sources.items()}

    def _forget_below(self, store: Store) -> None:
        store.ahead = {offset: row for offset, row in store.ahead.items() if offset >= store.high}

    def jump(self, offset: int) -> None:
        """Go on further ahead; nothing is in flight.

        The watermark never moves back on the kept IDs: without offsets nobody could take out again those behind it.
        """
        self.live.low, self.complete = offset, False
        if offset > self.live.high:
            self._move(self.live, offset)
            self._forget_below(self.live)
            self._advance()
        self.write()

    # --- judging -------------------------------------------------------------------------------------------------

    def is_redelivered(self, offset: int) -> bool:
        """Whether this very record was completed before."""
        return self.live.low <= offset < self.live.high or offset in self.live.ahead

    def admit(self, offset: int) -> Said | None:
        """Judge a record that was not completed before; None while it waits for its twin."""
        row = self._log[offset]
        if self._has_twin(row):
            self._parked.append(offset)
            return None
        answer = self.answer(offset)
        said = Said(offset, answer, self.live.high, frozenset(self.live.ahead))
        if self.rule.delivers(answer):
            self._in_flight[offset] = row
        else:
            self._complete(offset, row)
        return said

    def answer(self, offset: int) -> Answer:
        """Return the answer of the rule."""
        row, store = self._log[offset], self.live
        ahead = [
            other.ident
            for place, other in store.ahead.items()
            if place < offset and other is not None and other.source == row.source
        ]
        return self.rule.judge(store.sources.get(row.source), row.ident, ahead, whole=store.whole)

    def _has_twin(self, row: Sent) -> bool:
        return any(
            other.source == row.source and compare(row.ident, other.ident) is Order.SAME
            for other in self._in_flight.values()
        )

    # --- completion ----------------------------------------------------------------------------------------------

    def end(self, offset: int) -> list[Said]:
        """Complete a record; return the verdicts on the twins that waited for it."""
        row = self._in_flight.pop(offset)
        self._complete(offset, row)
        waiting, self._parked = sorted(self._parked), []
        answers = [self.admit(twin) for twin in waiting]
        return [said for said in answers if said is not None]

    def _complete(self, offset: int, row: Sent | None) -> None:
        self.live.ahead[offset] = row
        self._advance()

    def _advance(self) -> None:
        store = self.live
        while store.high in store.ahead:
            row = store.ahead.pop(store.high)
            if row is not None:
                self._fold(store, row)
            store.high += 1

    def _fold(self, store: Store, row: Sent) -> None:
        state = self.rule.fold(store.sources.get(row.source), row.ident, whole=store.whole)
        if state is not None:
            store.sources[row.source] = state

    # --- durable steps -------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Put everything that was completed on the disk, at once."""
        self.disk = deepcopy(self.live)

    @property
    def to_commit(self) -> int:
        """The offset to commit: the watermark that is on the disk."""
        assert self.disk is not None
        return self.disk.high

    def note_committed(self, offset: int) -> None:
        """Remember the group's commit."""
        self.live.committed = offset
        if self.disk is not None:
            self.disk.committed = offset
