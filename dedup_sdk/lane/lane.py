"""One partition's decisions: what is in flight, what is completed, and what every record is told.

A lane is fed in offset order and answers in columns. It knows no Kafka, no RocksDB and no clock: older marks come from
``find``, a function of digests, and completed work leaves it as a `Step` that the key store writes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import is_not
from typing import Any, NamedTuple

import numpy as np

from dedup_sdk.decision import Mark, decide, decide_marked
from dedup_sdk.lane.chunk import (
    APART,
    DONE,
    DUPLICATE,
    KINDS,
    OFFERED,
    PARKED,
    PARKED_KIND,
    REDELIVERED,
    UNKEYED,
    UNVERIFIED,
    Chunk,
    Place,
)  # fmt: skip
from dedup_sdk.lane.plan import NOTHING_KNOWN
from dedup_sdk.lane.recent import RecentMarks
from dedup_sdk.lane.ring import Ring
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, NONE_FOUND, Found, Int64s, Marks, join_marks
from dedup_sdk.progress import Coverage, Progress
from dedup_sdk.record import VerdictKind
from dedup_sdk.window import Window

GRACE = 16
"""Sightings are kept for a sixteenth of the window longer, so that records a little late are still covered."""

Find = Callable[[bytes, int], Found]


class Waiting(NamedTuple):
    """A parked record, and what the store said of its ID when it came."""

    chunk: Chunk
    row: int
    stored: Mark | None


class Step(NamedTuple):
    """Completed work that the store does not have yet: the new progress and the marks of the step."""

    progress: Progress
    marks: Marks


class Lane:
    """The state of one partition for one group.

    ``position`` is the offset after the last admitted record; everything in ``[low, high)`` is completed. ``settled``
    gathers the parked records that got their verdict; the owner takes them out. A lane that ``reveals`` judges and hides
    nothing: duplicates are offered too, nothing is parked, and only the application completes.
    """

    def __init__(self, window: Window, progress: Progress, recent: Marks = NO_MARKS) -> None:
        self.window = window
        self.low = progress.low
        self.high = self.position = progress.high
        self.committed = progress.committed
        self.era = progress.era
        self.since_ms = progress.since_ms
        self.since_number = progress.since_number
        self.newest_ms = progress.newest_ms
        self.ring = Ring(window.count, progress.accepted) if window.count else None
        self.recent = RecentMarks()
        self.parked: dict[bytes, deque[Waiting]] = {}
        self.settled: list[Place] = []
        self._accepted = progress.accepted
        self._restored = progress.done
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._dirty: list[Chunk] = []
        self._journaled: dict[bytes, Mark] = {}
        self._moved = False
        self.reveals = False
        if recent.count:
            self._load(recent)

    def _load(self, recent: Marks) -> None:
        order = np.argsort(recent.offsets, kind="stable")
        unordered = _cut(recent.digests)
        digests = [unordered[index] for index in order.tolist()]
        offsets, timestamps = recent.offsets[order].tolist(), recent.timestamps[order]
        below = bisect_left(offsets, self.high)
        self.recent.fold(digests[:below], offsets[:below], timestamps[:below])
        # Above the watermark records come again, so that these marks stand apart from the log that passes by.
        above = zip(digests[below:], offsets[below:], timestamps[below:].tolist(), strict=True)
        for digest, offset, timestamp_ms in above:
            self.recent.restore(digest, Mark(offset, timestamp_ms))
        if self.ring and recent.numbers is not None:
            self.ring.numbers.update(zip(digests, recent.numbers[order].tolist(), strict=True))
            self._note_journaled(recent)

    # --- what is known -------------------------------------------------------------------------------------------

    @property
    def coverage(self) -> Coverage:
        """What the marks cover."""
        complete = self.since_ms is None and self.since_number is None
        return Coverage(low=self.low, high=self.high, since_ms=self.since_ms, complete=complete)

    @property
    def progress(self) -> Progress:
        """The state to write beside the marks of a step."""
        ranges: tuple[tuple[int, int], ...] = ()
        if self.ring is None and (self._chunks or self._restored):
            ranges = tuple(
                [r for r in self._restored if r[1] > self.high]
                + [r for chunk in self._chunks for r in chunk.done_ranges(self.high)]
            )
            ranges = tuple(sorted(ranges))
        return Progress(
            low=self.low, high=self.high, done=ranges, committed=self.committed, era=self.era, since_ms=self.since_ms,
            accepted=self.ring.accepted if self.ring else self._accepted, since_number=self.since_number,
            newest_ms=self.newest_ms,
        )  # fmt: skip

    def begin(self, offset: int) -> None:
        """Begin the history at this offset; only before the first record."""
        self.low = self.high = self.position = offset
        self._moved = True

    def note_committed(self, offset: int) -> None:
        """Remember the last offset known to be committed."""
        if self.committed is None or offset > self.committed:
            self.committed = offset
            self._moved = True

    @property
    def in_flight(self) -> int:
        """How many admitted records are not completed, parked ones included."""
        return sum(chunk.open for chunk in self._chunks)

    @property
    def kept(self) -> int:
        """How many records are in memory: those in flight, and completed ones behind the first of these."""
        return sum(len(chunk.offsets) for chunk in self._chunks)

    def place(self, offset: int) -> Place | None:
        """Find a record that is not settled yet, or whose chunk is not."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        row = self._chunks[at].row_of(offset)
        return None if row is None else Place(self._chunks[at], row)

    def is_completed(self, offset: int) -> bool:
        """Whether this group has completed the record at this offset since ``low``."""
        if offset < self.high:
            return offset >= self.low
        place = self.place(offset)
        if place is not None:
            return place.chunk.states[place.row] == DONE
        return any(start <= offset < end for start, end in self._restored)

    def _is_open(self, offset: int) -> bool:
        if offset < self.high:
            return False
        place = self.place(offset)
        return place is not None and place.chunk.states[place.row] != DONE

    def covers(self, timestamp_ms: int) -> bool:
        """Whether the marks know everything that the window of a record with this timestamp could hold."""
        if self._covered_by_count():
            return True
        if self.window.time_ms is None:
            return False
        return self.since_ms is None or self.since_ms <= timestamp_ms - self.window.time_ms

    def _covered_by_count(self) -> bool:
        if self.ring is None:
            return False
        return self.since_number is None or self.ring.accepted - self.since_number >= self.ring.size

    # --- admission -----------------------------------------------------------------------------------------------

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: list[bytes | None],
        missing: dict[int, str],
        find: Find,
        items: Sequence[Any] = (),
        *,
        discard_unkeyed: bool = False,
    ) -> Chunk:
        """Judge records at or above ``position``, ascending by offset; the chunk holds their verdicts.

        ``missing`` has, for every index without a digest, the reason. What is judged a duplicate is completed already.
        When ``find`` raises, nothing of the lane has changed.
        """
        chunk = Chunk(offsets, timestamps, digests, items)
        if self._restored:
            self._skip_restored(chunk)
        if missing:
            self._leave_unkeyed(chunk, missing, discard=discard_unkeyed)
        keyed = None if not chunk.unmarked else [i for i in range(len(offsets)) if i not in chunk.unmarked]
        asked: list[Any] = digests if keyed is None else [digests[index] for index in keyed]
        joined = b"".join(asked)
        found = find(joined, len(asked)) if asked else NONE_FOUND
        self._restored = tuple(r for r in self._restored if r[1] > offsets[-1] + 1)
        self.position = offsets[-1] + 1
        self._chunks.append(chunk)
        self._firsts.append(offsets[0])
        if keyed is None:
            chunk.joined = joined
            self.recent.timeline.extend(chunk.column, timestamps)
        else:
            self.recent.timeline.extend(chunk.column[keyed], timestamps[keyed])
        if asked:
            self._judge(chunk, keyed, asked, found)
        if chunk.open < len(offsets):
            self._dirty.append(chunk)
            self._advance()
        return chunk

    def _skip_restored(self, chunk: Chunk) -> None:
        edges = np.asarray(sorted(self._restored), np.int64).ravel()
        # An offset inside a range has an odd number of edges at or before it.
        inside = edges.searchsorted(chunk.column, side="right") % 2 == 1
        for index in np.flatnonzero(inside).tolist():
            chunk.finish(index, REDELIVERED)
            chunk.unmarked.add(index)

    def _leave_unkeyed(self, chunk: Chunk, missing: dict[int, str], *, discard: bool) -> None:
        for index, reason in missing.items():
            if index in chunk.unmarked:
                continue
            chunk.unmarked.add(index)
            chunk.reasons[index] = reason
            chunk.kinds[index] = UNKEYED
            if discard:
                chunk.withheld.add(index)
                chunk.finish(index)

    def _judge(self, chunk: Chunk, keyed: list[int] | None, digests: list[bytes], found: Found) -> None:
        """Judge the records at ``keyed`` (None: all of them) by their digests, in one pass of columns."""
        offsets = chunk.offsets if keyed is None else [chunk.offsets[index] for index in keyed]
        before = list(map(self.recent.offsets.setdefault, digests, offsets))
        doubtful = self.since_ms is not None or self.since_number is not None
        if doubtful:
            self._doubt(chunk, range(len(chunk.offsets)) if keyed is None else keyed)
        if before == offsets and not found.indexes and self.ring is None:
            return
        stored = _as_marks(found)
        if self.ring is not None:
            met: Iterable[int] = range(len(offsets))
        else:
            met = list(compress(range(len(offsets)), map(is_not, before, offsets)))
            if stored:
                met = sorted({*met, *stored})
            met = self._meet_columns(chunk, met, keyed, digests, before, stored)
        for index in met:
            self._meet(chunk, index if keyed is None else keyed[index], stored.get(index))

    def _meet_columns(
        self,
        chunk: Chunk,
        met: list[int],
        keyed: list[int] | None,
        digests: list[bytes],
        before: list[int],
        stored: dict[int, Mark],
    ) -> list[int]:
        """Judge at once the records whose ID has one completed mark and nothing in flight; return the others."""
        rows = np.asarray(met, np.intp)
        seen = np.fromiter(map(before.__getitem__, met), np.int64, len(met))
        plain = seen < self.high
        for at in self._entangled(met, digests, stored):
            plain[at] = False
        others: list[int] = rows[~plain].tolist()
        if len(others) == len(met):
            return others
        asked, seen = rows[plain], seen[plain]
        rows = asked if keyed is None else np.asarray(keyed, np.intp)[asked]
        seen_ms = self.recent.timeline.at_all(seen)
        duplicates = decide_marked(chunk.column[rows], chunk.timestamps[rows], seen, seen_ms, self.window)
        if not duplicates.all():
            others = sorted([*others, *asked[~duplicates].tolist()])
            rows, seen, seen_ms = rows[duplicates], seen[duplicates], seen_ms[duplicates]
        chunk.find_duplicates(rows, seen, seen_ms, completed=not self.reveals)
        hits = rows.tolist()
        known: list[Any] = chunk.digests
        self.recent.offsets.update(
            zip(map(known.__getitem__, hits), map(chunk.offsets.__getitem__, hits), strict=True)
        )
        return others

    def _entangled(self, met: list[int], digests: list[bytes], stored: dict[int, Mark]) -> list[int]:
        """Return the places in ``met`` whose verdict hangs on more than one mark, on each other, or on what is parked."""
        if not stored and not self.parked and len(set(map(digests.__getitem__, met))) == len(met):
            return []
        times = Counter(map(digests.__getitem__, met))
        return [
            at
            for at, index in enumerate(met)
            if index in stored or times[digests[index]] > 1 or digests[index] in self.parked
        ]

    def _doubt(self, chunk: Chunk, keyed: Iterable[int]) -> None:
        """Call what the marks do not cover unverified, until a mark says better."""
        if self._covered_by_count():
            return
        uncovered: Iterable[int] = keyed
        if self.window.time_ms is not None:
            if self.since_ms is None:
                return
            late = chunk.timestamps < self.since_ms + self.window.time_ms
            if not late.any():
                return
            uncovered = [index for index in keyed if late[index]]
        for index in uncovered:
            chunk.kinds[index] = UNVERIFIED
            chunk.reasons[index] = "uncovered"

    def _meet(self, chunk: Chunk, index: int, stored: Mark | None) -> None:
        """Judge one record whose ID may be known."""
        if self.ring is not None:
            self.ring.consider(chunk.offsets[index])
        digest = _digest(chunk, index)
        if digest not in self.parked and self._settle_one(chunk, index, stored):
            return
        if self.reveals:
            self._reveal(chunk, index)
        else:
            chunk.states[index] = PARKED
            chunk.kinds[index] = PARKED_KIND
            chunk.reasons[index] = "in-flight"
            self.parked.setdefault(digest, deque()).append(Waiting(chunk, index, stored))

    def _reveal(self, chunk: Chunk, index: int) -> None:
        """Call a twin of what is in flight a duplicate, and offer it."""
        digest, offset = _digest(chunk, index), chunk.offsets[index]
        leader = self.recent.offsets[digest]
        chunk.kinds[index] = DUPLICATE
        chunk.reasons[index] = "in-flight"
        if leader != offset:
            chunk.seen[index] = (leader, self.recent.timeline.at(leader))
        self.recent.offsets[digest] = offset
        if self.ring is not None:
            self.ring.forget(digest, offset)

    def _settle_one(self, chunk: Chunk, index: int, stored: Mark | None) -> bool:
        """Give a record its verdict and return True, or False while that hangs on what is in flight."""
        mark = stored
        digest, offset, timestamp = _digest(chunk, index), chunk.offsets[index], int(chunk.timestamps[index])
        leader = self.recent.offsets.get(digest, offset)
        if leader != offset:
            if self._is_open(leader):
                return False
            if mark is None or leader > mark.offset:
                mark = Mark(leader, self.recent.timeline.at(leader))
        if self.ring is not None and mark is not None:
            number = self.ring.numbers.get(digest, mark.number)
            after = self.ring.accepted_after(digest, number, offset)
            if after is None:
                return False
            mark = mark._replace(number=-after)
        kind = decide(
            offset, timestamp, mark, keyed=True, low=offset, high=offset, done=(), window=self.window,
            covered=mark is not None or self.covers(timestamp),
        )  # fmt: skip
        chunk.kinds[index] = KINDS.index(kind)
        chunk.reasons.pop(index, None)
        if kind is VerdictKind.DUPLICATE and mark is not None:
            chunk.seen[index] = (mark.offset, mark.timestamp_ms)
            if not self.reveals:
                chunk.finish(index)
            self.recent.offsets[digest] = offset
            if self.ring is not None:
                self.ring.forget(digest, offset)
                if stored is not None:
                    self.ring.numbers.setdefault(digest, stored.number)
            return True
        if kind is VerdictKind.UNVERIFIED:
            chunk.reasons[index] = "uncovered"
        if chunk.states[index] == PARKED:
            chunk.states[index] = APART
        self.recent.fly(digest, offset)
        if self.ring is not None:
            self.ring.offer(digest, offset)
        return True

    # --- completion ----------------------------------------------------------------------------------------------

    def complete_chunk(self, chunk: Chunk) -> list[Place]:
        """Complete every record that was offered with its chunk; return what is to be delivered next."""
        if not chunk.open:
            return []
        chunk.finish_offered()
        return self._completed(chunk)

    def complete(self, chunk: Chunk, indexes: Iterable[int]) -> list[Place]:
        """Complete some records of a chunk; return what is to be delivered next. What is parked stays so."""
        for index in indexes:
            if chunk.states[index] in (OFFERED, APART):
                chunk.finish(index)
        return self._completed(chunk)

    def _completed(self, chunk: Chunk) -> list[Place]:
        if chunk not in self._dirty:
            self._dirty.append(chunk)
        if self.recent.behind:
            for digest in list(self.recent.behind):
                offset = self.recent.offsets.get(digest)
                if offset is not None and not self._is_open(offset):
                    self.recent.land(digest, offset)
        self._advance()
        return self._settle()

    def release(self, place: Place) -> list[Place]:
        """Offer a record again: its handler failed. Its twins stay parked, promoting one would double the message."""
        chunk, index = place
        if chunk.states[index] not in (OFFERED, APART):
            return []
        chunk.states[index] = APART
        chunk.attempts[index] = chunk.attempts.get(index, 1) + 1
        return [place]

    def bury(self, place: Place) -> list[Place]:
        """End a record without a mark (it was dead-lettered); its first twin is judged again."""
        chunk, index = place
        if chunk.states[index] not in (OFFERED, APART):
            return []
        chunk.finish(index)
        if index not in chunk.unmarked:
            chunk.unmarked.add(index)
            self.recent.drop(_digest(chunk, index), chunk.offsets[index])
            if self.ring is not None:
                self.ring.forget(_digest(chunk, index), chunk.offsets[index])
        return self._completed(chunk)

    def _settle(self) -> list[Place]:
        """Judge the parked records whose turn has come; return those to deliver, ascending by offset."""
        offered: list[Place] = []
        progressed = bool(self.parked)
        while progressed:
            progressed = False
            for digest in list(self.parked):
                queue = self.parked[digest]
                while queue and self._settle_one(*queue[0]):
                    chunk, index, _ = queue.popleft()
                    progressed = True
                    self.settled.append(Place(chunk, index))
                    if chunk.states[index] == APART:
                        offered.append(Place(chunk, index))
                    elif chunk not in self._dirty:
                        self._dirty.append(chunk)
                if not queue:
                    del self.parked[digest]
            if progressed:
                self._advance()
        return sorted(offered, key=lambda place: place.chunk.offsets[place.row])

    def _advance(self) -> None:
        """Move the watermark over the contiguous completed prefix."""
        finished = 0
        for chunk in self._chunks:
            if chunk.open:
                break
            finished += 1
        if self.ring is not None:
            self._number(self._chunks[: finished + 1], self.ring)
        if finished:
            del self._chunks[:finished], self._firsts[:finished]
        high = self._chunks[0].first_open() if self._chunks else self.position
        if high != self.high:
            self.high = high
            self._moved = True

    def _number(self, chunks: list[Chunk], ring: Ring) -> None:
        """Number the accepted records that the watermark passes."""
        for chunk in chunks:
            end = len(chunk.states) - len(chunk.states.lstrip(b"\0")) if chunk.open else len(chunk.states)
            for index in range(bisect_left(chunk.offsets, self.high), end):
                if index not in chunk.unmarked:
                    ring.number(_digest(chunk, index), chunk.offsets[index])

    # --- what others completed ------------------------------------------------------------------------------------

    def fold(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], find: Find, end: int
    ) -> Step:
        """Take over records ``[high, end)`` that the group completed elsewhere; return the step to write.

        Only while nothing is in flight. ``offsets`` ascending; records without an ID have None; holes are not passed.
        """
        chunk = Chunk(offsets, timestamps, digests)
        if self.ring is not None:
            self._fold_ring(chunk, find)
        else:
            keyed = [index for index, digest in enumerate(digests) if digest is not None]
            self.recent.fold(
                [_digest(chunk, index) for index in keyed],
                [offsets[index] for index in keyed],
                timestamps[keyed],
            )
        chunk.unmarked.update(index for index, digest in enumerate(digests) if digest is None)
        chunk.finish_offered()
        if offsets:
            self.newest_ms = max(self.newest_ms, int(timestamps.max()))
        self.high = self.position = max(self.high, end)
        self._restored = tuple(r for r in self._restored if r[1] > self.high)
        while self._restored and self._restored[0][0] <= self.high:
            self.high = self.position = max(self.high, self._restored[0][1])
            self._restored = self._restored[1:]
        marks = self._columns(chunk, chunk.unsaved()) if offsets else NO_MARKS
        self._note_journaled(marks)
        return Step(self.progress, marks)

    def _fold_ring(self, chunk: Chunk, find: Find) -> None:
        """Judge and complete one record after the other: a ring depends on the order."""
        for index, (offset, digest) in enumerate(zip(chunk.offsets, chunk.digests, strict=True)):
            if digest is None:
                self.position = offset + 1
                continue
            single = self.admit([offset], chunk.timestamps[index : index + 1], [digest], {}, find)
            self.complete_chunk(single)
        self._dirty.clear()

    # --- what the store gets -------------------------------------------------------------------------------------

    def take_step(self) -> Step | None:
        """Return what was completed since the last call, None when that is nothing; the caller writes it."""
        dirty, self._dirty = self._dirty, []
        parts: list[Marks] = []
        for chunk in dirty:
            whole = None if self.ring is not None else chunk.take_whole()
            if whole is not None:
                self.newest_ms = max(self.newest_ms, int(chunk.timestamps.max()))
                parts.append(whole)
                continue
            indexes = chunk.unsaved()
            if self.ring is not None:
                numbered = int(np.searchsorted(chunk.column[indexes], self.high))
                if numbered < len(indexes):
                    # The rest is written when the watermark has passed it.
                    self._dirty.append(chunk)
                indexes = indexes[:numbered]
            if not len(indexes):
                continue
            self.newest_ms = max(self.newest_ms, int(chunk.timestamps[indexes].max()))
            parts.append(self._columns(chunk, indexes))
            np.frombuffer(chunk.saved, np.uint8)[indexes] = 1
        if not parts and not self._moved:
            return None
        self._moved = False
        marks = join_marks(parts)
        self._note_journaled(marks)
        return Step(self.progress, marks)

    def _columns(self, chunk: Chunk, indexes: np.ndarray[Any, np.dtype[np.intp]]) -> Marks:
        if (
            chunk.joined is not None
            and len(indexes) == len(chunk.offsets)
            and not chunk.unmarked
            and self.ring is None
        ):
            return Marks(chunk.joined, chunk.column, chunk.timestamps)
        marked = [index for index in indexes.tolist() if index not in chunk.unmarked]
        digests = [_digest(chunk, index) for index in marked]
        numbers = None
        if self.ring is not None:
            numbers = np.asarray([self.ring.numbers.get(digest, 0) for digest in digests], np.int64)
        return Marks(b"".join(digests), chunk.column[marked], chunk.timestamps[marked], numbers)

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """Remove the recent marks for a flush and return those still inside the window at ``clock_ms``.

        What is left out lies before the window of every record that is not older than the clock; coverage says so.
        Nothing is left out that hides an older mark of the store, whose timestamp may be a later one.
        """
        marks = (
            self.recent.take(self._completed_mask) if self.ring is None else self._take_numbered(self.ring)
        )
        for chunk in self._chunks:
            self.recent.timeline.extend(chunk.column, chunk.timestamps)
        live = np.ones(marks.count, np.bool_)
        if self.window.time_ms is not None:
            horizon = self.horizon_ms(clock_ms)
            live &= marks.timestamps >= horizon
            aged = np.flatnonzero(~live)
            if aged.size:
                live[aged[find(_select(marks.digests, aged), aged.size).indexes]] = True
                self.forgot_before(horizon)
        if self.ring is not None and marks.numbers is not None:
            live &= marks.numbers > self.ring.accepted - self.ring.size
        if bool(live.all()):
            return marks
        numbers = None if marks.numbers is None else marks.numbers[live]
        return Marks(_select(marks.digests, live), marks.offsets[live], marks.timestamps[live], numbers)

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

    def _note_journaled(self, marks: Marks) -> None:
        if self.ring is None or marks.numbers is None:
            return
        columns = zip(marks.offsets.tolist(), marks.timestamps.tolist(), marks.numbers.tolist(), strict=True)
        for digest, mark in zip(_cut(marks.digests), map(Mark._make, columns), strict=True):
            if self._journaled.get(digest, mark).offset <= mark.offset:
                self._journaled[digest] = mark

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
        digests = _cut(marks.digests)
        self._note_journaled(marks)
        for digest, offset in zip(digests, marks.offsets.tolist(), strict=True):
            # What is in flight stays in front of its mark.
            self.recent.offsets.setdefault(digest, offset)
        if self.ring is not None and marks.numbers is not None:
            self.ring.numbers = dict(zip(digests, marks.numbers.tolist(), strict=True)) | self.ring.numbers

    def horizon_ms(self, clock_ms: int) -> int:
        """Return the timestamp before which a sighting may be forgotten, with some grace for records that come late."""
        window_ms = self.window.time_ms or 0
        return clock_ms - window_ms - window_ms // GRACE

    def forgot_before(self, timestamp_ms: int) -> None:
        """Note that sightings before this timestamp are no longer known, whatever their numbers."""
        self.since_ms = timestamp_ms if self.since_ms is None else max(self.since_ms, timestamp_ms)
        if self.ring is not None:
            self.since_number = self.ring.accepted

    def know_from(self, timestamps: Int64s) -> None:
        """Let the marks begin with the newest of these timestamps (-1: there is none), where nothing was known."""
        if self.since_ms == NOTHING_KNOWN:
            real = timestamps[timestamps >= 0]
            if real.size:
                self.since_ms = int(real.max())

    def forget_all(self) -> None:
        """Note that nothing is known before the next record."""
        self.since_ms, self.since_number = NOTHING_KNOWN, self.ring.accepted if self.ring else self._accepted

    def _completed_mask(self, offsets: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        mask = offsets < self.high
        for index in np.flatnonzero(~mask).tolist():
            mask[index] = not self._is_open(int(offsets[index]))
        return mask


def _digest(chunk: Chunk, index: int) -> bytes:
    digest = chunk.digests[index]
    if digest is None:
        raise AssertionError(f"record {chunk.offsets[index]} has no ID and was to be judged by it")
    return digest


def _select(digests: bytes, where: np.ndarray[Any, Any]) -> bytes:
    """Return the digests at some indexes, or where a mask is true."""
    selected: bytes = np.frombuffer(digests, f"V{DIGEST_BYTES}")[where].tobytes()
    return selected


def _cut(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]


def _as_marks(found: Found) -> dict[int, Mark]:
    numbers = found.numbers or [0] * len(found.indexes)
    columns = zip(found.offsets, found.timestamps, numbers, strict=True)
    return dict(zip(found.indexes, (Mark(*column) for column in columns), strict=True))
