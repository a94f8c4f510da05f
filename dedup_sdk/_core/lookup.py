"""The memory that looks IDs up: a record is a duplicate if its ID was completed inside the window.

recent
    marks in memory, in no sorted file yet, and the IDs in flight: one dictionary (`RecentMarks`)
undecided
    IDs whose records are held back, not for a record in flight but for numbers of the count window
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from operator import is_not
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk._core.count_window import CountWindow
from dedup_sdk._core.flight import (
    DUPLICATE,
    FRESH,
    INDIVIDUAL,
    KINDS,
    UNVERIFIED,
    Chunk,
    Flight,
    RecordRef,
    Rows,
    digest_of,
)
from dedup_sdk._core.memory import Find, LastRecord, Live, Written
from dedup_sdk._core.ranges import Range
from dedup_sdk._core.reach import Reach
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import Mark, decide, decide_marked, is_contradicted
from dedup_sdk._marks import (
    NO_MARKS,
    NONE_FOUND,
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

Bools = np.ndarray[Any, np.dtype[np.bool_]]
_FEWEST: Final = 1_024


class TimestampIndex:
    """Offsets, ascending, and their timestamps (ms).

    ``strays`` are offsets that came from elsewhere than the log being read, in any order.
    """

    def __init__(self) -> None:
        self._count = 0
        self._offsets = np.empty(_FEWEST, np.int64)
        self._timestamps = np.empty(_FEWEST, np.int64)
        self._strays: dict[int, int] = {}

    def extend(self, offsets: Int64s, timestamps: Int64s) -> None:
        """Add offsets not below the others, ascending, an offset perhaps twice; both of one length."""
        start, end = self._count, self._count + len(offsets)
        if end > len(self._offsets):
            room = max(end, 2 * len(self._offsets))
            self._offsets = np.resize(self._offsets[:start], room) if start else np.empty(room, np.int64)
            self._timestamps = (
                np.resize(self._timestamps[:start], room) if start else np.empty(room, np.int64)
            )
        self._offsets[start:end] = offsets
        self._timestamps[start:end] = timestamps
        self._count = end

    def __len__(self) -> int:
        return self._count

    def keep_only(self, offsets: Int64s) -> None:
        """Forget all but these offsets, in any order; those kept apart stay."""
        known = self._offsets[: self._count]
        wanted = np.isin(known, offsets)
        self.replace(known[wanted], self._timestamps[: self._count][wanted])

    def replace(self, offsets: Int64s, timestamps: Int64s) -> None:
        """Set the offsets anew, ascending; those kept apart stay."""
        self._count = 0
        self.extend(offsets, timestamps)

    def keep(self, offset: int, timestamp_ms: int) -> None:
        """Remember one offset apart from the others."""
        self._strays[offset] = timestamp_ms

    def at(self, offset: int) -> int:
        """Return the timestamp of an offset that was added; KeyError if it was not."""
        if offset in self._strays:
            return self._strays[offset]
        place = int(self._offsets[: self._count].searchsorted(offset))
        if place == self._count or self._offsets[place] != offset:
            raise KeyError(offset)
        return int(self._timestamps[place])

    def at_all(self, offsets: Int64s) -> Int64s:
        """Return the timestamps of many offsets, shape as given; KeyError if one was never added."""
        known = self._offsets[: self._count]
        if self._count and int(known[-1]) - int(known[0]) == self._count - 1:
            # A log without holes, as most are: the place of an offset needs no search. (A journal may hold an offset
            # twice, which looks the same when it has as many holes: offsets not at their place are searched below.)
            places = (offsets - known[0]).clip(0, self._count - 1)
        else:
            places = known.searchsorted(offsets)
        if self._count:
            np.minimum(places, self._count - 1, out=places)
            found: Int64s = self._timestamps[places]
            wrong = np.flatnonzero(
                (known[places] != offsets) | (bool(self._strays) and np.isin(offsets, list(self._strays)))
            )
        else:
            found, wrong = np.empty(len(offsets), np.int64), np.arange(len(offsets))
        for index in wrong.tolist():
            found[index] = self.at(int(offsets[index]))
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._count = 0
        self._strays.clear()


class RecentMarks:
    """Digest -> offset of the newest record with that ID, completed or in flight: one dictionary for both.

    The watermark tells whether that record is completed (then the entry is a mark) or in flight. So completing a
    record changes nothing here, and one dictionary operation a record answers three questions: is it a duplicate in
    this batch, is it in flight, was it seen lately. An entry keeps only an offset (a Python integer that exists
    anyway); the timestamps of offsets stay in columns (`TimestampIndex`). That is a third of the memory that a pair
    per mark would take, and many are looked up in one call.

    ``behind`` keeps the completed mark of an ID that is in flight again: it must outlive a crash before the record
    is completed, so that a flush writes it, and it wins if it lies above the record. ``beneath`` has the offsets
    (ascending) of an ID's other records in flight, below its newest: only where duplicates are shown (observe mode),
    so that nothing is held back and a completed duplicate may lie below one in flight.
    """

    def __init__(self) -> None:
        self.offsets: dict[bytes, int] = {}
        self.behind: dict[bytes, Mark] = {}
        self.beneath: dict[bytes, list[int]] = {}
        self.time_index = TimestampIndex()

    def __len__(self) -> int:
        return len(self.offsets)

    def mark(self, digest: bytes) -> Mark | None:
        """Return the entry of an ID as a mark; the caller knows that its record is completed."""
        offset = self.offsets.get(digest)
        if offset is None:
            return None
        return Mark(offset, self.time_index.at(offset))

    def begin(self, digest: bytes, offset: int) -> None:
        """Put an ID in flight in front of the mark that it has."""
        if self.offsets.get(digest, offset) != offset:
            self.behind[digest] = Mark(self.offsets[digest], self.time_index.at(self.offsets[digest]))
        self.offsets[digest] = offset

    def complete(self, digest: bytes, offset: int) -> None:
        """Make the ID in flight at ``offset`` a mark, unless the mark behind it lies higher."""
        behind = self.behind.pop(digest, None)
        if behind is not None and behind.offset > offset:
            self.restore(digest, behind)

    def cover(self, digest: bytes, offset: int) -> None:
        """Put a duplicate in front of an ID that is in flight, and in flight stays."""
        self.beneath.setdefault(digest, []).append(self.offsets[digest])
        self.offsets[digest] = offset

    def complete_beneath(self, digest: bytes, is_open: Callable[[int], bool]) -> None:
        """Make the newest completed of an ID's covered records its mark behind, unless a higher mark is there."""
        covered = self.beneath[digest]
        ended = [offset for offset in covered if not is_open(offset)]
        still = [offset for offset in covered if offset not in ended]
        if still:
            self.beneath[digest] = still
        else:
            del self.beneath[digest]
        behind = self.behind.get(digest)
        if ended and (behind is None or behind.offset < ended[-1]):
            self.behind[digest] = Mark(ended[-1], self.time_index.at(ended[-1]))

    def drop(self, digest: bytes, offset: int) -> None:
        """Forget an ID that a unit stood in line for at ``offset``, which leaves no mark of it."""
        if self.offsets.get(digest) == offset:
            del self.offsets[digest]

    def restore(self, digest: bytes, mark: Mark) -> None:
        """Set an ID's mark from outside the log that passes by."""
        self.offsets[digest] = mark.offset
        self.time_index.keep(mark.offset, mark.timestamp_ms)

    def fold(self, digests: list[bytes], offsets: list[int], timestamps: Int64s) -> None:
        """Take completed records over in offset order; an entry of a higher offset stays."""
        if not offsets:
            return
        self.time_index.extend(np.fromiter(offsets, np.int64, len(offsets)), timestamps)
        known = self.offsets
        if not known or all(known[digest] < offsets[0] for digest in known.keys() & set(digests)):
            known.update(zip(digests, offsets, strict=True))
            return
        for digest, offset in zip(digests, offsets, strict=True):
            if known.get(digest, -1) < offset:
                known[digest] = offset

    def keep_from(self, offset: int) -> None:
        """Forget the IDs whose entry lies below ``offset``, and every timestamp."""
        self.offsets = {digest: at for digest, at in self.offsets.items() if at >= offset}
        self.time_index.clear()

    def take(self, are_open: Callable[[Int64s], Bools]) -> Marks:
        """Remove all marks of IDs that are not in flight, and return them with those of ``behind``, which stay.

        ``are_open`` returns for an array of offsets, shape ``(n,)``, which of them are not completed.
        """
        digests = list(self.offsets)
        offsets = np.fromiter(self.offsets.values(), np.int64, len(digests))
        mask = ~are_open(offsets)
        in_flight = np.flatnonzero(~mask).tolist()
        kept = {digests[index]: int(offsets[index]) for index in in_flight}
        if in_flight:
            digests = [digests[index] for index in np.flatnonzero(mask).tolist()]
            offsets = offsets[mask]
        times = self.time_index.at_all(offsets)
        if self.behind:
            digests = [*digests, *self.behind]
            columns = np.asarray(list(self.behind.values()), np.int64)
            offsets, times = np.concatenate((offsets, columns[:, 0])), np.concatenate((times, columns[:, 1]))
        self.offsets = kept
        # The records that a mark covers are older than it, whether they are completed or not.
        self.beneath = {digest: under for digest, under in self.beneath.items() if digest in kept}
        self.time_index.clear()
        return Marks(b"".join(digests), offsets, times)


class Waiting(NamedTuple):
    """A record that is held back, and the mark that the store had of its ID when it came."""

    chunk: Chunk
    row: int
    stored: Mark | None


class Asked(NamedTuple):
    """Records that are judged by their IDs: their rows (None: all), their digests, and the store's marks of these."""

    rows: list[int] | None
    digests: list[Any]
    found: Found


class LookupMemory:
    """`dedup_sdk._core.memory.Memory` of the IDs completed inside a window.

    Copies of a record in flight wait on its digest.
    """

    def __init__(
        self,
        window: Window,
        progress: Progress,
        recent: Marks = NO_MARKS,
    ) -> None:
        self.window = window
        self.flight = Flight(progress, in_order=bool(window.count))
        self.reach = Reach(window, progress)
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
        digests = cut_digests(take_digests(recent.digests, order))
        offsets, timestamps = recent.offsets[order].tolist(), recent.timestamps[order]
        below = bisect_left(offsets, self.flight.high)
        self.recent.fold(digests[:below], offsets[:below], timestamps[:below])
        # Above the watermark records come again, so that these marks stand apart from the log that passes by.
        above = zip(digests[below:], offsets[below:], timestamps[below:].tolist(), strict=True)
        for digest, offset, timestamp_ms in above:
            self.recent.restore(digest, Mark(offset, timestamp_ms))
        if self.count_window and recent.numbers is not None:
            self.count_window.put_back(dict(zip(digests, recent.numbers[order].tolist(), strict=True)))
            self.note_journaled(recent)

    @property
    def committed_low(self) -> int:
        """See `Memory`."""
        return self.flight.low

    @property
    def exact_from(self) -> int:
        """See `Memory`."""
        return 0

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
            return Asked(None, chunk.digests, find(chunk.join_digests(), len(chunk.digests)))
        keyed = [row for row in range(len(chunk.offsets)) if row not in chunk.unmarked]
        digests: list[Any] = [chunk.digests[row] for row in keyed]
        return Asked(keyed, digests, find(b"".join(digests), len(digests)) if digests else NONE_FOUND)

    def judge(self, chunk: Chunk, known: Asked, *, timed: bool = False) -> None:
        """See `Memory`; in one pass of columns. ``timed``: the timestamps of the chunk are known already."""
        keyed, digests, found = known
        if not timed:
            column, timestamps = chunk.column, chunk.timestamps
            if keyed is not None:
                column, timestamps = column[keyed], timestamps[keyed]
            self.recent.time_index.extend(column, timestamps)
        offsets = chunk.offsets if keyed is None else [chunk.offsets[row] for row in keyed]
        before = list(map(self.recent.offsets.setdefault, digests, offsets))
        if self.reach.since_ms is not None or self.reach.since_number is not None:
            self._doubt(chunk, range(len(chunk.offsets)) if keyed is None else keyed)
        if before == offsets and not found.indexes and self.count_window is None:
            return
        stored = _as_marks(found)
        if self.count_window is not None:
            met: Iterable[int] = range(len(offsets))
        else:
            met = list(compress(range(len(offsets)), map(is_not, before, offsets)))
            if stored:
                met = sorted({*met, *stored})
            met = self._meet_columns(chunk, met, known, before=before, stored=stored)
        for index in met:
            self._meet(chunk, index if keyed is None else keyed[index], stored.get(index))

    def _meet_columns(
        self, chunk: Chunk, met: list[int], asked: Asked, *, before: list[int], stored: dict[int, Mark]
    ) -> list[int]:
        """Judge at once the records whose ID has one completed mark and nothing in flight; return the others."""
        indexes = np.asarray(met, np.intp)
        seen = np.fromiter(map(before.__getitem__, met), np.int64, len(met))
        plain = seen < self.flight.high
        for at in self._entangled(met, asked.digests, stored):
            plain[at] = False
        others: list[int] = indexes[~plain].tolist()
        if len(others) == len(met):
            return others
        indexes, seen = indexes[plain], seen[plain]
        rows = indexes if asked.rows is None else np.asarray(asked.rows, np.intp)[indexes]
        seen_ms = self.recent.time_index.at_all(seen)
        duplicates = decide_marked(chunk.column[rows], chunk.timestamps[rows], seen, seen_ms, self.window)
        if not duplicates.all():
            others = sorted([*others, *indexes[~duplicates].tolist()])
            rows, seen, seen_ms = rows[duplicates], seen[duplicates], seen_ms[duplicates]
        shows_duplicates = self.flight.shows_duplicates
        chunk.judge_duplicates(rows, seen, seen_ms, completed=not shows_duplicates)
        hits = rows.tolist()
        known: list[Any] = chunk.digests
        if shows_duplicates:
            for row in hits:
                self.recent.begin(known[row], chunk.offsets[row])
            return others
        self.recent.offsets.update(
            zip(map(known.__getitem__, hits), map(chunk.offsets.__getitem__, hits), strict=True)
        )
        return others

    def _entangled(self, met: list[int], digests: list[bytes], stored: dict[int, Mark]) -> list[int]:
        """Return the places in ``met`` whose verdict hangs on more than one mark, on each other, or on who waits."""
        waiting = self.flight.waiting
        if not stored and not waiting and len(set(map(digests.__getitem__, met))) == len(met):
            return []
        times = Counter(map(digests.__getitem__, met))
        return [
            at
            for at, index in enumerate(met)
            if index in stored or times[digests[index]] > 1 or digests[index] in waiting
        ]

    def _doubt(self, chunk: Chunk, keyed: Iterable[int]) -> None:
        """Call records that the marks do not cover unverified, until a mark proves them duplicates."""
        if self.reach.covers_by_count():
            return
        uncovered: Iterable[int] = keyed
        if self.window.time_ms is not None:
            if self.reach.since_ms is None:
                return
            late = chunk.timestamps < self.reach.since_ms + self.window.time_ms
            if not late.any():
                return
            uncovered = [row for row in keyed if late[row]]
        chunk.judge_rows(uncovered, UNVERIFIED, "uncovered")

    def _meet(self, chunk: Chunk, row: int, stored: Mark | None) -> None:
        """Judge one record whose ID may be known."""
        if self.count_window is not None:
            self.count_window.consider(chunk.offsets[row])
        digest = digest_of(chunk, row)
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
        digest, offset = digest_of(chunk, row), chunk.offsets[row]
        leader = self.recent.offsets[digest]
        seen = None if leader == offset else (leader, self.recent.time_index.at(leader))
        chunk.judge(row, DUPLICATE, "in-flight", seen=seen)
        if self.flight.is_open(leader) and leader != offset:
            self.recent.cover(digest, offset)
        else:
            self.recent.begin(digest, offset)
        if self.count_window is not None:
            self.count_window.forget(offset)

    def settle_one(self, chunk: Chunk, row: int, stored: Mark | None) -> bool:
        """Give a record its verdict and return True, or False while the verdict depends on records in flight."""
        offset, timestamp_ms = chunk.offsets[row], int(chunk.timestamps[row])
        certain, mark = self.last_sighting(digest_of(chunk, row), offset, stored)
        if not certain:
            return False
        kind = decide(
            offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), window=self.window,
            covered=self.reach.covers(timestamp_ms),
        )  # fmt: skip
        if kind is VerdictKind.DUPLICATE and mark is not None:
            chunk.judge(row, DUPLICATE, seen=(max(mark.offset, -1), mark.timestamp_ms))
            self._repeat(chunk, row, stored)
            return True
        chunk.judge(row, KINDS.index(kind), "uncovered" if kind is VerdictKind.UNVERIFIED else "")
        chunk.unhold(row)
        self.recent.begin(digest_of(chunk, row), offset)
        if self.count_window is not None:
            self.count_window.offer(digest_of(chunk, row), offset)
        return True

    def last_sighting(self, digest: bytes, offset: int, stored: Mark | None) -> tuple[bool, Mark | None]:
        """Return whether the verdict is certain by now, and the mark that it depends on.

        With a count window the mark's number is, below zero, how many IDs were accepted after it.
        """
        mark = stored
        leader = self.recent.offsets.get(digest, offset)
        if leader != offset:
            if self.flight.is_open(leader):
                return False, None
            if mark is None or leader > mark.offset:
                mark = Mark(leader, self.recent.time_index.at(leader))
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
        digest, offset = digest_of(chunk, row), chunk.offsets[row]
        if self.flight.shows_duplicates:
            self.recent.begin(digest, offset)
        else:
            chunk.finish(row)
            self.recent.offsets[digest] = offset
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
            offset = self.recent.offsets.get(digest, -1)
            if offset >= 0 and (digest not in marks or marks[digest].offset < offset):
                marks[digest] = Mark(offset, 0)
        return marks

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """See `Memory`."""
        ended, flight = self.end(chunk, rows), self.flight
        if self.recent.behind or self.recent.beneath:
            self.end_ids(ended)
        flight.advance(chunk)
        return self._settle(ended) if flight.waiting else []

    def end(self, chunk: Chunk, rows: Iterable[int] | None) -> Sequence[bytes | None]:
        """Call records completed, as in `complete`; return the IDs on whose end something may depend."""
        if rows is None:
            chunk.finish_offered()
            waiting: list[Any] = [*self.flight.waiting, *self.recent.behind, *self.recent.beneath]
            return waiting if len(waiting) < len(chunk.offsets) else chunk.digests
        return [chunk.digests[row] for row in chunk.finish_open(rows)]

    def end_ids(self, digests: Iterable[bytes | None]) -> None:
        """Turn IDs that are no longer in flight into marks."""
        for digest in digests:
            if digest is None:
                continue
            if digest in self.recent.beneath:
                self.recent.complete_beneath(digest, self.flight.is_open)
            offset = self.recent.offsets.get(digest)
            if offset is not None and not self.flight.is_open(offset):
                self.recent.complete(digest, offset)

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
                    if chunk.states[row] == INDIVIDUAL:
                        offered.append(RecordRef(chunk, row))
                    else:
                        flight.note_dirty(chunk)
            if progressed:
                flight.advance()
            ready = self.take_undecided() if progressed else set()
        flight.sort_settled()
        return sorted(offered, key=lambda place: place.offset)

    # --- marks of units, which lie at their ends -------------------------------------------------------------

    def note_times(self, chunk: Chunk) -> None:
        """Note the timestamps of all records of a chunk, before some of them are judged (``timed``)."""
        self.recent.time_index.extend(chunk.column, chunk.timestamps)

    def shorten_times(self, most: int) -> None:
        """Forget the timestamps of offsets that are neither remembered nor in flight.

        That is done only where there are more than ``most``, and mostly such ones.
        """
        recent, flight = self.recent, self.flight
        times = len(recent.time_index)
        if times > most and times > most + 4 * (len(recent) + flight.kept):
            known = np.fromiter(recent.offsets.values(), np.int64, len(recent))
            recent.time_index.keep_only(np.concatenate([known, *(chunk.column for chunk in flight.chunks)]))

    def put_in_line(self, digest: bytes, end: int) -> None:
        """Have later records with an ID wait for a unit that ends at ``end``, where nothing else of the ID is known."""
        self.recent.offsets.setdefault(digest, end)

    def leave_line(self, digest: bytes, end: int) -> None:
        """Forget an ID that was put in line at ``end``, and of which no mark is left there."""
        self.recent.drop(digest, end)

    def begin_id(self, digest: bytes, end: int) -> None:
        """Note that an ID is in flight with the unit that ends at ``end``."""
        self.recent.begin(digest, end)

    def move_mark(self, digest: bytes, end: int) -> None:
        """Move the mark of an ID to the end of a unit that is a duplicate."""
        self.recent.offsets[digest] = end

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
        if (
            chunk.joined is not None
            and len(rows) == len(chunk.offsets)
            and not chunk.unmarked
            and self.count_window is None
        ):
            return Marks(chunk.joined, chunk.column, chunk.timestamps)
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

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """See `Memory`. Marks that have left a window by count are left out as well."""
        flight, reach = self.flight, self.reach
        marks = (
            self.recent.take(flight.open_of)
            if self.count_window is None
            else self._take_numbered(self.count_window)
        )
        for chunk in flight.chunks:
            self.recent.time_index.extend(chunk.column, chunk.timestamps)
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
        count_window.keep(self.recent.offsets)
        self._journaled = {}
        return marks

    def waited_marks(self) -> dict[bytes, Mark]:
        """Return the marks in memory of IDs on which records wait and of which nothing is in flight."""
        marks: dict[bytes, Mark] = {}
        for digest in self.flight.waited_on:
            offset = self.recent.offsets.get(digest)
            mark = None if offset is None or self.flight.is_open(offset) else self.recent.mark(digest)
            if mark is not None:
                marks[digest] = mark
        return marks

    def keep_marks(self, marks: Mapping[bytes, Mark]) -> None:
        """Keep marks in memory that a flush took out: records that wait are judged by them."""
        for digest, mark in marks.items():
            if digest not in self.recent.offsets:
                self.recent.restore(digest, mark)

    def put_back(self, marks: Marks) -> None:
        """See `Memory`."""
        # Later records are added above, so that only offsets below them may go into the sorted part.
        chunks = self.flight.chunks
        passed = marks.offsets < self.flight.position
        columns = [marks.offsets[passed], *(chunk.column for chunk in chunks)]
        times = [marks.timestamps[passed], *(chunk.timestamps for chunk in chunks)]
        offsets, timestamps = np.concatenate(columns), np.concatenate(times)
        order = np.argsort(offsets, kind="stable")
        self.recent.time_index.replace(offsets[order], timestamps[order])
        for index in np.flatnonzero(~passed).tolist():
            self.recent.time_index.keep(int(marks.offsets[index]), int(marks.timestamps[index]))
        digests = cut_digests(marks.digests)
        self.note_journaled(marks)
        for digest, offset in zip(digests, marks.offsets.tolist(), strict=True):
            # An ID in flight stays in front of its mark.
            self.recent.offsets.setdefault(digest, offset)
        if self.count_window is not None and marks.numbers is not None:
            self.count_window.put_back(dict(zip(digests, marks.numbers.tolist(), strict=True)))

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """See `Memory`."""
        del find, end, now_ms
        offsets, timestamps, digests = chunk.offsets, chunk.timestamps, chunk.digests
        chunk.leave_no_mark(row for row, digest in enumerate(digests) if digest is None)
        if self.count_window is not None:
            # One record after the other: a count window depends on the order.
            for row, (offset, digest) in enumerate(zip(offsets, digests, strict=True)):
                if digest is None:
                    self.flight.skip(offset + 1)
                else:
                    live([offset], timestamps[row : row + 1], [digest])
            self.flight.forget_dirty()
        elif chunk.unmarked:
            keyed = [row for row, digest in enumerate(digests) if digest is not None]
            self.recent.fold(
                [digest_of(chunk, row) for row in keyed], [offsets[row] for row in keyed], timestamps[keyed]
            )
        else:
            known: list[Any] = digests
            chunk.join_digests()
            self.recent.fold(known, offsets, timestamps)
        chunk.finish_offered()
        return (offsets[-1], int(timestamps[-1]), digests[-1]) if offsets else None

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
