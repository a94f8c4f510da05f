"""The records of one partition that are in flight: which came, their states and verdicts, and the watermark.

chunk
    records that were admitted together, kept as columns until all of them are completed
tail
    the chunk of records that came one by one: it grows until something of the partition is written, another chunk
    follows, or it has 1,000 records. A chunk for each would cost more than all else that is done for such a record.
held back
    not offered yet; a record waits *on* something. Its state, `HELD`, is one for all. The queues are three, because
    the waiting ends in three ways: `Flight.waiting` has the records and units that wait on a record in flight (by its
    ID or its offset), until that ends; the gate of units has those whose unit is not whole, until its end, size or
    timeout; the gate of a shared memory those whose ID another consumer has claimed, in order, until it is free. One
    queue of mixed keys would need a filter in every user, and `if flight.waiting` is the quick way of each completion.
watermark (``high``)
    every offset in ``[low, high)`` is completed; it moves over the contiguous completed prefix
restored
    completed above the watermark before the partition was opened here: the store says so
reported
    completed above the watermark by another owner: only the text of a commit says so. Such a record counts as completed
    only when it has been read here.

Offsets are "the next one".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, KeysView, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, cast

import numpy as np

from dedup_sdk._core.ranges import Range, Ranges, from_offset, lie_inside, merged
from dedup_sdk._marks import Digests, Int64s, Marks, Progress, Witness
from dedup_sdk._record import Verdict, VerdictKind

Rows = np.ndarray[Any, np.dtype[np.intp]]

KINDS: Final = tuple(VerdictKind)
FRESH, DUPLICATE, REDELIVERED, UNVERIFIED, UNKEYED, HELD_KIND = range(len(KINDS))

DONE: Final = 0
"""Completed: handled, judged a duplicate, discarded or dead-lettered."""
OFFERED: Final = 1
"""With the application (or on its way to it)."""
HELD: Final = 2
"""Held back."""
SINGLE: Final = 3
"""With the application (or on its way to it), and ended one by one: never together with its chunk."""
ENDED: Final = 4
"""The application has ended it; it is completed later, together with other records (those of its unit)."""

_DELIVERED: Final = frozenset({VerdictKind.FRESH, VerdictKind.UNVERIFIED, VerdictKind.UNKEYED})
_DELIVERED_KINDS: Final = (FRESH, UNVERIFIED, UNKEYED)
# `SINGLE` stays: a record promoted into a queue would end with its old batch, before its delivery.
_COMPLETE_OFFERED: Final = bytes([DONE, DONE]) + bytes(range(2, 256))
_LONGEST_TAIL: Final = 1_000


class Chunk:
    """Columns of ``n`` records, ascending by offset. All may read them; only the methods here write.

    - ``offsets``: a list of ``n`` integers.
    - ``digests``: the ID of each record (bytes), None without one; ``joined``: all of them in one ``bytes``, where they
      are `Digests`, or once `join_digests` was called.
    - ``items``: the caller's own objects (records or messages), parallel to the columns.
    - ``verdicts[i]``: the verdict, an index into `KINDS`.
    - ``reasons``, ``seen``, ``attempts``: by row, the reason of the verdict; offset and timestamp (ms) of the
      earlier record that a duplicate repeats; how often the record was offered, where that is more than once.
    - ``states[i]``: `DONE`, `OFFERED`, `HELD`, `SINGLE` or `ENDED`; ``open``: how many are not `DONE`.
    - ``saved[i]``: 1 when the completion of record ``i`` is in the key store.
    - ``unmarked``: rows that leave no mark when completed; ``withheld``: rows without an ID that the policy hides.
    - ``notes``: belongs to the memory that judges the records (`attach_notes`).
    """

    __slots__ = (
        "_added_ms", "_column", "_timestamps", "attempts", "digests", "items", "joined", "notes", "offsets", "open",
        "reasons", "saved", "seen", "states", "unmarked", "verdicts", "withheld",
    )  # fmt: skip

    def __init__(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        items: Sequence[Any] = (),
    ) -> None:
        count = len(offsets)
        self.offsets = offsets
        self._column = np.fromiter(offsets, np.int64, count)
        self._timestamps = timestamps
        self.digests = digests
        self.joined = digests.joined if isinstance(digests, Digests) else None
        self.items = items
        self.verdicts = bytearray(count)
        self.states = bytearray(b"\x01") * count
        self.saved = bytearray(count)
        self.open = count
        self.unmarked: set[int] = set()
        self.withheld: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.seen: dict[int, tuple[int, int]] = {}
        self.attempts: dict[int, int] = {}
        self.notes: Any = None
        self._added_ms: list[int] = []
        """The timestamps of a tail, to which all records were added by `append`."""

    @property
    def column(self) -> Int64s:
        """The offsets as an array, shape ``(n,)``."""
        if len(self._column) < len(self.offsets):
            self._column = np.array(self.offsets, np.int64)
        return self._column

    @property
    def timestamps(self) -> Int64s:
        """Milliseconds since the epoch, shape ``(n,)``."""
        if len(self._timestamps) < len(self.offsets):
            added = np.array(self._added_ms[len(self._timestamps) :], np.int64)
            self._timestamps = np.concatenate((self._timestamps, added))
        return self._timestamps

    def append(self, offset: int, timestamp_ms: int, digest: bytes, item: Any) -> int:
        """Add a fresh record, offered with the chunk, behind all others of a tail; return its row."""
        # Joined for the rows before: `take_whole` would write marks of which one lacks its digest.
        self.joined = None
        self._added_ms.append(timestamp_ms)
        cast("list[bytes | None]", self.digests).append(digest)
        cast("list[Any]", self.items).append(item)
        self.verdicts.append(FRESH)
        self.saved.append(0)
        self.states.append(OFFERED)
        self.open += 1
        # Last: behind a signal in between nobody finds the record, and the partition is opened again.
        self.offsets.append(offset)
        return len(self.offsets) - 1

    # --- verdicts ------------------------------------------------------------------------------------------

    def judge(self, row: int, kind: int, reason: str = "", *, seen: tuple[int, int] | None = None) -> None:
        """Give a record its verdict, an index into `KINDS`; its state stays.

        ``seen``: offset and timestamp (ms) of the earlier record that a duplicate repeats.
        """
        self.verdicts[row] = kind
        if reason:
            self.reasons[row] = reason
        else:
            self.reasons.pop(row, None)
        if seen is not None:
            self.seen[row] = seen

    def judge_rows(self, rows: Iterable[int], kind: int, reason: str) -> None:
        """Give many records one verdict with one reason; their states stay."""
        for row in rows:
            self.verdicts[row] = kind
            self.reasons[row] = reason

    def judge_unkeyed(self, missing: dict[int, str], *, discard: bool) -> None:
        """Give records without an ID (row -> reason) their verdict; they leave no mark. ``discard``: complete them."""
        for row, reason in missing.items():
            if row in self.unmarked:
                continue
            self.unmarked.add(row)
            self.judge(row, UNKEYED, reason)
            if discard:
                self.withheld.add(row)
                self.finish(row)

    def give_reason(self, row: int, reason: str) -> None:
        """Set the reason of a record whose verdict stays."""
        self.reasons[row] = reason

    def withhold(self, row: int) -> None:
        """Keep a record from the application, whatever its verdict."""
        self.withheld.add(row)

    def leave_no_mark(self, rows: Iterable[int]) -> None:
        """Have records leave no mark when they are completed."""
        self.unmarked.update(rows)

    # --- states --------------------------------------------------------------------------------------------

    def hold(self, row: int, reason: str) -> None:
        """Hold a record back from the application."""
        self.states[row] = HELD
        self.verdicts[row] = HELD_KIND
        self.reasons[row] = reason

    def offer_with_chunk(self, row: int) -> None:
        """Offer a record together with its chunk, which is being admitted."""
        self.states[row] = OFFERED

    def offer_individually(self, row: int) -> None:
        """Offer a record by itself: from here on it is ended alone."""
        self.states[row] = SINGLE

    def unhold(self, row: int) -> None:
        """Offer a record by itself if it was held back; any other keeps its state."""
        if self.states[row] == HELD:
            self.states[row] = SINGLE

    def offer_again(self, row: int) -> None:
        """Offer a record by itself once more; its attempt is counted up."""
        self.states[row] = SINGLE
        self.attempts[row] = self.attempts.get(row, 1) + 1

    def end(self, row: int) -> None:
        """Note that the application has ended a record that is completed later, with others (`ENDED`)."""
        self.states[row] = ENDED

    def finish(self, row: int, kind: int | None = None) -> None:
        """Complete one record; ``kind``: its verdict, if that is known only now."""
        if kind is not None:
            self.verdicts[row] = kind
        self.states[row] = DONE
        self.open -= 1

    def finish_open(self, rows: Iterable[int]) -> list[int]:
        """Complete those of some rows that the application has; return them. A row named twice is completed once."""
        finished: list[int] = []
        for row in rows:
            if self.states[row] in (OFFERED, SINGLE):
                self.finish(row)
                finished.append(row)
        return finished

    # --- whole columns -------------------------------------------------------------------------------------

    def join_digests(self) -> bytes:
        """Return the digests of all records in one ``bytes``; each must have one."""
        if self.joined is None:
            self.joined = b"".join(cast("Sequence[bytes]", self.digests))
        return self.joined

    def replace_digests(self, digests: Mapping[int, bytes | None]) -> None:
        """Set the digests of some rows; the caller's list stays as it is."""
        replaced = list(self.digests)
        for row, digest in digests.items():
            replaced[row] = digest
        self.digests, self.joined = replaced, None

    def replace_timestamps(self, timestamps: Int64s) -> None:
        """Have the records judged by other timestamps (ms), shape ``(n,)``."""
        self._timestamps = timestamps

    def attach_notes(self, notes: Any) -> None:
        """Attach an object of the memory that judges these records."""
        self.notes = notes

    def mark_saved(self, rows: Rows) -> None:
        """Note that the completions of these rows are in the key store."""
        np.frombuffer(self.saved, np.uint8)[rows] = 1

    def judge_duplicates(self, rows: Rows, seen: Int64s, seen_ms: Int64s, *, completed: bool) -> None:
        """Call records duplicates of marks with these offsets and timestamps (ms), shapes ``(k,)``.

        ``completed``: complete them as well.
        """
        np.frombuffer(self.verdicts, np.uint8)[rows] = DUPLICATE
        if completed:
            np.frombuffer(self.states, np.uint8)[rows] = DONE
            self.open -= len(rows)
        hits = rows.tolist()
        self.seen.update(zip(hits, zip(seen.tolist(), seen_ms.tolist(), strict=True), strict=True))
        # A reason is a doubt for want of coverage; a mark that was found ends the doubt.
        for row in hits if self.reasons else ():
            self.reasons.pop(row, None)

    def take_whole(self) -> Marks | None:
        """Return the marks of all records, and count them as saved.

        None unless all are completed, none is saved, and each leaves a mark.
        """
        if self.open or self.joined is None or self.unmarked or self.saved.count(1):
            return None
        self.saved = bytearray(b"\x01") * len(self.saved)
        return Marks(self.joined, self.column, self.timestamps)

    def finish_offered(self) -> None:
        """Complete every record that was offered with the chunk; those held back or offered individually stay."""
        self.states = self.states.translate(_COMPLETE_OFFERED)
        self.open = len(self.states) - self.states.count(DONE)

    def first_open(self) -> int:
        """Return the offset of the first record that is not completed; there must be one."""
        # `DONE` is 0, so that stripping zeros finds the first other state without a loop in Python.
        return self.offsets[len(self.states) - len(self.states.lstrip(b"\0"))]

    def unsaved(self) -> Rows:
        """Return the indexes of completed records that the store does not know yet, ascending."""
        states, saved = np.frombuffer(self.states, np.uint8), np.frombuffer(self.saved, np.uint8)
        return np.flatnonzero((states | saved) == 0)

    def done_ranges(self, high: int) -> list[tuple[int, int]]:
        """Return the completed offsets at or above ``high`` as half-open ranges, ascending."""
        return self.ranges_of(np.flatnonzero(np.frombuffer(self.states, np.uint8) == DONE), high)

    def ranges_of(self, rows: Rows, high: int) -> list[tuple[int, int]]:
        """Return some rows (ascending) that lie at or above ``high`` as half-open offset ranges, ascending."""
        if not len(rows) or self.offsets[rows[-1]] < high:
            return []
        # Neighbours by row, not by offset: a hole of the log between two completed records is no gap.
        breaks = np.flatnonzero(np.diff(rows) != 1)
        firsts = rows[np.concatenate(([0], breaks + 1))].tolist()
        lasts = rows[np.concatenate((breaks, [len(rows) - 1]))].tolist()
        ranges = ((self.offsets[f], self.offsets[t] + 1) for f, t in zip(firsts, lasts, strict=True))
        return [(start, end) for start, end in ranges if end > high]

    def row_of(self, offset: int) -> int | None:
        """Return the row of an offset, None when it is not in this chunk."""
        row = bisect_left(self.offsets, offset)
        return row if row < len(self.offsets) and self.offsets[row] == offset else None

    def verdict(self, index: int) -> Verdict:
        """Return the verdict of one record as the public value."""
        kind = KINDS[self.verdicts[index]]
        seen_offset, seen_ms = self.seen.get(index, (None, None))
        return Verdict(
            kind=kind,
            deliver=kind in _DELIVERED and index not in self.withheld,
            reason=self.reasons.get(index, ""),
            seen_offset=seen_offset,
            age_ms=None if seen_ms is None else int(self.timestamps[index]) - seen_ms,
            attempt=self.attempts.get(index, 1),
        )


class RecordRef(NamedTuple):
    """One record: its chunk and its row there."""

    chunk: Chunk
    row: int

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.chunk.offsets[self.row]


def digest_of(chunk: Chunk, index: int) -> bytes:
    """Return the digest of a record that has one."""
    digest = chunk.digests[index]
    if digest is None:
        raise AssertionError(f"record {chunk.offsets[index]} has no ID and was to be judged by it")
    return digest


class Flight:
    """Records of one partition that were admitted, from the watermark on, for one group.

    ``position`` is the offset after the last admitted record; everything in ``[low, high)`` is completed.
    ``settled`` collects the records that were held back and got their verdict, until their owner takes them
    (`take_settled`). ``waiting`` maps an ID or an offset in flight to the queue of those who wait on it, in the
    order in which they are judged. Only the methods here change it.

    ``in_order``: completions above the watermark become durable only when the watermark passes them.
    ``shows_duplicates``: nothing is hidden or held back, duplicates are offered too, and only the application
    completes.
    """

    def __init__(self, progress: Progress, *, in_order: bool) -> None:
        self.low = progress.low
        self.high = self.position = progress.high
        self.committed = progress.committed
        self.era = progress.era
        self.epoch = progress.epoch
        self.in_order = in_order
        self.shows_duplicates = False
        self.restored = merged(progress.done) if progress.done else ()
        self.settled: list[RecordRef] = []
        self.waiting: dict[Hashable, deque[Any]] = {}
        self.chunks: list[Chunk] = []
        self._firsts: list[int] = []
        self._tail: Chunk | None = None
        self._dirty: dict[int, Chunk] = {}
        self._above: dict[int, Chunk] = {}
        self._order: list[int] = []
        self._moved = False
        self._witness = progress.witness
        self._last_passed: RecordRef | tuple[int, int, bytes | None] | None = None
        self._epochs_below: list[tuple[int, int]] = []
        if progress.epoch is not None:
            self._epochs_below.append((progress.completed_end, progress.epoch))
        self.reported_ranges: Ranges = ()
        self._reported_open: set[int] = set()
        self._passing: Callable[[list[Chunk], int], None] | None = None
        self._bound: Callable[[int], int] | None = None

    def watch(
        self,
        *,
        passing: Callable[[list[Chunk], int], None] | None = None,
        bound: Callable[[int], int] | None = None,
    ) -> None:
        """Have functions called when the watermark moves.

        ``passing`` is called before it moves, with the chunks that it reaches and its new offset. ``bound`` gets
        that offset and returns the offset, not above it, where the watermark may stand.
        """
        self._passing = passing or self._passing
        self._bound = bound or self._bound

    def show_duplicates(self, *, shown: bool = True) -> None:
        """Hide nothing from here on (``shows_duplicates``)."""
        self.shows_duplicates = shown

    # --- queries -------------------------------------------------------------------------------------------

    @property
    def in_flight(self) -> int:
        """How many admitted records are not completed, those held back included."""
        return sum(chunk.open for chunk in self.chunks)

    @property
    def held_back(self) -> int:
        """How many records wait for another one."""
        return sum(chunk.states.count(HELD) for chunk in self.chunks)

    @property
    def kept(self) -> int:
        """How many records are in memory: those in flight, and completed ones behind the first of these."""
        return sum(len(chunk.offsets) for chunk in self.chunks)

    @property
    def is_plain(self) -> bool:
        """Whether nothing above the position was completed before, and no record waits for another one."""
        return not (
            self.restored
            or self.reported_ranges
            or self._reported_open
            or self.waiting
            or self.shows_duplicates
            or (self._epochs_below and max(self._epochs_below)[0] > self.position)
        )

    @property
    def first_open(self) -> int | None:
        """The offset of the first record that is not completed, None where all are."""
        return next((chunk.first_open() for chunk in self.chunks if chunk.open), None)

    def place(self, offset: int) -> RecordRef | None:
        """Find a record that is not settled yet, or whose chunk is not."""
        at = bisect_right(self._firsts, offset) - 1
        if at < 0:
            return None
        row = self.chunks[at].row_of(offset)
        return None if row is None else RecordRef(self.chunks[at], row)

    def chunks_from(self, offset: int) -> list[Chunk]:
        """Return the chunks that reach to an offset, or behind it."""
        return self.chunks[max(0, bisect_right(self._firsts, offset) - 1) :]

    def offered_below(self, end: int) -> list[int]:
        """Return the offsets below ``end`` that were offered with their chunk and are not ended, ascending."""
        offered: list[int] = []
        for chunk in self.chunks:
            if chunk.offsets[0] >= end:
                break
            rows = np.flatnonzero(np.frombuffer(chunk.states, np.uint8) == OFFERED)
            offered += chunk.column[rows][chunk.column[rows] < end].tolist()
        return offered

    def in_hand_but(self, others: Collection[int]) -> Iterator[int]:
        """Yield the offsets of records that were offered and are not ended, but for ``others``, ascending by chunk."""
        for chunk in self.chunks:
            states = np.frombuffer(chunk.states, np.uint8)
            rows = np.flatnonzero((states == OFFERED) | (states == SINGLE))
            yield from (offset for offset in chunk.column[rows].tolist() if offset not in others)

    def delivered_until(self, end: int, waiting: Collection[int]) -> int:
        """Return the offset after the last delivered record below ``end`` that is not one of ``waiting``.

        At least the watermark.
        """
        for chunk in reversed(self.chunks):
            states, kinds = np.frombuffer(chunk.states, np.uint8), np.frombuffer(chunk.verdicts, np.uint8)
            delivered = (states != HELD) & np.isin(kinds, _DELIVERED_KINDS) & (chunk.column < end)
            delivered &= ~np.isin(chunk.column, list(waiting))
            if delivered.any():
                return max(self.high, int(chunk.column[delivered][-1]) + 1)
        return self.high

    def completed_above(self, offset: int) -> Ranges:
        """Return the completed offsets at or above one of ``[low, position)``, as half-open ranges, ascending."""
        chunks = [each for chunk in self.chunks for each in chunk.done_ranges(offset)]
        return from_offset(merged([(offset, max(offset, self.high)), *self.restored, *chunks]), offset)

    def as_if_completed(self, offsets: Collection[int]) -> tuple[int, Ranges]:
        """Return what would be completed if the records at these offsets were: the watermark, and the ranges above it.

        Records that wait for one of them count as open: their verdict comes with the completion.
        """
        named = np.fromiter(offsets, np.int64, len(offsets))
        ended = [
            (np.frombuffer(chunk.states, np.uint8) == DONE) | np.isin(chunk.column, named)
            for chunk in self.chunks
        ]
        first = (
            (chunk.offsets[int(done.argmin())])
            for chunk, done in zip(self.chunks, ended, strict=True)
            if not done.all()
        )
        high = next(first, self.position)
        if self._bound is not None:
            high = max(self.high, self._bound(high))
        above = (
            chunk.ranges_of(np.flatnonzero(done), high)
            for chunk, done in zip(self.chunks, ended, strict=True)
        )
        ranges = [each for found in above for each in found]
        return high, from_offset(merged([*self.restored, *ranges]), high)

    def is_completed(self, offset: int) -> bool:
        """Whether this group has completed the record at this offset since ``low``."""
        if offset < self.high:
            return offset >= self.low
        place = self.place(offset)
        if place is not None:
            return place.chunk.states[place.row] == DONE
        return any(start <= offset < end for start, end in self.restored)

    def is_restored(self, offset: int) -> bool:
        """Whether the record at this offset was completed before the store was opened, or was passed since."""
        return (self.low <= offset < self.high) or any(start <= offset < end for start, end in self.restored)

    def is_open(self, offset: int) -> bool:
        """Whether the record at this offset is in flight, or held back."""
        if offset < self.high:
            return False
        place = self.place(offset)
        return place is not None and place.chunk.states[place.row] != DONE

    def open_of(self, offsets: Int64s) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return which of some offsets, shape ``(n,)``, are those of records in flight, or held back."""
        mask = offsets >= self.high
        for index in np.flatnonzero(mask).tolist():
            mask[index] = self.is_open(int(offsets[index]))
        return mask

    def done_ranges(self) -> Ranges:
        """Return the ranges above the watermark that are durable once every completion is written.

        Half-open, ascending.
        """
        if not self.chunks and not self.restored:
            return ()
        # In order it is written later: it has no number yet, or is not folded.
        chunks = () if self.in_order else self.chunks
        return merged(
            [r for r in self.restored if r[1] > self.high]
            + [r for chunk in chunks for r in chunk.done_ranges(self.high)]
        )

    def witness(self) -> Witness | None:
        """Return the last completed record, as the progress describes it."""
        # Taken once: the reference would keep a chunk, with its messages, that the flight has dropped.
        last, self._last_passed = self._last_passed, None
        for chunk in () if self.in_order else reversed(self.chunks):
            row = chunk.states.rfind(DONE)
            if row >= 0:
                last = RecordRef(chunk, row)
                break
        if isinstance(last, RecordRef):
            chunk, row = last
            last = chunk.offsets[row], int(chunk.timestamps[row]), chunk.digests[row]
        if last is not None and (self._witness is None or last[0] > self._witness.offset):
            self._witness = Witness.of(*last)
        return self._witness

    def witness_of(self, offset: int) -> Witness | None:
        """Return the witness of an offset, where that is the last completed one."""
        known = self.witness()
        return known if known is not None and known.offset == offset else None

    # --- which log it is -----------------------------------------------------------------------------------

    def note_epoch(self, epoch: int | None) -> None:
        """Remember the highest leader epoch of the records that came.

        A redelivered record may have a lower one. It may be higher than that of the completed records: the log of an
        epoch ends no earlier than the records that were written in it.
        """
        self.epoch = epoch if epoch is None or self.epoch is None else max(epoch, self.epoch)

    def is_another_log(self, offsets: Sequence[int], epochs: Callable[[], Iterable[int | None]]) -> bool:
        """Whether records, ascending by offset, are others than those completed there before the partition started.

        The completed ones were written in the leader epoch noted then, or before. ``epochs`` returns those of the
        records, and is called only where that can matter.
        """
        if not self._epochs_below or offsets[0] >= max(self._epochs_below)[0]:
            return False
        limits = [(end, most) for end, most in self._epochs_below if offsets[0] < end]
        return any(
            offset < end and epoch is not None and epoch > most
            for offset, epoch in zip(offsets, epochs(), strict=True)
            for end, most in limits
        )

    def note_completed_in(self, end: int, epoch: int | None) -> None:
        """Note that the records before ``end`` were written in this leader epoch or before; None: it is not known."""
        if epoch is not None:
            self._epochs_below.append((end, epoch))

    def learn_epoch(self, epoch: int | None) -> None:
        """Take the leader epoch of the last record below ``high`` from outside, where none is known here."""
        if self.epoch is None:
            self.epoch = epoch

    def note_committed(self, offset: int) -> None:
        """Remember the last offset known to be committed."""
        if self.committed is None or offset > self.committed:
            self.committed = offset
            self._moved = True

    # --- records that another owner completed ----------------------------------------------------------------

    @property
    def reported(self) -> Ranges:
        """The ranges that only a commit's text reports as completed, and that are not completed here yet; half-open."""
        if not self._reported_open:
            return self.reported_ranges
        return merged([*self.reported_ranges, *((each, each + 1) for each in self._reported_open)])

    def report_completed(self, ranges: Iterable[Range], epoch: int | None = None) -> None:
        """Note half-open ranges that the group completed elsewhere; only before the first record is admitted.

        ``epoch``: the leader epoch of the last of these records (None: unknown); one of a later epoch is another
        record.
        """
        self.reported_ranges = merged(ranges)
        if self.reported_ranges:
            self.note_completed_in(self.reported_ranges[-1][1], epoch)

    def take_reported(self, chunk: Chunk) -> list[int]:
        """Return the rows of a chunk, just admitted, that were reported and are not completed yet.

        They stay known until `forget_reported`.
        """
        reported = lie_inside(self.reported_ranges, chunk.column)
        position = chunk.offsets[-1] + 1
        # A reported offset below the position that has not come is a hole, and nobody waits for a hole.
        self.reported_ranges = from_offset(self.reported_ranges, position)
        rows = [row for row in np.flatnonzero(reported).tolist() if chunk.states[row] != DONE]
        self._reported_open.update(chunk.offsets[row] for row in rows)
        return rows

    @property
    def awaits_reported(self) -> bool:
        """Whether reported records have come, and wait for a record in flight with the same ID."""
        return bool(self._reported_open)

    def was_reported(self, places: Iterable[RecordRef]) -> bool:
        """Whether all of these records, which have come, were reported."""
        if not (self._reported_open or self.reported_ranges):
            return False
        offsets = [place.offset for place in places]
        # Those of a chunk that is being admitted are in the ranges still.
        coming = [offset for offset in offsets if offset not in self._reported_open]
        return bool(lie_inside(self.reported_ranges, np.array(coming, np.int64)).all())

    def forget_reported(self, offsets: Iterable[int]) -> None:
        """Note that records have their verdict: their reports do not matter any more."""
        self._reported_open.difference_update(offsets)

    # --- records that come, and come again -------------------------------------------------------------------

    def begin(self, offset: int) -> None:
        """Begin the history at this offset; only before the first record."""
        self.low = self.high = self.position = offset
        self._moved = True

    def hide_restored(self, chunk: Chunk) -> None:
        """Complete the records of a chunk that were completed in an earlier life."""
        if self.restored:
            for row in np.flatnonzero(lie_inside(self.restored, chunk.column)).tolist():
                chunk.finish(row, REDELIVERED)
                # Else the memory would judge the record once more: by its own mark, as fresh.
                chunk.leave_no_mark([row])

    def take_in(self, chunk: Chunk, *, shows_duplicates: bool = False) -> None:
        """Note that records have come.

        From here on their chunk, not ``restored``, says which of them were completed before. ``shows_duplicates``:
        nothing is hidden from here on.
        """
        position = chunk.offsets[-1] + 1
        if self.restored:
            # In order, nothing else tells of it before the watermark has passed.
            known = self.high if self.in_order else position
            self.restored = tuple(r for r in self.restored if r[1] > known)
        self.position = position
        self.shows_duplicates = self.shows_duplicates or shows_duplicates
        self.chunks.append(chunk)
        self._firsts.append(chunk.offsets[0])
        # Chunks ascend: a record that comes alone now lies above this chunk, and not in a chunk before.
        self._tail = None

    def take_in_one(self, offset: int, timestamp_ms: int, digest: bytes, item: Any) -> RecordRef:
        """Note that a fresh record has come by itself, at or above the position; only where `is_plain` holds."""
        tail = self._tail
        if tail is None or len(tail.offsets) >= _LONGEST_TAIL:
            tail = self._tail = Chunk([], np.empty(0, np.int64), [], [])
        row = tail.append(offset, timestamp_ms, digest, item)
        # A tail whose records are all completed is no longer among the chunks.
        if not self.chunks or self.chunks[-1] is not tail:
            self.chunks.append(tail)
            self._firsts.append(tail.offsets[0])
        self.position = offset + 1
        return RecordRef(tail, row)

    def wait(self, on: Hashable, waiter: Any) -> None:
        """Have a waiter wait on something in flight, at the end of its queue."""
        self.waiting.setdefault(on, deque()).append(waiter)

    @property
    def waited_on(self) -> KeysView[Any]:
        """Everything in flight that a waiter waits on."""
        return self.waiting.keys()

    def first_waiter(self, on: Hashable) -> Any | None:
        """Return the first waiter of a queue, None where nobody waits."""
        queue = self.waiting.get(on)
        return queue[0] if queue else None

    def drop_first_waiter(self, on: Hashable) -> None:
        """Let the first waiter of a queue wait on this no more; there must be one."""
        queue = self.waiting[on]
        queue.popleft()
        if not queue:
            del self.waiting[on]

    def take_waiters(self, on: Hashable) -> list[Any]:
        """Remove a queue; return its waiters, first in line first."""
        return list(self.waiting.pop(on, ()))

    def release(self, place: RecordRef) -> list[RecordRef]:
        """Offer a record again: its handler failed.

        Its duplicates in flight are still held back: to promote one of them would double the message.
        """
        chunk, row = place
        if chunk.states[row] not in (OFFERED, SINGLE):
            return []
        chunk.offer_again(row)
        return [place]

    def take_settled(self) -> list[RecordRef]:
        """Return the records that were held back and got their verdict, ascending by offset, and forget them."""
        settled, self.settled = self.settled, []
        return settled

    def settle(self, places: Iterable[RecordRef]) -> None:
        """Note that records which were held back have their verdict, in this order, after all others."""
        self.settled += places

    def sort_settled(self) -> None:
        """Put the records that got their verdict in the order of their offsets."""
        self.settled.sort(key=lambda place: place.offset)

    def drop_settled(self, chunk: Chunk) -> None:
        """Forget those of one chunk: their verdicts are reported with it."""
        self.settled = [place for place in self.settled if place.chunk is not chunk]

    # --- the watermark -------------------------------------------------------------------------------------

    def advance(self, completed: Chunk | None = None) -> None:
        """Move the watermark over the contiguous completed prefix.

        ``completed``: a chunk in which records were completed that are not written yet.
        """
        if completed is not None:
            self._dirty[completed.offsets[0]] = completed
        chunks, finished = self.chunks, 0
        while finished < len(chunks) and not chunks[finished].open:
            finished += 1
        high = chunks[finished].first_open() if finished < len(chunks) else self.position
        if self._bound is not None:
            high = max(self.high, self._bound(high))
            # The bound may lie inside a completed chunk, which stays until the bound has passed its last row.
            finished = sum(chunk.offsets[-1] < high for chunk in chunks[:finished])
        if self._passing is not None:
            self._passing(chunks[: finished + 1], high)
        if high != self.high:
            last = chunks[finished] if finished < len(chunks) and chunks[finished].offsets[0] < high else None
            if last is None and finished:
                last = chunks[finished - 1]
            if last is not None:
                self._last_passed = RecordRef(last, bisect_left(last.offsets, high) - 1)
            self.high = high
            self._moved = True
        if finished:
            del chunks[:finished], self._firsts[:finished]

    def pass_to(self, end: int, last: tuple[int, int, bytes | None] | None = None) -> None:
        """Count everything before ``end`` as completed, as far as nothing is in flight.

        ``last`` is the last of these records (`Witness`).
        """
        self.position = max(self.position, end)
        self._last_passed = last or self._last_passed
        self.advance()
        # Nobody says in which leader epoch the last of these was written.
        self.epoch = None
        self.restored = tuple(r for r in self.restored if r[1] > self.high)
        # No record will come to move the watermark over a restored range that begins at the position.
        while self.restored and self.restored[0][0] <= self.high == self.position:
            self.high = self.position = max(self.high, self.restored[0][1])
            self.restored = self.restored[1:]

    def pass_holes(self, end: int) -> None:
        """Move the position to ``end``: the log has no record before it, e.g. only markers of transactions."""
        self.position = end
        if self.restored:
            self.restored = tuple(r for r in self.restored if r[1] > (self.high if self.in_order else end))
        self.reported_ranges = from_offset(self.reported_ranges, end)
        self.advance()

    # --- completions to write --------------------------------------------------------------------------------

    @property
    def is_dirty(self) -> bool:
        """Whether something is completed that is not written."""
        return bool(self._dirty)

    @property
    def unwritten(self) -> int:
        """How many records are in memory because something of their chunk is completed and was not asked for yet."""
        return sum(len(chunk.offsets) for chunk in self._dirty.values())

    def note_dirty(self, chunk: Chunk) -> None:
        """Note that something of a chunk is completed that is not written."""
        self._dirty[chunk.offsets[0]] = chunk

    def take_moved(self) -> bool:
        """Return whether the watermark has moved, or the group has committed, since this was asked last."""
        moved, self._moved = self._moved, False
        return moved

    def take_dirty(self) -> list[Chunk]:
        """Return the chunks with completions to write; with ``in_order`` only those that the watermark has reached."""
        dirty, self._dirty = self._dirty, {}
        self._tail = None
        if not self.in_order:
            return list(dirty.values())
        for chunk in dirty.values():
            self.wait_above(chunk)
        reached: list[Chunk] = []
        while self._order and self._order[0] < self.high:
            reached.append(self._above.pop(heappop(self._order)))
        return reached

    def wait_above(self, chunk: Chunk) -> None:
        """Return a chunk from `take_dirty` again, once the watermark has reached it; only with ``in_order``."""
        first = chunk.offsets[0]
        if first not in self._above:
            self._above[first] = chunk
            heappush(self._order, first)

    def forget_dirty(self) -> None:
        """Note that the completions below the watermark are written."""
        self._dirty = {first: chunk for first, chunk in self._dirty.items() if chunk.offsets[-1] >= self.high}
