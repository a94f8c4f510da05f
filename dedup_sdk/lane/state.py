"""What is known of one partition: where it begins, what is completed, and what the marks cover.

The state that judging, completing and saving share. Offsets are "the next one".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.lane.chunk import APART, DONE, OFFERED, REDELIVERED, UNKEYED, Chunk, Place, digest_of
from dedup_sdk.lane.plan import NOTHING_KNOWN
from dedup_sdk.lane.ranges import Range, merged
from dedup_sdk.lane.recent import RecentMarks
from dedup_sdk.lane.ring import Ring
from dedup_sdk.marks import DIGEST_BYTES, NO_MARKS, Int64s, Marks
from dedup_sdk.progress import Coverage, Progress, Witness
from dedup_sdk.window import Window

GRACE = 16
"""Sightings are kept for a sixteenth of the window longer, so that records a little late are still covered."""


class Waiting(NamedTuple):
    """A parked record, and what the store said of its ID when it came."""

    chunk: Chunk
    row: int
    stored: Mark | None


class LaneState:
    """The state of one partition for one group.

    ``position`` is the offset after the last admitted record; everything in ``[low, high)`` is completed. ``settled``
    gathers the parked records that got their verdict; the owner takes them out. ``undecided`` are the parked IDs that wait
    for nothing in flight but for numbers of the count window. A lane that ``reveals`` judges and hides
    nothing: duplicates are offered too, nothing is parked, and only the application completes. ``latest_ms`` is the time now: what is later lies in the future. ``parked``: by ID, what
    waits for it, in the order in which it is to be judged. A fold of the log that begins before ``torn`` may give other marks than
    these: what is told of where the history begins, to who has no marks yet, is no lower (`told_low`).
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
        self.epoch = progress.epoch
        self._witness = progress.witness
        self._last_passed: tuple[int, int, bytes | None] | None = None
        self.torn = 0
        self._epochs_below: list[tuple[int, int]] = []
        self.note_completed_in(progress.completed_end, progress.epoch)
        self._floor_number = progress.floor_number
        self.dropped_to = progress.dropped_to
        self.ring: Ring | None = None
        if window.count:
            self.ring = Ring(
                window.count, progress.accepted, self._leave_ring(window.count, progress.accepted)
            )
        elif self._floor_number:
            # No number keeps anything out any more, and nobody knows how old that was.
            self.since_ms, self.since_number, self._floor_number = NOTHING_KNOWN, progress.accepted, 0
        self.recent = RecentMarks()
        self.parked: dict[bytes, deque[Any]] = {}
        self.undecided: set[bytes] = set()
        self.settled: list[Place] = []
        self._accepted = progress.accepted
        self._restored = merged(progress.done)
        self._chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._dirty: dict[int, Chunk] = {}
        self._journaled: dict[bytes, Mark] = {}
        self._moved = False
        self.reveals = False
        self.latest_ms = NOTHING_KNOWN
        if recent.count:
            self._load(recent)

    def _leave_ring(self, size: int, accepted: int) -> int:
        """Have what was outside of a smaller window stay outside, and what is outside now; return up to which number."""
        floor = max(self._floor_number, accepted - size)
        if floor > (self.since_number or 0):
            self.since_number = floor
        if floor > max(0, accepted - size):
            # This window reaches to what a smaller one forgot, and nobody knows how old that was.
            self.since_ms = NOTHING_KNOWN
        return floor

    def _load(self, recent: Marks) -> None:
        order = np.argsort(recent.offsets, kind="stable")
        unordered = cut_digests(recent.digests)
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

    # --- what is known -------------------------------------------------------------------------------------

    @property
    def coverage(self) -> Coverage:
        """What the marks cover."""
        complete = self.since_ms is None and self.since_number is None
        return Coverage(low=self.low, high=self.high, since_ms=self.since_ms, complete=complete)

    @property
    def progress(self) -> Progress:
        """The whole state, to be written beside marks."""
        ranges: tuple[tuple[int, int], ...] = ()
        if self._chunks or self._restored:
            # What such a lane completes above the watermark has no number yet, or is not folded, so that it is written later.
            numbered = () if self._follows_watermark else self._chunks
            ranges = merged(
                [r for r in self._restored if r[1] > self.high]
                + [r for chunk in numbered for r in chunk.done_ranges(self.high)]
            )
        return self._progress(ranges)

    def _progress(self, done: tuple[tuple[int, int], ...], *, delta: bool = False) -> Progress:
        return Progress(
            low=self.low, high=self.high, done=done, committed=self.committed, era=self.era, since_ms=self.since_ms,
            accepted=self.ring.accepted if self.ring else self._accepted, since_number=self.since_number,
            newest_ms=self.newest_ms, epoch=self.epoch, delta=delta,
            witness=self._the_witness(), floor_number=self._left_ring(),
            dropped_to=self.dropped_to,
        )  # fmt: skip

    def _the_witness(self) -> Witness | None:
        """Return the last record that is completed, as `progress` tells what is."""
        last, self._last_passed = self._last_passed, None
        for chunk in () if self._follows_watermark else reversed(self._chunks):
            row = chunk.states.rfind(DONE)
            if row >= 0:
                last = chunk.offsets[row], int(chunk.timestamps[row]), chunk.digests[row]
                break
        if last is not None and (self._witness is None or last[0] > self._witness.offset):
            self._witness = Witness.of(*last)
        return self._witness

    def witness_of(self, offset: int) -> Witness | None:
        """Return the witness of an offset, where that is the last completed one."""
        known = self._the_witness()
        return known if known is not None and known.offset == offset else None

    def _left_ring(self) -> int:
        """Return up to which number IDs are outside the window by now, or were outside of one before."""
        return (
            self._floor_number
            if self.ring is None
            else max(self.ring.floor, self.ring.accepted - self.ring.size)
        )

    def begin(self, offset: int) -> None:
        """Begin the history at this offset; only before the first record."""
        self.low = self.high = self.position = offset
        self._moved = True

    def note_epoch(self, epoch: int | None) -> None:
        """Remember the leader epoch of the last record that came.

        What comes again, below what is completed, may be of an earlier one: then the higher one stays. It may be later than that of what
        is completed: what was written up to it ends no earlier.
        """
        self.epoch = epoch if epoch is None or self.epoch is None else max(epoch, self.epoch)

    def is_another_log(self, offsets: Sequence[int], epochs: Callable[[], Iterable[int | None]]) -> bool:
        """Whether records, ascending by offset, are others than what was completed there before the partition started.

        What was completed was written in the leader epoch that was noted then, or before; ``epochs`` tells those of the records, and is
        asked only where that can matter.
        """
        limits = [(end, most) for end, most in self._epochs_below if offsets[0] < end]
        if not limits:
            return False
        return any(
            offset < end and epoch is not None and epoch > most
            for offset, epoch in zip(offsets, epochs(), strict=True)
            for end, most in limits
        )

    def note_completed_in(self, end: int, epoch: int | None) -> None:
        """Note that what is completed before ``end`` was written in this leader epoch or before; None where nobody says."""
        if epoch is not None:
            self._epochs_below.append((end, epoch))

    def learn_epoch(self, epoch: int | None) -> None:
        """Take over what others say of the leader epoch of the last record below ``high``, where nothing is known here."""
        if self.epoch is None:
            self.epoch = epoch

    def note_committed(self, offset: int) -> None:
        """Remember the last offset known to be committed."""
        if self.committed is None or offset > self.committed:
            self.committed = offset
            self._moved = True

    @property
    def told_low(self) -> int:
        """Where the history begins, as a commit of ``high`` tells it."""
        return self.low

    @property
    def recent_count(self) -> int:
        """How many marks are in memory, IDs in flight included."""
        return len(self.recent)

    @property
    def looked_up(self) -> int:
        """How many of them, at least, are neither in the journal nor in flight: they were looked up, and a flush lets them go."""
        return 0

    @property
    def in_flight(self) -> int:
        """How many admitted records are not completed, parked ones included."""
        return sum(chunk.open for chunk in self._chunks)

    @property
    def kept(self) -> int:
        """How many records are in memory: those in flight, and completed ones behind the first of these."""
        return sum(len(chunk.offsets) for chunk in self._chunks)

    @property
    def waits_for_unit(self) -> bool:
        """Whether the watermark stands before a record whose unit is not whole: more has to be read to have it move."""
        return False

    @property
    def unwritten(self) -> int:
        """How many records are in memory because something of their chunk is completed and was not asked for yet."""
        return sum(len(chunk.offsets) for chunk in self._dirty.values())

    def _note_dirty(self, chunk: Chunk) -> None:
        """Note that something of a chunk is completed that is not written."""
        self._dirty[chunk.offsets[0]] = chunk

    def offered_below(self, end: int) -> list[int]:
        """Return the offsets below ``end`` that were offered with their chunk and are not ended, ascending."""
        offered: list[int] = []
        for chunk in self._chunks:
            if chunk.offsets[0] >= end:
                break
            rows = np.flatnonzero(np.frombuffer(chunk.states, np.uint8) == OFFERED)
            offered += chunk.column[rows][chunk.column[rows] < end].tolist()
        return offered

    def place(self, offset: int) -> Place | None:
        """Find a record that is not settled yet, or whose chunk is not."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        row = self._chunks[at].row_of(offset)
        return None if row is None else Place(self._chunks[at], row)

    def completed_above(self, offset: int) -> tuple[Range, ...]:
        """Return what is completed at or above an offset of ``[low, position)``, as half-open ranges, ascending."""
        chunks = [each for chunk in self._chunks for each in chunk.done_ranges(offset)]
        ranges = merged([(offset, max(offset, self.high)), *self._restored, *chunks])
        return tuple((max(start, offset), end) for start, end in ranges if end > offset)

    def is_completed(self, offset: int) -> bool:
        """Whether this group has completed the record at this offset since ``low``."""
        if offset < self.high:
            return offset >= self.low
        place = self.place(offset)
        if place is not None:
            return place.chunk.states[place.row] == DONE
        return any(start <= offset < end for start, end in self._restored)

    @property
    def has_restored(self) -> bool:
        """Whether records were completed above the watermark in an earlier life, and have not come again."""
        return bool(self._restored)

    def is_restored(self, offset: int) -> bool:
        """Whether the record at this offset was completed before the store was opened, or was passed since."""
        return (self.low <= offset < self.high) or any(start <= offset < end for start, end in self._restored)

    def _is_open(self, offset: int) -> bool:
        if offset < self.high:
            return False
        place = self.place(offset)
        return place is not None and place.chunk.states[place.row] != DONE

    def covers(self, timestamp_ms: int) -> bool:
        """Whether the marks know everything that the window of a record with this timestamp could hold."""
        if self._covered_by_count() or self.window.is_off:
            return True
        if self.window.time_ms is None:
            return False
        return self.since_ms is None or self.since_ms <= timestamp_ms - self.window.time_ms

    def _covered_by_count(self) -> bool:
        if self.ring is None:
            return False
        return self.since_number is None or self.ring.accepted - self.since_number >= self.ring.size

    # --- records that come, and come again ---------------------------------------------------------------------

    @property
    def _follows_watermark(self) -> bool:
        """Whether what is completed above the watermark becomes durable only when that passes."""
        return self.ring is not None

    def _take_in(self, chunk: Chunk) -> None:
        """Note that records have come; what was completed of them in an earlier life is told by the chunk now."""
        position = chunk.offsets[-1] + 1
        # Where completion follows the watermark nothing else tells of it before that has passed.
        told = self.high if self._follows_watermark else position
        self._restored = tuple(r for r in self._restored if r[1] > told)
        self.position = position
        self._chunks.append(chunk)
        self._firsts.append(chunk.offsets[0])

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

    def release(self, place: Place) -> list[Place]:
        """Offer a record again: its handler failed. Its twins stay parked, promoting one would double the message."""
        chunk, index = place
        if chunk.states[index] not in (OFFERED, APART):
            return []
        chunk.states[index] = APART
        chunk.attempts[index] = chunk.attempts.get(index, 1) + 1
        return [place]

    # --- the watermark -------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Move the watermark over the contiguous completed prefix."""
        finished = 0
        for chunk in self._chunks:
            if chunk.open:
                break
            finished += 1
        self._pass(self._chunks[: finished + 1])
        self._note_passed(finished)
        if finished:
            del self._chunks[:finished], self._firsts[:finished]
        high = self._chunks[0].first_open() if self._chunks else self.position
        if high != self.high:
            self.high = high
            self._moved = True

    def _note_passed(self, finished: int) -> None:
        """Note the last record that the watermark passes; so many chunks are finished."""
        chunk, row = None, -1
        if finished < len(self._chunks):
            chunk = self._chunks[finished]
            row = len(chunk.states) - len(chunk.states.lstrip(b"\0")) - 1
        if row < 0 and finished:
            chunk = self._chunks[finished - 1]
            row = len(chunk.offsets) - 1
        if chunk is not None and row >= 0:
            self._last_passed = chunk.offsets[row], int(chunk.timestamps[row]), chunk.digests[row]

    def _pass(self, chunks: list[Chunk]) -> None:
        """Number the accepted records that the watermark passes, in a lane with a count window."""
        ring = self.ring
        if ring is None:
            return
        for chunk in chunks:
            end = len(chunk.states) - len(chunk.states.lstrip(b"\0")) if chunk.open else len(chunk.states)
            for index in range(bisect_left(chunk.offsets, self.high), end):
                if index not in chunk.unmarked:
                    ring.number(digest_of(chunk, index), chunk.offsets[index])

    # --- what is forgotten ---------------------------------------------------------------------------------

    def horizon_ms(self, clock_ms: int) -> int:
        """Return the timestamp before which a sighting may be forgotten, with some grace for records that come late."""
        window_ms = self.window.time_ms or 0
        return clock_ms - window_ms - window_ms // GRACE

    def forgot_before(self, timestamp_ms: int) -> None:
        """Note that sightings before this timestamp are no longer known, whatever their numbers."""
        self.since_ms = timestamp_ms if self.since_ms is None else max(self.since_ms, timestamp_ms)
        if self.ring is not None:
            self.since_number = self.ring.accepted

    def note_dropped(self, end: int) -> None:
        """Note that some marks of offsets below ``end`` are gone for their age."""
        self.dropped_to = max(self.dropped_to, end)

    def know_from(self, timestamps: Int64s, below_ms: int = -1) -> None:
        """Let the marks begin with the first of these timestamps (-1: there is none), where nothing was known.

        ``below_ms``: the newest that is known of the records below. Among what is not known may be one as new, so that the marks begin no
        earlier.
        """
        if self.since_ms == NOTHING_KNOWN:
            real = timestamps[timestamps >= 0]
            if real.size:
                self.since_ms = max(int(real[0]), below_ms)

    def pass_uncounted(self, count: int) -> None:
        """Pass records of which nobody knows whether they were accepted: at most so many.

        A window by count takes them all for it, so that the marks below seem to be longer ago: else one that has left it hides a message.
        """
        if self.ring is not None and self.ring.accepted > 0:
            self.ring.pass_uncounted(max(0, count))

    def forget_all(self) -> None:
        """Note that nothing is known before the next record."""
        self.since_ms, self.since_number = NOTHING_KNOWN, self.ring.accepted if self.ring else self._accepted

    def _note_journaled(self, marks: Marks) -> None:
        if self.ring is None or marks.numbers is None:
            return
        columns = zip(marks.offsets.tolist(), marks.timestamps.tolist(), marks.numbers.tolist(), strict=True)
        for digest, mark in zip(cut_digests(marks.digests), map(Mark._make, columns), strict=True):
            if self._journaled.get(digest, mark).offset <= mark.offset:
                self._journaled[digest] = mark


def cut_digests(digests: bytes) -> list[bytes]:
    """Return the digests that stand one after the other."""
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
