"""Two states of a partition through one life.

One that judges all records at once where it can, and one that looks at record after record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dedup_sdk._core.flight import OFFERED, SINGLE, Chunk, RecordRef
from dedup_sdk._core.last import LastMemory, open_last
from dedup_sdk._core.last_judge import LastJudge
from dedup_sdk._core.memory import JournalStep
from dedup_sdk._core.source_keys import PARTITION_SOURCE, SourceKeys
from dedup_sdk._core.sources import Sources
from dedup_sdk._core.state import PartitionState
from dedup_sdk._marks import NO_MARKS, NONE_FOUND, Found, Known, Marks, Progress, join_marks, latest
from dedup_sdk.ids import header

if TYPE_CHECKING:
    from dedup_sdk._core.compared import Compared
    from dedup_sdk._core.last_rule import LastRule
    from dedup_sdk._core.sources import LastNotes


class JudgesOneByOne(LastJudge):
    """Looks at every record by itself, at its place and never at a number."""

    def judge_all(self, chunk: Chunk, compared: Compared) -> None:
        """See `LastJudge`."""
        compared.places, compared.numbers = self._rule.order.sort_keys(compared.ids), None
        self.judge_rows(chunk, compared, range(len(chunk.offsets)))

    def _wait(self, chunk: Chunk, row: int, leader: int, token: Any = None) -> None:
        del token
        super()._wait(chunk, row, leader)


class FoldsOneByOne(Sources):
    """Folds every record by itself."""

    def _take_over(self, chunk: Chunk, compared: Compared, notes: LastNotes) -> None:
        del notes
        for row in range(len(chunk.offsets)):
            self._take_over_row(chunk, row, compared)


def one_by_one(rule: LastRule, keys: SourceKeys, progress: Progress, recent: Marks) -> PartitionState:
    """A partition whose memory looks at record after record."""
    memory = LastMemory(rule, keys, progress)
    flight, reach = memory.flight, memory.reach
    memory.sources = FoldsOneByOne(rule, keys, flight, reach)
    memory.sources.load(recent)
    memory.last_judge = JudgesOneByOne(flight, reach, memory.sources, memory.fallback_ids, None)
    return PartitionState(memory)


class Pair:
    """Both states through one life: both give the same answers. ``latest_ms``: the time now."""

    latest_ms = 2**62

    def __init__(
        self, rule: LastRule, *, since_ms: int | None, by_source: bool, shows_duplicates: bool
    ) -> None:
        self.keys = SourceKeys(header("id"), header("source") if by_source else None, rule.order.name)
        self.by_source = by_source
        self.rule = rule
        self.shows_duplicates = shows_duplicates
        self.steps: list[list[JournalStep]] = [[], []]
        self.stored: list[dict[bytes, tuple[int, int, bytes]]] = [{}, {}]
        self.begin([Progress(low=0, high=0, known=Known(since_ms=since_ms))] * 2, [NO_MARKS] * 2)

    def begin(self, progresses: list[Progress], recent: list[Marks]) -> None:
        """Open both, with the durable marks."""
        self.states: list[PartitionState] = [
            made(self.rule, self.keys, progress, marks)
            for made, progress, marks in zip((open_last, one_by_one), progresses, recent, strict=True)
        ]
        for state in self.states:
            state.flight.show_duplicates(shown=self.shows_duplicates)

    def find(self, which: int, digests: bytes, count: int) -> Found:
        """Look marks up as the store beside one of them would."""
        asked = [digests[16 * at : 16 * at + 16] for at in range(count)]
        hits = [at for at, digest in enumerate(asked) if digest in self.stored[which]]
        if not hits:
            return NONE_FOUND
        rows = [self.stored[which][asked[at]] for at in hits]
        return Found(hits, [row[0] for row in rows], [row[1] for row in rows], None, [row[2] for row in rows])

    def key(self, source: str, id_bytes: bytes) -> bytes:
        """Return a source key."""
        return (source.encode().ljust(16, b".") if self.by_source else PARTITION_SOURCE) + id_bytes

    def both(self, act: Any) -> None:
        """Have both do something, and compare the records to deliver next, and all that is in memory."""
        said = [[place.offset for place in act(state) or ()] for state in self.states]
        assert said[0] == said[1]
        one, other = ([told_of(chunk) for chunk in state.flight.chunks] for state in self.states)
        assert one == other
        one_settled, other_settled = (
            [place.offset for place in state.flight.settled] for state in self.states
        )
        assert one_settled == other_settled

    def admit(self, offsets: list[int], times: list[int], keys: list[bytes | None], *, fold: bool) -> None:
        """Let records come, or take over that they were completed."""
        columns = offsets, np.asarray(times, np.int64), keys
        if fold:
            end = offsets[-1] + 1
            steps = [
                state.fold(*columns, partial(self.find, at), end, now_ms=self.latest_ms)
                for at, state in enumerate(self.states)
            ]
            self.keep(steps)
            return
        missing = {index: "absent" for index, key in enumerate(keys) if key is None}
        chunks = [
            state.admit(*columns, missing, partial(self.find, at), now_ms=self.latest_ms)
            for at, state in enumerate(self.states)
        ]
        assert told_of(chunks[0]) == told_of(chunks[1])

    def open(self) -> list[int]:
        """Return the offsets of the records that the application has."""
        return [
            chunk.offsets[row]
            for chunk in self.states[0].flight.chunks
            for row, state in enumerate(chunk.states)
            if state in (OFFERED, SINGLE)
        ]

    def plainly(self, offset: int) -> bool:
        """Whether a record is with the application together with its chunk."""
        place = self.states[0].flight.place(offset)
        return place is not None and place.chunk.states[place.row] == OFFERED

    def end(self, how: str, offset: int) -> None:
        """End a record, or its whole chunk."""

        def act(state: PartitionState) -> list[RecordRef]:
            place = state.flight.place(offset)
            assert place is not None
            if how == "complete all":
                return state.complete_chunk(place.chunk)
            return (
                state.complete(place.chunk, [place.row]) if how == "complete" else state.flight.release(place)
            )

        self.both(act)

    def write(self) -> None:
        """Compare the steps to store."""
        self.keep([state.take_step() for state in self.states])

    def keep(self, steps: list[Any]) -> None:
        """Write a step of each, as a journal does."""
        compare(steps)
        for journal, step in zip(self.steps, steps, strict=True):
            if step is not None:
                journal.append(step)

    def flush(self, clock_ms: int) -> None:
        """Turn both journals into marks to look up."""
        self.write()
        taken = [
            state.memory.take_recent(clock_ms, partial(self.find, at)) for at, state in enumerate(self.states)
        ]
        assert rows_of(taken[0]) == rows_of(taken[1])
        for stored, marks in zip(self.stored, taken, strict=True):
            stored.update((digest, row) for digest, *row in rows_of(marks))  # type: ignore[misc]
        self.steps = [[JournalStep(state.progress, NO_MARKS)] for state in self.states]

    def crash(self) -> int:
        """Open both again with the durable marks; return from where records come again."""
        found = [
            latest([step.progress for step in journal]) or Progress(low=0, high=0) for journal in self.steps
        ]
        self.begin(
            found,
            [join_marks([step.marks for step in journal if step.marks.count]) for journal in self.steps],
        )
        return found[0].high


def told_of(chunk: Chunk) -> tuple[Any, ...]:
    """Return everything that was said of a chunk's records."""
    return bytes(chunk.verdicts), bytes(chunk.states), chunk.open, chunk.reasons, chunk.seen, chunk.attempts


def compare(steps: list[Any]) -> None:
    """Hold two steps against each other."""
    one, other = steps
    assert (one is None) == (other is None)
    if one is not None:
        assert one.progress == other.progress
        assert rows_of(one.marks) == rows_of(other.marks)


def rows_of(marks: Any) -> list[tuple[Any, ...]]:
    """Return marks in an order of their own."""
    digests = [marks.digests[at : at + 16] for at in range(0, len(marks.digests), 16)]
    return sorted(
        zip(digests, marks.offsets.tolist(), marks.timestamps.tolist(), marks.payloads or [], strict=True)
    )
