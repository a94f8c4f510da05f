"""The memory that looks IDs up: a record is a duplicate if its ID was completed inside the window.

recent
    marks in memory, in no sorted file yet, and the IDs in flight: one table (`RecentMarks`)
undecided
    IDs whose records are held back, not for a record in flight but for numbers of the count window
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk._core.count_window import CountWindow
from dedup_sdk._core.flight import (
    DUPLICATE,
    FRESH,
    KINDS,
    SINGLE,
    UNVERIFIED,
    Chunk,
    Flight,
    RecordRef,
    Rows,
    digest_of,
)
from dedup_sdk._core.memory import LastRecord, Live, Taken, Written
from dedup_sdk._core.ranges import Range
from dedup_sdk._core.reach import OLDER_THAN_WINDOW, UNCOVERED, KnownRange
from dedup_sdk._core.recent import Bools, Existing, RecentMarks
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import Mark, decide, decide_marked, is_contradicted
from dedup_sdk._marks import (
    DIGEST_BYTES,
    NO_MARKS,
    NONE_FOUND,
    NOTHING_KNOWN,
    Find,
    Found,
    Int64s,
    Marks,
    Progress,
    cut_digests,
    join_marks,
    select_marks,
    take_digests,
)
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window

_LOADED_AT_ONCE: Final = 1_000


class Waiting(NamedTuple):
    """A record that is held back, and the mark that the store had of its ID when it came."""

    chunk: Chunk
    row: int
    stored: Mark | None


class Asked(NamedTuple):
    """Records that are judged by their IDs: their rows (None: all), joined digests, and the store's marks of these."""

    rows: Rows | None
    digests: bytes
    found: Found

    def rows_of(self, indexes: Rows) -> Rows:
        """Return the rows of some of these records."""
        return indexes if self.rows is None else self.rows[indexes]


class LookupMemory:
    """`dedup_sdk._core.memory.Memory` of the IDs completed inside a window.

    Copies of a record in flight wait on its digest.
    """

    def __init__(
        self,
        window: Window,
        progress: Progress,
        recent: Marks = NO_MARKS,
        *,
        ahead_ms: int = 0,
    ) -> None:
        self.window = window
        self.flight = Flight(progress, in_order=bool(window.count))
        self.reach = KnownRange(window, progress.known, ahead_ms=ahead_ms)
        self.count_window = self.reach.count_window
        self.recent = RecentMarks()
        self.undecided: set[bytes] = set()
        self._is_off = window.is_off
        self._journaled: dict[bytes, Mark] = {}
        if self.count_window is not None:
            self.flight.watch(passing=self._number)
        if len(recent.offsets):
            self._load(recent)

    def _load(self, recent: Marks) -> None:
        order = np.argsort(recent.offsets, kind="stable")
        digests, offsets, timestamps = (
            take_digests(recent.digests, order),
            recent.offsets[order],
            recent.timestamps[order],
        )
        # A thousand at a time take a fifth of the time: fewer of them meet in one bucket of the table.
        for begin in range(0, len(order), _LOADED_AT_ONCE):
            end = begin + _LOADED_AT_ONCE
            part = digests[DIGEST_BYTES * begin : DIGEST_BYTES * end]
            self.recent.fold(part, offsets[begin:end], timestamps[begin:end])
        if self.count_window and recent.numbers is not None:
            numbers = recent.numbers[order].tolist()
            self.count_window.put_back(dict(zip(cut_digests(digests), numbers, strict=True)))
            self.note_journaled(recent)

    @property
    def committed_low(self) -> int:
        """See `Memory`."""
        return self.flight.low

    @property
    def exact_from(self) -> int:
        """See `Memory`."""
        return 0

    def note_inexact_below(self, offset: int) -> None:
        """See `Memory`."""

    @property
    def written_since_ms(self) -> int | None:
        """See `Memory`."""
        return self.reach.since_ms

    @property
    def recent_count(self) -> int:
        """See `Memory`."""
        return len(self.recent)

    @property
    def looked_up(self) -> int:
        """See `Memory`."""
        return 0

    def forget_all(self) -> None:
        """See `Memory`."""
        self.reach.forget_all()

    def pass_uncounted(self, count: int) -> None:
        """See `Memory`."""
        self.reach.pass_uncounted(count)

    # --- records that come ---------------------------------------------------------------------------------

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """See `Memory`."""
        return () if self._is_off else digests

    def look_up(
        self, chunk: Chunk, missing: dict[int, str], find: Find, *, discard: bool, now_ms: int
    ) -> Asked:
        """See `Memory`."""
        del now_ms
        if self._is_off:
            # A window that holds nothing has no marks: records that were not completed before are fresh.
            rows = range(len(chunk.offsets))
            chunk.judge_rows(set(rows) - chunk.unmarked, FRESH, "off")
            chunk.leave_no_mark(rows)
        elif missing:
            chunk.judge_unkeyed(missing, discard=discard)
        if not chunk.unmarked:
            joined = chunk.join_digests()
            return Asked(None, joined, find(joined, len(chunk.offsets)))
        keyed = [row for row in range(len(chunk.offsets)) if row not in chunk.unmarked]
        joined = b"".join([digest_of(chunk, row) for row in keyed])
        return Asked(np.array(keyed, np.intp), joined, find(joined, len(keyed)) if keyed else NONE_FOUND)

    def judge(self, chunk: Chunk, known: Asked) -> None:
        """See `Memory`; in one pass of columns."""
        rows, digests, found = known
        offsets, timestamps = chunk.column, chunk.timestamps
        if rows is not None:
            offsets, timestamps = offsets[rows], timestamps[rows]
        met = self.recent.find_or_add(digests, offsets, timestamps)
        if self.reach.since_ms is not None or self.reach.since_number is not None:
            self._doubt(chunk, range(len(chunk.offsets)) if rows is None else rows.tolist())
        if self.count_window is None and not found.indexes and not len(met.indexes):
            return
        stored = _as_marks(found)
        if self.count_window is not None:
            # One by one: with each accepted record the marks before it are one number farther away.
            left: Iterable[int] = range(len(offsets))
        else:
            left = self._meet_columns(chunk, known, met, stored)
        for index in left:
            self._meet(chunk, index if rows is None else int(rows[index]), stored.get(index))

    def admit_one(
        self, offset: int, timestamp_ms: int, digest: bytes, item: Any, find: Find, *, now_ms: int
    ) -> RecordRef | None:
        """Judge a record that comes by itself; None, and nothing has changed, if more than its unknown ID decides.

        Only where `Flight.is_plain` holds. The record is offered.
        """
        reach = self.reach
        if (
            self._is_off
            or self.count_window is not None
            or reach.since_ms == NOTHING_KNOWN
            or find(digest, 1).indexes
            # Last, because the call enters the ID: a refusal after that would leave an ID without record.
            or self.recent.find_or_enter(digest, offset, timestamp_ms) >= 0
        ):
            return None
        reach.note_time(timestamp_ms, now_ms)
        place = self.flight.take_in_one(offset, timestamp_ms, digest, item)
        # A window of time is covered where ``since_ms`` is None.
        if reach.since_ms is not None and not reach.covers(timestamp_ms):
            place.chunk.judge(place.row, UNVERIFIED, reach.doubt(timestamp_ms))
        return place

    def _meet_columns(self, chunk: Chunk, asked: Asked, met: Existing, stored: dict[int, Mark]) -> list[int]:
        """Judge at once the records whose ID has one completed mark and nothing in flight; return the others."""
        indexes, entries = met
        seen, seen_ms = self.recent.marks_at(entries)
        # Above the watermark a mark may be of a record in flight, which decides only when it has ended.
        plain = seen < self.flight.high
        waiting, left = self.flight.waiting, list[int]()
        if stored or waiting or len(set(entries.tolist())) < len(entries):
            plain[self._entangled(chunk, asked, met, stored)] = False
        hits, rows = self._judge_duplicates(chunk, asked.rows_of(indexes), seen, seen_ms, plain)
        if len(rows) < len(indexes):
            entries, left = entries[hits], indexes[~hits].tolist()
        if self.flight.shows_duplicates:
            for row in rows.tolist():
                self.recent.begin(digest_of(chunk, row), chunk.offsets[row], int(chunk.timestamps[row]))
        else:
            self.recent.move(entries, chunk.column[rows], chunk.timestamps[rows])
        # Of an ID that was not met the record itself was entered.
        alone = np.array(sorted(stored.keys() - {*indexes.tolist()}), np.intp)
        if len(alone):
            marks = np.array([stored[index] for index in alone.tolist()], np.int64)
            # Sightings of another partition go the slow way: only `decide` compares a record with their cut.
            hits, _ = self._judge_duplicates(
                chunk, asked.rows_of(alone), marks[:, 0], marks[:, 1], marks[:, 0] >= 0
            )
            left = sorted([*left, *alone[~hits].tolist()])
        return left

    def _judge_duplicates(
        self, chunk: Chunk, rows: Rows, seen: Int64s, seen_ms: Int64s, where: Bools
    ) -> tuple[Bools, Rows]:
        """Call records duplicates, ``where`` it is true, if their marks make them so; return whether, and the rows."""
        hits = where & decide_marked(chunk.column[rows], chunk.timestamps[rows], seen, seen_ms, self.window)
        if not hits.all():
            rows, seen, seen_ms = rows[hits], seen[hits], seen_ms[hits]
        if len(rows):
            chunk.judge_duplicates(rows, seen, seen_ms, completed=not self.flight.shows_duplicates)
        return hits, rows

    def _entangled(self, chunk: Chunk, asked: Asked, met: Existing, stored: dict[int, Mark]) -> list[int]:
        """Return the places in ``met`` whose verdict hangs on more than one mark, on each other, or on who waits."""
        entries, times = met.entries.tolist(), Counter(met.entries.tolist())
        waiting = self.flight.waiting
        rows = asked.rows_of(met.indexes).tolist()
        return [
            at
            for at, (index, row) in enumerate(zip(met.indexes.tolist(), rows, strict=True))
            if index in stored or times[entries[at]] > 1 or (waiting and digest_of(chunk, row) in waiting)
        ]

    def _doubt(self, chunk: Chunk, keyed: Iterable[int]) -> None:
        """Call records that the marks do not cover unverified, until a mark proves them duplicates."""
        if self.reach.covers_by_count():
            return
        if self.window.time_ms is None:
            chunk.judge_rows(keyed, UNVERIFIED, UNCOVERED)
            return
        if self.reach.since_ms is None:
            return
        late = chunk.timestamps < self.reach.since_ms + self.window.time_ms
        if not late.any():
            return
        old = late & self.reach.is_old(chunk.timestamps)
        chunk.judge_rows([row for row in keyed if late[row] and not old[row]], UNVERIFIED, UNCOVERED)
        if old.any():
            chunk.judge_rows([row for row in keyed if old[row]], UNVERIFIED, OLDER_THAN_WINDOW)

    def _meet(self, chunk: Chunk, row: int, stored: Mark | None) -> None:
        """Judge one record whose ID may be known."""
        if self.count_window is not None:
            self.count_window.consider(chunk.offsets[row])
        digest = digest_of(chunk, row)
        # Behind records that wait with the same ID, so that copies are judged in the order of the log.
        if digest not in self.flight.waiting and self.settle_one(chunk, row, stored):
            return
        if self.flight.shows_duplicates:
            self.undecided.discard(digest)
            self._show_duplicates(chunk, row)
        else:
            chunk.hold(row, "in-flight")
            self.flight.wait(digest, Waiting(chunk, row, stored))

    def _show_duplicates(self, chunk: Chunk, row: int) -> None:
        """Call a record whose ID is in flight a duplicate, and offer it."""
        digest, offset, timestamp_ms = digest_of(chunk, row), chunk.offsets[row], int(chunk.timestamps[row])
        leader = self.recent.get(digest)
        if leader is not None and leader.offset == offset:
            leader = None
        chunk.judge(row, DUPLICATE, "in-flight", seen=None if leader is None else leader[:2])
        if leader is not None and self.flight.is_open(leader.offset):
            self.recent.cover(digest, offset, timestamp_ms)
        else:
            self.recent.begin(digest, offset, timestamp_ms)
        if self.count_window is not None:
            self.count_window.forget(offset)

    def settle_one(self, chunk: Chunk, row: int, stored: Mark | None) -> bool:
        """Give a record its verdict and return True, or False while the verdict depends on records in flight."""
        offset, timestamp_ms = chunk.offsets[row], int(chunk.timestamps[row])
        certain, mark = self.last_sighting(digest_of(chunk, row), offset, stored)
        if not certain:
            return False
        kind = decide(
            # An empty range: whether the record itself was completed before is decided already.
            offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), window=self.window,
            covered=self.reach.covers(timestamp_ms),
        )  # fmt: skip
        if kind is VerdictKind.DUPLICATE and mark is not None:
            # A sighting of another partition has no offset to show here.
            chunk.judge(row, DUPLICATE, seen=(max(mark.offset, -1), mark.timestamp_ms))
            self._repeat(chunk, row, stored)
            return True
        chunk.judge(
            row, KINDS.index(kind), self.reach.doubt(timestamp_ms) if kind is VerdictKind.UNVERIFIED else ""
        )
        chunk.unhold(row)
        self.recent.begin(digest_of(chunk, row), offset, timestamp_ms)
        if self.count_window is not None:
            self.count_window.offer(digest_of(chunk, row), offset)
        return True

    def last_sighting(self, digest: bytes, offset: int, stored: Mark | None) -> tuple[bool, Mark | None]:
        """Return whether the verdict is certain by now, and the mark that it depends on.

        With a count window the mark's number is, below zero, how many IDs were accepted after it.
        """
        mark, leader = stored, self.recent.get(digest)
        if leader is not None and leader.offset != offset:
            if self.flight.is_open(leader.offset):
                return False, None
            if mark is None or leader.offset > mark.offset:
                mark = leader
        if self.count_window is not None and mark is not None:
            after = self.count_window.accepted_after(
                digest, self.count_window.numbers.get(digest, mark.number), offset
            )
            if after is None:
                self.undecided.add(digest)
                return False, None
            mark = mark._replace(number=-after)
        return True, mark

    def _repeat(self, chunk: Chunk, row: int, stored: Mark | None) -> None:
        """Move the mark of an ID to its duplicate, which is completed by itself, unless duplicates are shown."""
        digest, offset, timestamp_ms = digest_of(chunk, row), chunk.offsets[row], int(chunk.timestamps[row])
        if self.flight.shows_duplicates:
            self.recent.begin(digest, offset, timestamp_ms)
        else:
            chunk.finish(row)
            self.recent.put(digest, offset, timestamp_ms)
        if self.count_window is not None:
            self.count_window.forget(offset)
            if stored is not None:
                self.count_window.know(digest, stored.number)

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        *,
        now_ms: int,
    ) -> int | None:
        """See `Memory`. Of a window by count nothing is known: a mark may be gone for its number."""
        window_ms = self.window.time_ms
        if window_ms is None or self.count_window is not None:
            return None
        flight, reach = self.flight, self.reach
        # A time from the future counts as now, as where marks are dropped for their age.
        newest_ms = min(reach.newest_ms, now_ms)
        rows = [
            row
            for row, offset in enumerate(offsets)
            if digests[row] is not None and offset >= reach.dropped_to and flight.is_restored(offset)
        ]
        asked = [digest for row in rows if (digest := digests[row]) is not None]
        marks = self._marks_of(asked, find)
        for row, digest in zip(rows, asked, strict=True):
            if is_contradicted(
                offsets[row], int(timestamps[row]), marks.get(digest), newest_ms=newest_ms, since_ms=reach.since_ms,
                window_ms=window_ms,
            ):  # fmt: skip
                return offsets[row]
        return None

    def _marks_of(self, digests: list[bytes], find: Find) -> dict[bytes, Mark]:
        """Return the newest mark of each ID, those of records in flight included."""
        asked = list(dict.fromkeys(digests))
        found = find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        marks = {
            asked[index]: Mark(offset, timestamp_ms)
            for index, offset, timestamp_ms in zip(
                found.indexes, found.offsets, found.timestamps, strict=True
            )
        }
        for digest in asked:
            mark = self.recent.get(digest)
            if mark is not None and (digest not in marks or marks[digest].offset < mark.offset):
                marks[digest] = mark
        return marks

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """See `Memory`."""
        flight = self.flight
        if not (self.recent.behind or self.recent.older_in_flight or flight.waiting):
            # As below, where nothing depends on the IDs that end; each message that comes alone takes this way.
            if rows is None:
                chunk.finish_offered()
            else:
                chunk.finish_open(rows)
            flight.advance(chunk)
            return []
        ended = self.end(chunk, rows)
        if self.recent.behind or self.recent.older_in_flight:
            self.end_ids(ended)
        flight.advance(chunk)
        return self._settle(ended) if flight.waiting else []

    def end(self, chunk: Chunk, rows: Iterable[int] | None) -> Sequence[bytes | None]:
        """Call records completed, as in `complete`; return the IDs on whose end something may depend."""
        if rows is None:
            chunk.finish_offered()
            # Whichever are fewer: the IDs on which something waits, or the IDs of the chunk.
            waiting: list[Any] = [*self.flight.waiting, *self.recent.behind, *self.recent.older_in_flight]
            return waiting if len(waiting) < len(chunk.offsets) else chunk.digests
        return [chunk.digests[row] for row in chunk.finish_open(rows)]

    def end_ids(self, digests: Iterable[bytes | None]) -> None:
        """Turn IDs that are no longer in flight into marks."""
        for digest in digests:
            if digest is None:
                continue
            if digest in self.recent.older_in_flight:
                self.recent.complete_older_in_flight(digest, self.flight.is_open)
            mark = self.recent.get(digest)
            if mark is not None and not self.flight.is_open(mark.offset):
                self.recent.complete(digest, mark.offset)

    def _settle(self, ended: Iterable[bytes | None]) -> list[RecordRef]:
        """Judge the records that are held back and whose turn has come; return those to offer, ascending by offset.

        That is those with the ID of a record that ended, and those that wait for numbers: any end may bring these.
        """
        flight, offered = self.flight, list[RecordRef]()
        ready: set[Any] = {*ended, *self.take_undecided()}
        while ready:
            progressed = False
            for digest in ready & flight.waited_on:
                while (waiter := flight.first_waiter(digest)) and self.settle_one(*waiter):
                    chunk, row, _ = waiter
                    progressed = True
                    flight.drop_first_waiter(digest)
                    flight.settle([RecordRef(chunk, row)])
                    if chunk.states[row] == SINGLE:
                        offered.append(RecordRef(chunk, row))
                    else:
                        flight.note_dirty(chunk)
            if progressed:
                flight.advance()
            ready = self.take_undecided() if progressed else set()
        flight.sort_settled()
        return sorted(offered, key=lambda place: place.offset)

    # --- marks of units, which lie at their ends -------------------------------------------------------------

    def put_in_line(self, digest: bytes, end: int, end_ms: int) -> None:
        """Have later records with an ID wait for a unit that ends there, where nothing else of the ID is known."""
        self.recent.find_or_enter(digest, end, end_ms)

    def leave_line(self, digest: bytes, end: int) -> None:
        """Forget an ID that was put in line at ``end``, and of which no mark is left there."""
        self.recent.drop(digest, end)

    def begin_id(self, digest: bytes, end: int, end_ms: int) -> None:
        """Note that an ID is in flight with the unit that ends there."""
        self.recent.begin(digest, end, end_ms)

    def move_mark(self, digest: bytes, end: int, end_ms: int) -> None:
        """Move the mark of an ID to the end of a unit that is a duplicate."""
        self.recent.put(digest, end, end_ms)

    def take_undecided(self) -> set[bytes]:
        """Return the IDs whose records wait for numbers of the count window; they are judged again now."""
        undecided, self.undecided = self.undecided, set()
        return undecided

    def together(self, place: RecordRef) -> list[RecordRef]:
        """See `Memory`."""
        return [place]

    def _number(self, chunks: list[Chunk], high: int) -> None:
        """Number the accepted records that the watermark passes."""
        for chunk in chunks if self.count_window is not None else ():
            rows = range(bisect_left(chunk.offsets, self.flight.high), bisect_left(chunk.offsets, high))
            for row in rows:
                if row not in chunk.unmarked:
                    self.count_window.number(digest_of(chunk, row), chunk.offsets[row])  # type: ignore[union-attr]

    # --- marks to keep -------------------------------------------------------------------------------------

    def marks(self) -> Written | None:
        """See `Memory`."""
        count_window, flight, reach = self.count_window, self.flight, self.reach
        parts: list[Marks] = []
        done: list[Range] = []
        for chunk in flight.take_dirty():
            whole = None if count_window is not None else chunk.take_whole()
            if whole is not None:
                parts.append(whole)
                if chunk.offsets[-1] >= flight.high:
                    done += chunk.done_ranges(flight.high)
                continue
            rows = chunk.unsaved()
            if count_window is not None:
                numbered = int(np.searchsorted(chunk.column[rows], flight.high))
                if numbered < len(rows):
                    # The rest is written when the watermark has passed it.
                    flight.wait_above(chunk)
                rows = rows[:numbered]
            if not len(rows):
                continue
            reach.note_completed(int(chunk.timestamps[rows].max()))
            parts.append(self._columns(chunk, rows))
            if count_window is None:
                done += chunk.ranges_of(rows, flight.high)
            chunk.mark_saved(rows)
        if not parts:
            return None
        marks = join_marks(parts)
        if marks.count:
            reach.note_completed(int(marks.timestamps.max()))
        self.note_journaled(marks)
        return Written(marks, done)

    def _columns(self, chunk: Chunk, rows: Rows) -> Marks:
        begin, end = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        if end - begin == len(rows) and not chunk.unmarked and self.count_window is None:
            digests_of_rows = chunk.join_digests()[DIGEST_BYTES * begin : DIGEST_BYTES * end]
            return Marks(digests_of_rows, chunk.column[begin:end], chunk.timestamps[begin:end])
        marked = [row for row in rows.tolist() if row not in chunk.unmarked]
        digests = [digest_of(chunk, row) for row in marked]
        return Marks(
            b"".join(digests), chunk.column[marked], chunk.timestamps[marked], self.numbers_of(digests)
        )

    def numbers_of(self, digests: Sequence[bytes]) -> Int64s | None:
        """Return the acceptance numbers of IDs, None without a count window."""
        if self.count_window is None:
            return None
        return np.asarray([self.count_window.numbers.get(digest, 0) for digest in digests], np.int64)

    def note_journaled(self, marks: Marks) -> None:
        """Note marks that are in the journal, with their numbers: a flush takes them from here."""
        if self.count_window is None or marks.numbers is None:
            return
        columns = zip(marks.offsets.tolist(), marks.timestamps.tolist(), marks.numbers.tolist(), strict=True)
        for digest, mark in zip(cut_digests(marks.digests), map(Mark._make, columns), strict=True):
            if self._journaled.get(digest, mark).offset <= mark.offset:
                self._journaled[digest] = mark

    def take_recent(self, clock_ms: int, find: Find) -> Taken:
        """See `Memory`. Marks that have left a window by count are left out as well."""
        if self.count_window is None:
            taken = self.recent.take(self.flight.open_of)
            return Taken(self._inside_window(taken.marks, clock_ms, find), taken.find)
        return Taken(self._inside_window(self._take_numbered(self.count_window), clock_ms, find))

    def _inside_window(self, marks: Marks, clock_ms: int, find: Find) -> Marks:
        """Return those of the marks, which were taken, that a flush is to write."""
        reach = self.reach
        live = np.ones(marks.count, np.bool_)
        if self.count_window is not None and marks.numbers is not None:
            live &= marks.numbers > self.count_window.accepted - self.count_window.size
        if self.window.time_ms is not None:
            horizon = reach.horizon_ms(clock_ms)
            old = marks.timestamps < horizon
            # Marks that left for their number have left the window, whatever their age.
            aged = np.flatnonzero(old & live)
            live &= ~old
            if aged.size:
                try:
                    hidden = find(take_digests(marks.digests, aged), aged.size).indexes
                except BaseException:
                    self.put_back(marks)
                    raise
                # Else a look-up would find the store's older mark, whose timestamp may be later.
                live[aged[hidden]] = True
                reach.forgot_before(horizon)
                gone = marks.offsets[~live]
                if gone.size:
                    reach.note_dropped(int(gone.max()) + 1)
        if bool(live.all()):
            return marks
        return select_marks(marks, live)

    def _take_numbered(self, count_window: CountWindow) -> Marks:
        """Return the marks that are in the journal, and keep in memory those above the watermark.

        Above it nothing has a number yet, and a crash forgets it: the mark below must outlive that.
        """
        table = np.asarray(list(self._journaled.values()), np.int64).reshape(-1, 3)
        marks = Marks(b"".join(self._journaled), table[:, 0], table[:, 1], table[:, 2])
        # Records that wait for numbers are judged by recent marks only, so that these stay too.
        waited_on = self.waited_marks()
        self.recent.keep_from(self.flight.high)
        self.keep_marks(waited_on)
        count_window.keep(self.recent)
        self._journaled = {}
        return marks

    def waited_marks(self) -> dict[bytes, Mark]:
        """Return the marks in memory of IDs on which records wait and of which nothing is in flight."""
        marks: dict[bytes, Mark] = {}
        for digest in self.flight.waited_on:
            mark = self.recent.get(digest)
            if mark is not None and not self.flight.is_open(mark.offset):
                marks[digest] = mark
        return marks

    def keep_marks(self, marks: Mapping[bytes, Mark]) -> None:
        """Keep marks in memory that a flush took out: records that wait are judged by them."""
        for digest, mark in marks.items():
            self.recent.find_or_enter(digest, mark.offset, mark.timestamp_ms)

    def put_back(self, marks: Marks) -> None:
        """See `Memory`."""
        self.recent.put_back(marks, self.flight.open_of)
        self.note_journaled(marks)
        if self.count_window is not None and marks.numbers is not None:
            self.count_window.put_back(
                dict(zip(cut_digests(marks.digests), marks.numbers.tolist(), strict=True))
            )

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """See `Memory`."""
        del live, end, now_ms
        offsets, timestamps, digests = chunk.offsets, chunk.timestamps, chunk.digests
        chunk.leave_no_mark(row for row, digest in enumerate(digests) if digest is None)
        column, joined = chunk.column, b""
        if chunk.unmarked:
            keyed = [row for row, digest in enumerate(digests) if digest is not None]
            joined = b"".join([digest_of(chunk, row) for row in keyed])
            column, timestamps = column[keyed], timestamps[keyed]
        else:
            joined = chunk.join_digests()
        if self.count_window is not None:
            self._fold_counted(self.count_window, joined, column, timestamps, find)
        self.recent.fold(joined, column, timestamps)
        chunk.finish_offered()
        return (offsets[-1], int(chunk.timestamps[-1]), digests[-1]) if offsets else None

    def _fold_counted(
        self, count_window: CountWindow, digests: bytes, offsets: Int64s, timestamps: Int64s, find: Find
    ) -> None:
        """Number the records that were accepted, one after the other: each verdict depends on those before it."""
        count = len(offsets)
        marks = self._numbered_marks(count_window, digests, count, find) if count else {}
        for digest, offset, timestamp_ms in zip(
            cut_digests(digests), offsets.tolist(), timestamps.tolist(), strict=True
        ):
            mark = marks.get(digest)
            number = 0 if mark is None else mark.number
            if (
                mark is None
                or (count_window.floor and number <= count_window.floor)
                or decide(
                    offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), covered=True,
                    window=self.window, accepted=count_window.given,
                ) is not VerdictKind.DUPLICATE
            ):  # fmt: skip
                number = count_window.accept(digest)
            marks[digest] = Mark(offset, timestamp_ms, number)

    def _numbered_marks(
        self, count_window: CountWindow, digests: bytes, count: int, find: Find
    ) -> dict[bytes, Mark]:
        """Return the newest mark of each ID that has one, with its number; numbers of the store are noted."""
        cut, marks = cut_digests(digests), dict[bytes, Mark]()
        for index, mark in _as_marks(find(digests, count)).items():
            count_window.know(cut[index], mark.number)
            marks[cut[index]] = mark
        for index, mark in _as_marks(self.recent.find(digests, count)).items():
            digest = cut[index]
            if digest not in marks or mark.offset > marks[digest].offset:
                marks[digest] = mark
        return {
            digest: mark._replace(number=count_window.numbers.get(digest, mark.number))
            for digest, mark in marks.items()
        }

    def folded(self, chunk: Chunk) -> Marks:
        """See `Memory`."""
        marks = self._columns(chunk, chunk.unsaved()) if chunk.offsets else NO_MARKS
        self.note_journaled(marks)
        return marks


def open_lookup(window: Window, progress: Progress, recent: Marks = NO_MARKS) -> PartitionState:
    """Return the state of a partition whose IDs are looked up: its progress, and the recent marks beside it."""
    return PartitionState(LookupMemory(window, progress, recent))


def _as_marks(found: Found) -> dict[int, Mark]:
    numbers = found.numbers or [0] * len(found.indexes)
    columns = zip(found.offsets, found.timestamps, numbers, strict=True)
    return dict(zip(found.indexes, (Mark(*column) for column in columns), strict=True))
