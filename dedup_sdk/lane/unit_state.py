"""A lane whose records may belong to units: its watermark, and what of it is kept."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Final

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.lane.chunk import DONE, PARKED, Place, digest_of
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.lane import Lane
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.stretches import Stretches
from dedup_sdk.lane.unit_chunk import HELD, Whole, gathered_of, units_of
from dedup_sdk.lane.unit_ring import UnitRing
from dedup_sdk.marks import NO_MARKS, Marks, join_marks
from dedup_sdk.progress import Progress
from dedup_sdk.units.gathering import Gathering
from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.window import Window

MOST_HELD_BACK: Final = 20_000
"""So many offsets the watermark may lie below what is completed, for units that overlap; then it stops between records of one."""
MOST_LATELY: Final = 10_000
"""So many units that are over are known by where they lie, for who goes back."""
MOST_TIMES: Final = 65_536
"""So many times of records are kept, whatever they are of."""


@dataclass(slots=True, order=True)
class Landed:
    """What a unit that is over leaves: a mark of each of ``digests`` at its end."""

    end: int
    end_ms: int
    digests: list[bytes]


class UnitState(Lane):
    """`Lane`, and the units in it.

    ``due`` gathers what is to be delivered, or was dropped, because a unit became whole or failed; the owner takes it out. ``wholes`` are
    the units that wait or are in flight, by their ends. ``torn``: from that offset on the log alone tells what was judged here. Before
    it a unit failed, or was accepted in
    doubt, which depends on more than the log; and where one more ID is remembered or one less, a later unit is rejected or not, so
    that a fold of that stretch could remember what nobody has handled. ``crowded`` are the units that failed because too much came behind
    them, each with the offset of its first record, until the owner takes them out.
    """

    def __init__(self, window: Window, keys: UnitKeys, progress: Progress, recent: Marks = NO_MARKS) -> None:
        self.keys = keys
        self.units = Gathering(keys.unit.records)
        self.due: list[Place] = []
        self.crowded: list[tuple[bytes, int]] = []
        self.all_or_nothing = keys.mode == "all-or-nothing"
        self._over = Stretches()
        self._lately: deque[tuple[int, int]] = deque(maxlen=MOST_LATELY)
        self._landed: list[Landed] = []
        self._maybe: dict[bytes, int] = {}
        self._whole_from = 0
        self._promoted: list[Place] = []
        self.wholes: dict[int, Whole] = {}
        super().__init__(window, progress, recent)
        self._numbered = self.high
        if self.ring is not None:
            self.ring = UnitRing.instead_of(self.ring)
        if progress.completed_end > (progress.low if progress.committed is None else progress.committed):
            # What no commit says yet was lost with the process.
            self.tear(progress.completed_end)

    @property
    def unit_ring(self) -> UnitRing | None:
        """The ring of a window by count."""
        return self.ring if isinstance(self.ring, UnitRing) else None

    @property
    def waits_for_unit(self) -> bool:
        """As `LaneState.waits_for_unit`."""
        oldest = next(iter(self.units.open.values()), None)
        first = next((chunk.first_open() for chunk in self._chunks if chunk.open), None)
        return oldest is not None and oldest.offsets[0] == first

    def tear(self, offset: int) -> None:
        """Note that the log before an offset does not tell what was judged."""
        if self.all_or_nothing:
            self.torn = max(self.torn, offset)

    def _shorten_timeline(self) -> None:
        """Forget the times of records of which nothing is remembered nor in flight: without IDs no flush is ever due."""
        timeline = self.recent.timeline
        if len(timeline) > MOST_TIMES and len(timeline) > MOST_TIMES + 4 * (len(self.recent) + self.kept):
            flying = [chunk.column for chunk in self._chunks]
            known = np.fromiter(self.recent.offsets.values(), np.int64, len(self.recent))
            timeline.keep_only(np.concatenate([known, *flying]))

    def before_units(self, offset: int) -> int:
        """Return the highest offset up to this one that no unit which was over lately has records on both sides of."""
        for end, first in sorted(self._lately, reverse=True):
            if first < offset <= end:
                offset = first
        return offset

    def note_over(self, first: int, end: int) -> None:
        """Note that a unit is over."""
        self._over.add(first, end)
        self._lately.append((end, first))

    def waits_below(self, end: int) -> bool:
        """Whether a record below ``end`` waits: for its unit, for others of it, or for one of its ID."""
        for chunk in self._chunks:
            below = bisect_left(chunk.offsets, end)
            if any(state in (PARKED, HELD) for state in chunk.states[:below]):
                return True
            if below < len(chunk.offsets):
                break
        return False

    # --- the watermark -------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Move the watermark over the contiguous completed prefix, but not into a unit that begins in it and ends behind it."""
        high = next((chunk.first_open() for chunk in self._chunks if chunk.open), self.position)
        high = max(self.high, self._outside_units(high))
        if self.unit_ring is not None:
            self._number(self.unit_ring)
            self.unit_ring.pass_below(high)
        finished = 0
        while finished < len(self._chunks) and self._chunks[finished].offsets[-1] < high:
            finished += 1
        if finished:
            del self._chunks[:finished], self._firsts[:finished]
        if high != self.high:
            self.high = high
            self._moved = True
        if self._whole_from < self.torn <= high:
            self._whole_from = high

    @property
    def told_low(self) -> int:
        """As `LaneState.told_low`: no place inside a unit, whose rest would pass for all of it."""
        if not self.torn:
            return self.low
        return max(self.low, self._whole_from if self._whole_from >= self.torn else self.high)

    def _outside_units(self, high: int) -> int:
        """Return the highest offset up to ``high`` that no unit which is over lies on both sides of."""
        outside = self._over.outside(high)
        if high - outside > MOST_HELD_BACK:
            outside = high
            self._over.cut(high)
        self._over.drop_below(outside)
        return outside

    def _number(self, ring: UnitRing) -> None:
        """Number what was accepted before the first that is not over, in the order of ends."""
        front = min((whole.end for whole in self.wholes.values()), default=self.position)
        # What lies before it was over, and has its number.
        chunks = self._chunks[max(0, bisect_right(self._firsts, self._numbered) - 1) :]
        for chunk in chunks:
            if chunk.offsets[0] >= front:
                break
            if not chunk.open:
                continue
            gathered = gathered_of(chunk)
            begin = bisect_left(chunk.offsets, self._numbered)
            rows = (
                row
                for row in range(begin, len(chunk.states))
                if chunk.states[row] != DONE and row not in gathered
            )
            front = min(front, next((chunk.offsets[row] for row in rows), front))
        for chunk in chunks:
            units = units_of(chunk)
            for row in range(bisect_left(chunk.offsets, self._numbered), bisect_left(chunk.offsets, front)):
                whole = units.get(row)
                offset = chunk.offsets[row]
                if whole is not None and whole.end == offset:
                    ring.number_unit(whole.accepted, offset)
                elif row not in chunk.unmarked:
                    ring.number(digest_of(chunk, row), offset)
        self._numbered = max(self._numbered, front)

    def pass_uncounted(self, count: int) -> None:
        """As `LaneState.pass_uncounted`."""
        if self.unit_ring is not None:
            self.unit_ring.pass_uncounted(max(0, count))

    # --- what is kept --------------------------------------------------------------------------------------

    def _land(self, digests: list[bytes], whole: Whole) -> None:
        """Note which IDs a unit that is over leaves a mark of."""
        if digests:
            heappush(self._landed, Landed(whole.end, whole.end_ms, digests))

    def take_step(self) -> Step | None:
        """As `Saving.take_step`; the marks of a unit are written in the step that says that its records are completed."""
        step = super().take_step()
        ready: list[Landed] = []
        while self._landed and (self.ring is None or self._landed[0].end < self.high):
            ready.append(heappop(self._landed))
        if not ready:
            return step
        marks = self._marks_of(ready)
        self._note_journaled(marks)
        if step is None:
            return Step(self._progress((), delta=True), marks)
        return Step(step.progress, join_marks([step.marks, marks]))

    def _marks_of(self, landed: list[Landed]) -> Marks:
        rows = [(digest, each.end, each.end_ms) for each in landed for digest in each.digests]
        digests = [digest for digest, _, _ in rows]
        numbers = None
        if self.ring is not None:
            numbers = np.asarray([self.ring.numbers.get(digest, 0) for digest in digests], np.int64)
        return Marks(
            b"".join(digests),
            np.asarray([end for _, end, _ in rows], np.int64),
            np.asarray([end_ms for _, _, end_ms in rows], np.int64),
            numbers,
        )

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """As `Saving.take_recent`; what a unit that waits is judged by stays, since the store was asked before."""
        waited_for: dict[bytes, Mark] = {}
        for digest in self.parked:
            offset = self.recent.offsets.get(digest)
            mark = None if offset is None or self._is_open(offset) else self.recent.mark(digest)
            if mark is not None:
                waited_for[digest] = mark
        marks = super().take_recent(clock_ms, find)
        for digest, mark in waited_for.items():
            if digest not in self.recent.offsets:
                self.recent.restore(digest, mark)
        return marks

    def _progress(self, done: tuple[tuple[int, int], ...], *, delta: bool = False) -> Progress:
        progress = super()._progress(done, delta=delta)
        if not self._maybe:
            return progress
        # Written while a fold is under way: it may not come to its end.
        since_ms = max(self._maybe.values()) + 1
        return replace(progress, since_ms=max(since_ms, progress.since_ms or 0))
