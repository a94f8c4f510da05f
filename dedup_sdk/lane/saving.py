"""What the key store gets of a lane: a step at a time, and all recent marks when they become a sorted file."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from dedup_sdk.lane.chunk import Chunk, digest_of
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.ranges import merged
from dedup_sdk.lane.ring import Ring
from dedup_sdk.lane.state import LaneState, cut_digests
from dedup_sdk.marks import NO_MARKS, Int64s, Marks, join_marks, select_marks, take_digests
from dedup_sdk.progress import Progress
from dedup_sdk.window import Window


class Step(NamedTuple):
    """Completed work that the store does not have yet: the new progress and the marks of the step."""

    progress: Progress
    marks: Marks


class Saving(LaneState):
    """The half of a lane that hands out what is to be kept."""

    def __init__(self, window: Window, progress: Progress, recent: Marks = NO_MARKS) -> None:
        self._above: dict[int, Chunk] = {}
        self._order: list[int] = []
        super().__init__(window, progress, recent)

    def take_step(self) -> Step | None:
        """Return what was completed since the last call, None when that is nothing; the caller writes it.

        Its progress is a delta: the steps before have the rest of what is completed above the watermark.
        """
        dirty, self._dirty = self._dirty, {}
        parts: list[Marks] = []
        done: list[tuple[int, int]] = []
        for chunk in list(dirty.values()) if self.ring is None else self._reached(dirty):
            whole = None if self.ring is not None else chunk.take_whole()
            if whole is not None:
                self.newest_ms = max(self.newest_ms, int(chunk.timestamps.max()))
                parts.append(whole)
                if chunk.offsets[-1] >= self.high:
                    done += chunk.done_ranges(self.high)
                continue
            indexes = chunk.unsaved()
            if self.ring is not None:
                numbered = int(np.searchsorted(chunk.column[indexes], self.high))
                if numbered < len(indexes):
                    # The rest is written when the watermark has passed it.
                    self._wait_above(chunk)
                indexes = indexes[:numbered]
            if not len(indexes):
                continue
            self.newest_ms = max(self.newest_ms, int(chunk.timestamps[indexes].max()))
            parts.append(self._columns(chunk, indexes))
            if self.ring is None:
                done += chunk.ranges_of(indexes, self.high)
            np.frombuffer(chunk.saved, np.uint8)[indexes] = 1
        if not parts and not self._moved:
            return None
        self._moved = False
        marks = join_marks(parts)
        self._note_journaled(marks)
        return Step(self._progress(merged(done), delta=True), marks)

    def _reached(self, dirty: dict[int, Chunk]) -> list[Chunk]:
        """Return the chunks of which something may be written, in a lane that follows its watermark: those that has not reached wait, unasked."""
        for chunk in dirty.values():
            self._wait_above(chunk)
        reached: list[Chunk] = []
        while self._order and self._order[0] < self.high:
            reached.append(self._above.pop(heappop(self._order)))
        return reached

    def _wait_above(self, chunk: Chunk) -> None:
        first = chunk.offsets[0]
        if first not in self._above:
            self._above[first] = chunk
            heappush(self._order, first)

    def _columns(self, chunk: Chunk, indexes: np.ndarray[Any, np.dtype[np.intp]]) -> Marks:
        if (
            chunk.joined is not None
            and len(indexes) == len(chunk.offsets)
            and not chunk.unmarked
            and self.ring is None
        ):
            return Marks(chunk.joined, chunk.column, chunk.timestamps)
        marked = [index for index in indexes.tolist() if index not in chunk.unmarked]
        digests = [digest_of(chunk, index) for index in marked]
        numbers = None
        if self.ring is not None:
            numbers = np.asarray([self.ring.numbers.get(digest, 0) for digest in digests], np.int64)
        return Marks(b"".join(digests), chunk.column[marked], chunk.timestamps[marked], numbers)

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """Remove the recent marks for a flush and return those still inside the window at ``clock_ms``.

        What is left out lies before the window of every record that is not older than the clock, or has left a window by count; coverage
        says so, also of what the store may drop for its number after that.
        Nothing is left out that hides an older mark of the store, whose timestamp may be a later one.
        """
        marks = (
            self.recent.take(self._completed_mask) if self.ring is None else self._take_numbered(self.ring)
        )
        for chunk in self._chunks:
            self.recent.timeline.extend(chunk.column, chunk.timestamps)
        live = np.ones(marks.count, np.bool_)
        if self.ring is not None and marks.numbers is not None:
            live &= marks.numbers > self.ring.accepted - self.ring.size
        if self.window.time_ms is not None:
            horizon = self.horizon_ms(clock_ms)
            old = marks.timestamps < horizon
            # What went for its number has left the window, whatever its age.
            aged = np.flatnonzero(old & live)
            live &= ~old
            if aged.size:
                try:
                    hidden = find(take_digests(marks.digests, aged), aged.size).indexes
                except BaseException:
                    self.put_back(marks)
                    raise
                live[aged[hidden]] = True
                self.forgot_before(horizon)
                gone = marks.offsets[~live]
                if gone.size:
                    self.note_dropped(int(gone.max()) + 1)
        if bool(live.all()):
            return marks
        return select_marks(marks, live)

    def _take_numbered(self, ring: Ring) -> Marks:
        """Return the marks that are in the journal, and keep in memory what lies above the watermark.

        Above it nothing has a number yet, and a crash forgets it: the mark below it has to outlive that.
        """
        table = np.asarray(list(self._journaled.values()), np.int64).reshape(-1, 3)
        marks = Marks(b"".join(self._journaled), table[:, 0], table[:, 1], table[:, 2])
        # What waits for its number is judged by recent marks only, so that these stay too.
        waited_for = {digest: self.recent.mark(digest) for digest in self.parked}
        self.recent.keep_from(self.high)
        for digest, mark in waited_for.items():
            if mark is not None and digest not in self.recent.offsets:
                self.recent.restore(digest, mark)
        ring.numbers = {digest: n for digest, n in ring.numbers.items() if digest in self.recent.offsets}
        self._journaled = {}
        return marks

    def put_back(self, marks: Marks) -> None:
        """Take back what `take_recent` gave out and nobody could store."""
        # Later records go on top of the timeline, so that only what lies below them may be part of it.
        passed = marks.offsets < self.position
        columns = [marks.offsets[passed], *(chunk.column for chunk in self._chunks)]
        times = [marks.timestamps[passed], *(chunk.timestamps for chunk in self._chunks)]
        offsets, timestamps = np.concatenate(columns), np.concatenate(times)
        order = np.argsort(offsets, kind="stable")
        self.recent.timeline.replace(offsets[order], timestamps[order])
        for index in np.flatnonzero(~passed).tolist():
            self.recent.timeline.keep(int(marks.offsets[index]), int(marks.timestamps[index]))
        digests = cut_digests(marks.digests)
        self._note_journaled(marks)
        for digest, offset in zip(digests, marks.offsets.tolist(), strict=True):
            # What is in flight stays in front of its mark.
            self.recent.offsets.setdefault(digest, offset)
        if self.ring is not None and marks.numbers is not None:
            self.ring.numbers = dict(zip(digests, marks.numbers.tolist(), strict=True)) | self.ring.numbers

    def _completed_mask(self, offsets: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask = offsets < self.high
        for index in np.flatnonzero(~mask).tolist():
            mask[index] = not self._is_open(int(offsets[index]))
        return mask
