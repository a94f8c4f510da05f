"""The memory of a partition whose records may belong to units: IDs are looked up, and units are judged as a whole.

Each single record is judged where it lies, those of a unit at its end, all at once, and they are remembered there.
So "a mark below this offset" still means that it was judged before, and a fold of the log gives the same. Records
and units that wait for an ID wait in one queue, in the order in which they are judged.

A unit's marks have offset and timestamp of its last record. So to merge by the larger offset still keeps the last
sighting. A unit that waits stands in the queues of all its IDs at its end: later records wait behind it, earlier
ones do not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk._core.count_window import CountWindow
from dedup_sdk._core.flight import (
    DONE,
    DUPLICATE,
    ENDED,
    FRESH,
    HELD,
    KINDS,
    OFFERED,
    REDELIVERED,
    SINGLE,
    UNKEYED,
    UNVERIFIED,
    Chunk,
    Flight,
    RecordRef,
    digest_of,
)
from dedup_sdk._core.lookup import Asked, LookupMemory
from dedup_sdk._core.memory import LastRecord, Live, Taken, Written
from dedup_sdk._core.reach import KnownRange
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import Mark, decide
from dedup_sdk._marks import (
    NO_MARKS,
    NONE_FOUND,
    NOTHING_KNOWN,
    Find,
    Found,
    Int64s,
    Marks,
    Progress,
    join_marks,
)
from dedup_sdk._record import VerdictKind, value_bytes
from dedup_sdk._units.assembler import UNFINISHED, OpenUnit, UnitAssembler, UnitStatus
from dedup_sdk._units.doubt import Doubt, ahead_ms_of
from dedup_sdk._units.keys import Member, UnitKeys
from dedup_sdk._units.ranges import OverUnits
from dedup_sdk._units.whole import CompleteUnit, UnitNotes, gathered_of, notes_of, units_of
from dedup_sdk._window import Window

MOST_OPEN: Final = 100_000
"""So many other records may come of its partition while a unit is open: all of them are in memory for it.

In a fold it counts offsets. The unit's own records (`Unit.records`) come on top, but not in a fold, which then does
not know whether the unit was accepted.
"""
WAITS_FOR_UNIT: Final = "unit"
"""The reason of a record that waits for its unit, and of one that is a duplicate only because its unit is."""
_MEGABYTE: Final = 2**20


@dataclass(slots=True, order=True)
class Remembered:
    """The marks that a unit leaves: one of each of ``digests`` at its end."""

    end: int
    end_ms: int
    digests: list[bytes]


class Members(NamedTuple):
    """The statements of a chunk's records on their units, by row.

    The rows completed before; the store's marks of IDs.
    """

    members: dict[int, Member]
    restored: set[int]
    stored: dict[bytes, Mark]


class UnitMemory:
    """`dedup_sdk._core.memory.Memory` of units, in front of one that looks IDs up.

    The digests of records are their unit keys (`UnitKeys`). ``assembler`` has the units that are open.
    ``complete_units`` are those that wait or are in flight, by their ends. ``is_live``: records came that are not
    folded. Units that failed because too much came behind them are kept, each with the offset of its first record,
    until `take_overflowed`.
    """

    def __init__(self, window: Window, keys: UnitKeys, progress: Progress, recent: Marks = NO_MARKS) -> None:
        self.keys = keys
        self.assembler = UnitAssembler(keys.unit.records)
        self.lookup = LookupMemory(window, progress, recent, ahead_ms=ahead_ms_of(window, keys.mode))
        self.complete_units: dict[int, CompleteUnit] = {}
        self.over = OverUnits()
        self.doubt = Doubt(self.lookup.reach, all_or_nothing=keys.mode == "all-or-nothing")
        self.is_live = False
        self._window = window
        self._folding = False
        self._due: list[RecordRef] = []
        self._overflowed: list[tuple[bytes, int]] = []
        self._remembered: list[Remembered] = []
        self._promoted: list[RecordRef] = []
        self._admitting: Chunk | None = None
        self._settling = False
        self._discards_unkeyed = False
        self._now_ms = NOTHING_KNOWN
        self._numbered = self.flight.high
        self.flight.watch(passing=self._pass, bound=self._outside_units)
        if progress.completed_end > (progress.low if progress.committed is None else progress.committed):
            # Completions that no commit has yet were lost with the process.
            self.doubt.note_inexact_below(progress.completed_end)

    @property
    def flight(self) -> Flight:
        """See `Memory`."""
        return self.lookup.flight

    @property
    def reach(self) -> KnownRange:
        """See `Memory`."""
        return self.lookup.reach

    @property
    def _count_window(self) -> CountWindow | None:
        return self.lookup.count_window

    @property
    def committed_low(self) -> int:
        """See `Memory`."""
        return self.doubt.committed_low(self.flight.low, self.flight.high)

    @property
    def exact_from(self) -> int:
        """See `Memory`."""
        return self.doubt.exact_from

    def note_inexact_below(self, offset: int) -> None:
        """See `Memory`."""
        self.doubt.note_inexact_below(offset)

    @property
    def written_since_ms(self) -> int | None:
        """See `Memory`."""
        return self.doubt.written_since_ms()

    @property
    def recent_count(self) -> int:
        """See `Memory`."""
        return self.lookup.recent_count

    @property
    def looked_up(self) -> int:
        """See `Memory`."""
        return 0

    @property
    def needs_more(self) -> bool:
        """Whether the watermark stands before a record whose unit is not whole: you must read on to have it move.

        A partition is not paused for such a unit, however much waits behind it: its other records would never come,
        and a paused partition is not at the end of its log, so that no timeout would end the unit. Instead it fails
        when too much came behind it (`UnitAssembler.overflowing`). The records of a failed unit wait for their
        handlers; for these the partition is paused as usual.
        """
        oldest = next(iter(self.assembler.open.values()), None)
        return oldest is not None and oldest.offsets[0] == self.flight.first_open

    def forget_all(self) -> None:
        """See `Memory`."""
        self.lookup.forget_all()

    def pass_uncounted(self, count: int) -> None:
        """See `Memory`."""
        if self._count_window is not None:
            self._count_window.pass_uncounted(max(0, count))

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        *,
        now_ms: int,
    ) -> int | None:
        """See `Memory`. A unit's mark tells nothing of single records."""
        del offsets, timestamps, digests, find, now_ms
        return None

    # --- records that come ---------------------------------------------------------------------------------

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return the digests that records with these unit keys have looked up.

        Those of open units that they may make whole are among them.
        """
        keys = list(digests)
        asked = [self.keys.name_of(key) for key in keys]
        for name in self.assembler.may_end(self.keys.members_of(keys).values()):
            asked += [chunk.digests[row] for chunk, row in self.assembler.open[name].items]
        return asked

    def look_up(
        self, chunk: Chunk, missing: dict[int, str], find: Find, *, discard: bool, now_ms: int
    ) -> Asked | Members:
        """See `Memory`. From here on records that an earlier fold could not judge are not covered."""
        self._now_ms, self._discards_unkeyed = now_ms, discard
        if not self._folding:
            self._due = []
            if not self.is_live:
                self.is_live = True
                self.assembler.wait_anew()
                self.doubt.end()
            self._fail_overflowing()
        members = self.keys.members_of(chunk.digests)
        if not members:
            return self.lookup.look_up(chunk, missing, find, discard=discard, now_ms=now_ms)
        chunk.replace_digests({row: member.digest for row, member in members.items()})
        chunk.attach_notes(UnitNotes())
        # Before records without an ID join the unmarked ones.
        restored = set(chunk.unmarked)
        chunk.judge_unkeyed(missing, discard=discard)
        return Members(members, restored, self._find(chunk, members, restored, find))

    def _find(
        self, chunk: Chunk, members: dict[int, Member], restored: set[int], find: Find
    ) -> dict[bytes, Mark]:
        """Ask the store for every ID that may be judged now, also those of open units that may come to their end."""
        wanted = {
            digest for row, digest in enumerate(chunk.digests) if digest is not None and row not in restored
        }
        for name in self.assembler.may_end(members.values()):
            wanted |= {
                digest_of(*each) for each in self.assembler.open[name].items if each.chunk.digests[each.row]
            }
        asked = list(wanted)
        found = find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        numbers = found.numbers or [0] * len(found.indexes)
        columns = zip(found.offsets, found.timestamps, numbers, strict=True)
        return {asked[index]: Mark(*column) for index, column in zip(found.indexes, columns, strict=True)}

    def judge(self, chunk: Chunk, known: Asked | Members) -> None:
        """See `Memory`. Verdicts that a unit's end brings for records of earlier chunks are settled."""
        if isinstance(known, Asked):
            self.lookup.judge(chunk, known)
        else:
            # Reset whatever happens: no later record may be offered with this chunk.
            self._admitting = chunk
            try:
                self._judge_all(chunk, known)
            finally:
                self._admitting = None
            self._hand_over_with(chunk)
        if self.assembler.open and not self._folding:
            self.assembler.note_came(len(chunk.offsets), value_bytes(chunk.items))

    def _judge_all(self, chunk: Chunk, known: Members) -> None:
        singles: list[int] = []
        for row, offset in enumerate(chunk.offsets):
            member = known.members.get(row)
            if member is None or not member.name:
                if row not in chunk.unmarked:
                    singles.append(row)
                continue
            if row in known.restored:
                self._note_over(member, offset)
                continue
            # The unit leaves the mark, at its end.
            chunk.leave_no_mark([row])
            place = RecordRef(chunk, row)
            status, unit, reason = self.assembler.take(member, offset, place, self._now_ms)
            notes_of(chunk).join_unit(row)
            chunk.hold(row, WAITS_FOR_UNIT)
            if status is UnitStatus.WAITS:
                continue
            # Records before an end are judged before it.
            self._judge_singles(chunk, singles, known.stored)
            singles = []
            if status is UnitStatus.WHOLE and unit is not None:
                self._judge_whole(unit, known.stored)
            elif unit is not None:
                self._deliver_each(unit.items, reason)
            else:
                self._deliver_each([place], reason)
        self._judge_singles(chunk, singles, known.stored)

    def _note_over(self, member: Member, offset: int) -> None:
        """Note a record of a unit that was completed before."""
        if member.name in self.assembler.open:
            # While others of it are not: then it had failed.
            unit = self.assembler.fail(member.name, UNFINISHED, self._now_ms)
            self._deliver_each(unit.items, UNFINISHED)
        extent = self.assembler.note_over(member, offset, self._now_ms)
        if extent is not None:
            self.over.add(*extent)

    def _judge_singles(self, chunk: Chunk, rows: list[int], stored: dict[bytes, Mark]) -> None:
        if not rows:
            return
        digests = [digest_of(chunk, row) for row in rows]
        hits = [(index, stored[digest]) for index, digest in enumerate(digests) if digest in stored]
        marks = [mark for _, mark in hits]
        found = Found(
            [index for index, _ in hits],
            [mark.offset for mark in marks],
            [mark.timestamp_ms for mark in marks],
            [mark.number for mark in marks],
        )
        self.lookup.judge(chunk, Asked(np.array(rows, np.intp), b"".join(digests), found))

    def _hand_over_with(self, chunk: Chunk) -> None:
        """Offer the records of this chunk that became due together with it."""
        due, self._due = [*self._due, *self._promoted], []
        self._promoted = []
        for place in due:
            if place.chunk is not chunk:
                self._due.append(place)
            elif chunk.states[place.row] == SINGLE:
                # Delivered with the chunk, whose settled records are forgotten below.
                chunk.offer_with_chunk(place.row)
        self.flight.drop_settled(chunk)

    # --- units ---------------------------------------------------------------------------------------------

    def _judge_whole(self, gathered: OpenUnit, stored: dict[bytes, Mark]) -> None:
        """Judge a unit at its end, or have it wait for the records in flight."""
        places: list[RecordRef] = gathered.items
        digests = [chunk.digests[row] for chunk, row in places]
        distinct = list(dict.fromkeys(digest for digest in digests if digest is not None))
        known = {digest: stored[digest] for digest in distinct if digest in stored}
        unit = CompleteUnit(places, distinct, known, sized=gathered.size is not None)
        self.complete_units[unit.end] = unit
        if self._count_window is not None:
            self._count_window.consider_all(unit.end, len(distinct))
        waiting = self.flight.waiting
        if not any(digest in waiting for digest in distinct) and self._settle_unit(unit):
            return
        for chunk, row in places:
            chunk.give_reason(row, "in-flight")
        for digest in distinct:
            self.flight.wait(digest, unit)
        self._stand_in_line(unit)

    def _stand_in_line(self, unit: CompleteUnit) -> None:
        """Have later records wait for a waiting unit, also where nothing else of an ID is known or in flight."""
        for digest in unit.digests:
            if self.flight.first_waiter(digest) is unit:
                self.lookup.put_in_line(digest, unit.end, unit.end_ms)

    def _settle_unit(self, unit: CompleteUnit) -> bool:
        """Give a unit its verdict and return True, or False while the verdict depends on records in flight."""
        end, end_ms = unit.end, unit.end_ms
        covered = self.reach.covers(end_ms)
        # Its verdict was given before, by somebody who may have known another past.
        again = self._folding or self.flight.was_reported(unit.places)
        kinds: dict[bytes, VerdictKind] = {}
        duplicates: dict[bytes, Mark] = {}
        for digest in unit.digests:
            certain, mark = self.lookup.last_sighting(digest, end, unit.stored.get(digest))
            if not certain:
                return False
            kinds[digest] = decide(
                end,
                end_ms,
                mark,
                keyed=True,
                low=end,
                high=end,
                done=(),
                window=self._window,
                covered=covered,
            )
            if kinds[digest] is VerdictKind.DUPLICATE and mark is not None:
                duplicates[digest] = mark
        if duplicates and self.doubt.all_or_nothing:
            self.doubt.note_rejected(unit, duplicates, covered=covered, low=self.flight.low, again=again)
            self._reject(unit, duplicates)
        elif again and self.doubt.is_uncertain(unit, covered=covered):
            self._pass_unit(unit)
        else:
            self._accept(unit, kinds, duplicates, covered=covered)
        if again and not self._folding:
            self.doubt.end()
        return True

    def _reject(self, unit: CompleteUnit, duplicates: dict[bytes, Mark]) -> None:
        """Call all records of a unit duplicates; those that are, by themselves, move their marks to its end."""
        for chunk, row in unit.places:
            mark = duplicates.get(chunk.digests[row] or b"")
            if mark is None:
                chunk.judge(row, DUPLICATE, WAITS_FOR_UNIT)
            else:
                chunk.judge(row, DUPLICATE, seen=(max(mark.offset, -1), mark.timestamp_ms))
        for digest in unit.digests:
            if digest in duplicates:
                self.lookup.move_mark(digest, unit.end, unit.end_ms)
            else:
                # Put in line while the unit waited; a rejected unit leaves no mark of this ID.
                self.lookup.leave_line(digest, unit.end)
        self._number_none(unit, unit.digests)
        self._end_rows(unit)
        self._remember(list(duplicates), unit)
        self._note_settled(unit.places)

    def _accept(
        self,
        unit: CompleteUnit,
        kinds: dict[bytes, VerdictKind],
        duplicates: dict[bytes, Mark],
        *,
        covered: bool,
    ) -> None:
        """Offer the records of a unit, but for those that are duplicates by themselves; all of them end together."""
        unit.accept([digest for digest in unit.digests if digest not in duplicates])
        for digest in unit.digests:
            self.lookup.begin_id(digest, unit.end, unit.end_ms)
        if self._count_window is not None:
            self._number_none(unit, duplicates)
            self._count_window.offer_all(unit.accepted, unit.end)
        # An ID alone was handled either way; with several IDs, a fold might reject the unit.
        if not covered and len(unit.accepted) > 1 and not self._folding:
            self.doubt.note_inexact_below(unit.end + 1)
        firsts: dict[bytes, RecordRef] = {}
        for place in unit.places:
            chunk, row = place
            notes_of(chunk).accept(row, unit)
            bears = chunk.digests[row]
            # Of a record that is not offered the application has nothing to end.
            chunk.end(row)
            if bears in duplicates:
                mark = duplicates[bears]
                chunk.judge(row, DUPLICATE, seen=(max(mark.offset, -1), mark.timestamp_ms))
            elif bears in firsts and self.keys.unit.repeats == "drop":
                first = firsts[bears]
                chunk.judge(row, DUPLICATE, seen=(first.offset, int(first.chunk.timestamps[first.row])))
            else:
                self._offer_member(unit, place, kinds, covered=covered)
            if bears is not None:
                firsts.setdefault(bears, place)
        self._note_settled(unit.places)
        if unit.left:
            return
        ended = self._finish_unit(unit)
        if self._settling:
            # The loop that judged it judges its waiters: a queue of such units may be longer than a stack.
            self.lookup.end_ids(ended)
        else:
            self._promoted += self._conclude(unit.places[-1].chunk, ended)

    def _offer_member(
        self, unit: CompleteUnit, place: RecordRef, kinds: dict[bytes, VerdictKind], *, covered: bool
    ) -> None:
        chunk, row = place
        digest = chunk.digests[row]
        if not unit.digests:
            chunk.judge(row, UNKEYED, "absent")
            if self._discards_unkeyed:
                chunk.withhold(row)
                return
        else:
            # One record with an ID is enough for the unit.
            unit_kind = FRESH if covered else UNVERIFIED
            kind = unit_kind if digest is None else KINDS.index(kinds[digest])
            chunk.judge(row, kind, self.reach.doubt(unit.end_ms) if kind == UNVERIFIED else "")
        self._offer(chunk, row)
        unit.offer()

    def _offer(self, chunk: Chunk, row: int) -> None:
        """Offer a record, with its chunk where that is being admitted."""
        if chunk is self._admitting:
            chunk.offer_with_chunk(row)
        else:
            chunk.offer_individually(row)

    def _deliver_each(self, places: Sequence[RecordRef], reason: str) -> None:
        """Offer records one by one, unverified: their unit cannot be judged. They leave no mark.

        Else a unit that came again whole would be rejected for its earlier records, and those that had not come
        would be lost.
        """
        for chunk, row in places:
            notes_of(chunk).leave_unit(row)
            chunk.judge(row, UNVERIFIED, reason)
            self._offer(chunk, row)
            if self._folding:
                self.doubt.note([chunk.digests[row]], int(chunk.timestamps[row]))
        if not self._folding:
            self.doubt.note_inexact_below(places[-1].offset + 1)
        self._note_settled(places)

    def _note_settled(self, places: Sequence[RecordRef]) -> None:
        """Note verdicts of records that came before the chunk that comes now."""
        for place in places:
            if place.chunk is not self._admitting:
                self.flight.settle([place])
                if place.chunk.states[place.row] == SINGLE:
                    self._promoted.append(place)

    def _finish_unit(self, unit: CompleteUnit) -> list[bytes]:
        """Complete all records of a unit at once; return the IDs that nothing of it has in flight any more."""
        self._remember(unit.marked, unit)
        self._end_rows(unit)
        return unit.digests

    def _end_rows(self, unit: CompleteUnit) -> None:
        """Call all records of a unit completed, at once."""
        for chunk, row in unit.places:
            chunk.finish(row)
            self.flight.note_dirty(chunk)
        # Before the watermark moves, which may not stop inside the unit.
        self.over.add(unit.first, unit.end)
        del self.complete_units[unit.end]

    def _number_none(self, unit: CompleteUnit, digests: Iterable[bytes]) -> None:
        """Let IDs of a unit take no number; marks that the store has bear theirs on."""
        count_window = self._count_window
        if count_window is None:
            return
        for digest in digests:
            count_window.forget(unit.end)
            if digest in unit.stored:
                count_window.know(digest, unit.stored[digest].number)

    def _remember(self, digests: list[bytes], unit: CompleteUnit) -> None:
        """Note which IDs a unit that is over leaves a mark of."""
        if digests:
            heappush(self._remembered, Remembered(unit.end, unit.end_ms, digests))

    # --- units that do not become whole ----------------------------------------------------------------------

    @property
    def most_behind(self) -> int:
        """So many records may come behind the first one of a unit that is open."""
        return MOST_OPEN + self.keys.unit.records

    def _fail_overflowing(self) -> None:
        """Let units fail behind whose first record too much has come.

        While there is so much to read, their time may not count.
        """
        while name := self.assembler.overflowing(self.most_behind, self.keys.unit.megabytes * _MEGABYTE):
            self._overflowed.append((name, self.assembler.open[name].offsets[0]))
            self.fail_unit(name, UNFINISHED, self._now_ms)

    def take_overflowed(self) -> list[tuple[bytes, int]]:
        """Return the units that failed so, each with the offset of its first record, and forget them."""
        overflowed, self._overflowed = self._overflowed, []
        return overflowed

    def fail_unit(self, name: bytes, reason: str, now_ms: int) -> None:
        """Deliver the records of an open unit one by one, and later ones of it likewise. They are settled."""
        self._now_ms = now_ms
        self._deliver_each(self.assembler.fail(name, reason, now_ms).items, reason)
        self._due += self._promoted
        self._promoted = []

    def waits_below(self, end: int) -> bool:
        """Whether a record below ``end`` waits: for its unit, for others of it, or for one of its ID."""
        for chunk in self.flight.chunks:
            below = bisect_left(chunk.offsets, end)
            if any(state in (HELD, ENDED) for state in chunk.states[:below]):
                return True
            if below < len(chunk.offsets):
                break
        return False

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """See `Memory`. A record of a unit is over when its unit is."""
        units = units_of(chunk)
        if not units:
            return self._conclude(chunk, self.lookup.end(chunk, rows))
        ended: list[bytes | None] = []
        for row in range(len(chunk.states)) if rows is None else rows:
            # The end of a chunk ends no record that was offered by itself, which may still wait in a queue.
            if chunk.states[row] != OFFERED and (rows is None or chunk.states[row] != SINGLE):
                continue
            unit = units.get(row)
            if unit is None:
                chunk.finish(row)
                ended.append(chunk.digests[row])
            else:
                ended += self._end_member(unit, chunk, row)
        return self._conclude(chunk, ended)

    def _end_member(self, unit: CompleteUnit, chunk: Chunk, row: int) -> list[bytes]:
        chunk.end(row)
        return self._finish_unit(unit) if unit.end_one() else []

    def together(self, place: RecordRef) -> list[RecordRef]:
        """Return the records of the unit of a record, or the record itself."""
        unit = units_of(place.chunk).get(place.row)
        return [place] if unit is None else unit.places

    def _conclude(self, chunk: Chunk, ended: Iterable[bytes | None]) -> list[RecordRef]:
        """Judge the records that waited for IDs which have ended; return the records to offer next."""
        known = list(ended)
        self.lookup.end_ids(known)
        self.flight.advance(chunk)
        self._settling = True
        try:
            if self.flight.waiting:
                self._settle({*known, *self.lookup.take_undecided()})
        finally:
            self._settling = False
        offered, self._promoted = self._promoted, []
        self.flight.sort_settled()
        return sorted(offered, key=lambda place: place.offset)

    def _settle(self, ready: set[Any]) -> None:
        while ready:
            freed: set[bytes] = set()
            progressed = False
            for digest in ready:
                while (waiter := self.flight.first_waiter(digest)) and (
                    over := self._settle_first(digest, waiter)
                ):
                    progressed = True
                    freed |= over
            if progressed:
                self.flight.advance()
            ready = {*self.lookup.take_undecided(), *freed} if progressed else set()

    def _settle_first(self, digest: bytes, waiting: Any) -> set[bytes]:
        """Judge the first waiter for an ID.

        Return the IDs that have another first waiter now, none where it must wait on.
        """
        if isinstance(waiting, CompleteUnit):
            if self._is_first(waiting) and self._settle_out(waiting):
                return set(waiting.digests)
            # First in some of its queues now: later records with these IDs must meet the unit there.
            self._stand_in_line(waiting)
            return set()
        chunk, row, stored = waiting
        if not self.lookup.settle_one(chunk, row, stored):
            return set()
        self.flight.drop_first_waiter(digest)
        place = RecordRef(chunk, row)
        self.flight.settle([place])
        if chunk.states[row] == SINGLE:
            self._promoted.append(place)
        else:
            self.flight.note_dirty(chunk)
        return {digest}

    def _is_first(self, unit: CompleteUnit) -> bool:
        return all(self.flight.first_waiter(digest) is unit for digest in unit.digests)

    def _settle_out(self, unit: CompleteUnit) -> bool:
        """Judge a unit that waited; it leaves its queues first, so that nothing that it ends waits for it."""
        sighting = self.lookup.last_sighting
        # All IDs first: a unit that has left a queue could not go back to its place.
        if not all(sighting(each, unit.end, unit.stored.get(each))[0] for each in unit.digests):
            return False
        for digest in unit.digests:
            self.flight.drop_first_waiter(digest)
        return self._settle_unit(unit)

    # --- the watermark -------------------------------------------------------------------------------------

    def _outside_units(self, high: int) -> int:
        """Return the highest offset up to ``high`` where the watermark may stand.

        It may not stand between two records of a unit.
        """
        return self.over.outside(high)

    def _pass(self, chunks: list[Chunk], high: int) -> None:
        del chunks
        if self._count_window is not None:
            self._number(self._count_window)
            self._count_window.pass_below(high)
        self.doubt.pass_below(high)

    def _number(self, count_window: CountWindow) -> None:
        """Number the records accepted before the first that is not completed, in the order of ends."""
        # Numbers follow the order of ends: none may be given behind a unit that is still in flight.
        front = min((unit.end for unit in self.complete_units.values()), default=self.flight.position)
        # Records before it were completed, and have their numbers.
        chunks = self.flight.chunks_from(self._numbered)
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
                # Records of units count at the unit's end, which `front` knows, or which has not come.
                if chunk.states[row] != DONE and row not in gathered
            )
            front = min(front, next((chunk.offsets[row] for row in rows), front))
        for chunk in chunks:
            units = units_of(chunk)
            for row in range(bisect_left(chunk.offsets, self._numbered), bisect_left(chunk.offsets, front)):
                unit = units.get(row)
                offset = chunk.offsets[row]
                if unit is not None and unit.end == offset:
                    count_window.number_all(unit.accepted, offset)
                elif row not in chunk.unmarked:
                    count_window.number_all([digest_of(chunk, row)], offset)
        self._numbered = max(self._numbered, front)

    # --- marks to keep -------------------------------------------------------------------------------------

    def marks(self) -> Written | None:
        """See `Memory`; the marks of a unit are written in the step that says that its records are completed."""
        written = self.lookup.marks()
        ready: list[Remembered] = []
        # With numbers only below the watermark: above, a crash loses the numbers, which are then given again.
        while self._remembered and (self._count_window is None or self._remembered[0].end < self.flight.high):
            ready.append(heappop(self._remembered))
        if not ready:
            return written
        marks = self._marks_of(ready)
        self.lookup.note_journaled(marks)
        if written is None:
            return Written(marks, [])
        return Written(join_marks([written.marks, marks]), written.done)

    def _marks_of(self, remembered: list[Remembered]) -> Marks:
        rows = [(digest, each.end, each.end_ms) for each in remembered for digest in each.digests]
        digests = [digest for digest, _, _ in rows]
        return Marks(
            b"".join(digests),
            np.asarray([end for _, end, _ in rows], np.int64),
            np.asarray([end_ms for _, _, end_ms in rows], np.int64),
            self.lookup.numbers_of(digests),
        )

    def take_recent(self, clock_ms: int, find: Find) -> Taken:
        """See `Memory`. The marks by which waiting units are judged stay, because the store was asked before."""
        waited_on = self.lookup.waited_marks()
        taken = self.lookup.take_recent(clock_ms, find)
        self.lookup.keep_marks(waited_on)
        return taken

    def put_back(self, marks: Marks) -> None:
        """See `Memory`."""
        self.lookup.put_back(marks)

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """See `Memory`. Records without an ID or a unit have None.

        The watermark stays before a unit that is open: it is whole in a later piece, or a call without records
        closes it.

        Records are judged as they were, by the marks. But where its past is not known, the log does not tell whether
        a unit with several IDs was rejected: it leaves no mark then, and coverage begins behind it.
        """
        del find
        self._folding, self._now_ms = True, now_ms
        try:
            if chunk.offsets:
                live(chunk.offsets, chunk.timestamps, chunk.digests)
                while self._due:
                    place = self._due.pop()
                    self._due += self.complete(place.chunk, [place.row])
                self._close_units(chunk.offsets[-1] - MOST_OPEN)
            else:
                self._close_units(max(self.flight.position, end))
        finally:
            self._folding = False
        return None

    def folded(self, chunk: Chunk) -> Marks:
        """See `Memory`."""
        del chunk
        written = self.marks()
        self.flight.take_settled()
        self._due, self._promoted = [], []
        return NO_MARKS if written is None else written.marks

    def _pass_unit(self, unit: CompleteUnit) -> None:
        """Pass a unit that was completed elsewhere, and of which nobody here knows whether it was accepted."""
        for chunk, row in unit.places:
            chunk.judge(row, REDELIVERED)
        for digest in unit.digests:
            self.lookup.leave_line(digest, unit.end)
        self._number_none(unit, unit.digests)
        self.doubt.note(unit.digests, unit.end_ms)
        self._end_rows(unit)
        self._note_settled(unit.places)

    def _close_units(self, begun_below: int) -> None:
        """Pass units that a fold has open: whether they were accepted is not known.

        Later records of them are not waited for.
        """
        opened = self.assembler.open
        for name in [name for name, unit in opened.items() if unit.offsets[0] < begun_below]:
            self._pass_gathered(self.assembler.fail(name, UNFINISHED, self._now_ms))

    def _pass_gathered(self, unit: OpenUnit) -> None:
        places: list[RecordRef] = unit.items
        for chunk, row in places:
            if chunk.states[row] != DONE:
                chunk.finish(row)
            self.doubt.note([chunk.digests[row]], int(chunk.timestamps[row]))


def open_units(
    window: Window, keys: UnitKeys, progress: Progress, recent: Marks = NO_MARKS
) -> PartitionState:
    """Return the state of a partition whose records may belong to units.

    ``progress`` is its progress, ``recent`` the marks beside it.
    """
    return PartitionState(UnitMemory(window, keys, progress, recent))
