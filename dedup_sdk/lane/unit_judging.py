"""What records of a lane with units are told: each where it lies, those of a unit at its end, all at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from dedup_sdk.decision import Mark, decide
from dedup_sdk.lane.chunk import (
    APART,
    DUPLICATE,
    FRESH,
    KINDS,
    OFFERED,
    PARKED,
    PARKED_KIND,
    UNKEYED,
    UNVERIFIED,
    Chunk,
    Place,
    digest_of,
)
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.unit_chunk import HELD, UnitChunk, Whole
from dedup_sdk.lane.unit_ending import UnitEnding
from dedup_sdk.marks import NONE_FOUND, Found, Int64s
from dedup_sdk.record import VerdictKind
from dedup_sdk.units.gathering import UNFINISHED, Gathered, Standing
from dedup_sdk.units.keys import Member

WAITS_FOR_UNIT = "unit"
"""The reason of a record that waits for its unit, and of a duplicate that is one only because another record of its unit is."""


class UnitJudging(UnitEnding):
    """The half of such a lane that judges. ``digests`` of records are their unit keys (`dedup_sdk.units.keys`)."""

    _admitting: Chunk | None = None
    _settling = False
    _discards_unkeyed = False

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: list[bytes | None],
        missing: dict[int, str],
        find: Find,
        *,
        items: Sequence[Any] = (),
        discard_unkeyed: bool = False,
    ) -> Chunk:
        """As `Judging.admit`. What a unit's end brings for records of earlier chunks goes to ``due``."""
        self._discards_unkeyed = discard_unkeyed
        members = self.keys.members_of(digests)
        if not members:
            return super().admit(
                offsets, timestamps, digests, missing, find, items=items, discard_unkeyed=discard_unkeyed
            )
        bare = list(digests)
        for row, member in members.items():
            bare[row] = member.digest
        chunk = UnitChunk(offsets, timestamps, bare, items)
        if self._restored:
            self._skip_restored(chunk)
        restored = set(chunk.unmarked)
        self._leave_unkeyed(chunk, missing, discard=discard_unkeyed)
        stored = self._look_up(chunk, members, restored, find)
        self._take_in(chunk)
        # All of them: a unit is remembered at its end, also where that bears no ID.
        self.recent.timeline.extend(chunk.column, timestamps)
        self._shorten_timeline()
        self._admitting = chunk
        try:
            self._judge_all(chunk, members, restored, stored)
        finally:
            self._admitting = None
        if chunk.open < len(offsets):
            self._note_dirty(chunk)
            self._advance()
        self._hand_over_with(chunk)
        return chunk

    def _look_up(
        self, chunk: UnitChunk, members: dict[int, Member], restored: set[int], find: Find
    ) -> dict[bytes, Mark]:
        """Ask the store for all that may be judged now: the units that are open and named here come to their end, perhaps."""
        wanted = {
            digest for row, digest in enumerate(chunk.digests) if digest is not None and row not in restored
        }
        for name in self.units.may_end(members.values()):
            wanted |= {
                digest_of(*each) for each in self.units.open[name].items if each.chunk.digests[each.row]
            }
        asked = list(wanted)
        found = find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        numbers = found.numbers or [0] * len(found.indexes)
        columns = zip(found.offsets, found.timestamps, numbers, strict=True)
        return {asked[index]: Mark(*column) for index, column in zip(found.indexes, columns, strict=True)}

    def _judge_all(
        self, chunk: UnitChunk, members: dict[int, Member], restored: set[int], stored: dict[bytes, Mark]
    ) -> None:
        singles: list[int] = []
        for row, offset in enumerate(chunk.offsets):
            member = members.get(row)
            if member is None or not member.name:
                if row not in chunk.unmarked:
                    singles.append(row)
                continue
            if row in restored:
                self._note_over(member, offset)
                continue
            chunk.unmarked.add(row)
            place = Place(chunk, row)
            standing, unit, reason = self.units.take(member, offset, place, self.latest_ms)
            chunk.gathered.add(row)
            chunk.states[row], chunk.kinds[row] = PARKED, PARKED_KIND
            chunk.reasons[row] = WAITS_FOR_UNIT
            if standing is Standing.WAITS:
                continue
            # What lies before an end is judged before it.
            self._judge_singles(chunk, singles, stored)
            singles = []
            if standing is Standing.WHOLE and unit is not None:
                self._judge_whole(unit, stored)
            elif unit is not None:
                self._deliver_each(unit.items, reason)
            else:
                self._deliver_each([place], reason)
        self._judge_singles(chunk, singles, stored)

    def _note_over(self, member: Member, offset: int) -> None:
        """Note a record of a unit that was completed before."""
        if member.name in self.units.open:
            # While others of it are not: then it had failed.
            unit = self.units.fail(member.name, UNFINISHED, self.latest_ms)
            self._deliver_each(unit.items, UNFINISHED)
        extent = self.units.note_over(member, offset, self.latest_ms)
        if extent is not None:
            self.note_over(*extent)

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
        self._judge(chunk, rows, digests, found)

    def _hand_over_with(self, chunk: Chunk) -> None:
        """Let what became due of the chunk that comes now be handed out with it."""
        due, self.due = [*self.due, *self._promoted], []
        self._promoted = []
        for place in due:
            if place.chunk is not chunk:
                self.due.append(place)
            elif chunk.states[place.row] == APART:
                chunk.states[place.row] = OFFERED
        self.settled = [place for place in self.settled if place.chunk is not chunk]

    # --- units ---------------------------------------------------------------------------------------------

    def _judge_whole(self, unit: Gathered, stored: dict[bytes, Mark]) -> None:
        """Judge a unit at its end, or have it wait for what is in flight."""
        places: list[Place] = unit.items
        digests = [chunk.digests[row] for chunk, row in places]
        distinct = list(dict.fromkeys(digest for digest in digests if digest is not None))
        known = {digest: stored[digest] for digest in distinct if digest in stored}
        whole = Whole(places, distinct, known)
        whole.sized = unit.size is not None
        self.wholes[whole.end] = whole
        if self.unit_ring is not None:
            self.unit_ring.consider_unit(whole.end, len(distinct))
        if not any(digest in self.parked for digest in distinct) and self._settle_unit(whole):
            return
        for chunk, row in places:
            chunk.reasons[row] = "in-flight"
        for digest in distinct:
            self.parked.setdefault(digest, deque()).append(whole)
        self._stand_in_line(whole)

    def _stand_in_line(self, whole: Whole) -> None:
        """Have later records wait for a unit that waits itself, also where nothing else of an ID is known, or in flight any more."""
        for digest in whole.digests:
            if self.parked[digest][0] is whole:
                self.recent.offsets.setdefault(digest, whole.end)

    def _settle_unit(self, whole: Whole) -> bool:
        """Give a unit its verdict and return True, or False while that hangs on what is in flight."""
        end, end_ms = whole.end, whole.end_ms
        covered = self.covers(end_ms)
        kinds: dict[bytes, VerdictKind] = {}
        duplicates: dict[bytes, Mark] = {}
        for digest in whole.digests:
            certain, mark = self._last_sighting(digest, end, whole.stored.get(digest))
            if not certain:
                return False
            kinds[digest] = decide(
                end, end_ms, mark, keyed=True, low=end, high=end, done=(), window=self.window, covered=covered
            )
            if kinds[digest] is VerdictKind.DUPLICATE and mark is not None:
                duplicates[digest] = mark
        if duplicates and self.all_or_nothing:
            if self.folding:
                self.note_rejected(whole, duplicates.keys(), covered=covered)
            self._reject(whole, duplicates)
        elif self.folding and self.is_uncertain(whole, covered=covered):
            self.pass_unit(whole)
        else:
            self._accept(whole, kinds, duplicates, covered=covered)
        return True

    def _reject(self, whole: Whole, duplicates: dict[bytes, Mark]) -> None:
        """Call all records of a unit duplicates; those that are, by themselves, move their marks to its end."""
        for chunk, row in whole.places:
            mark = duplicates.get(chunk.digests[row] or b"")
            chunk.kinds[row] = DUPLICATE
            chunk.reasons.pop(row, None)
            if mark is None:
                chunk.reasons[row] = WAITS_FOR_UNIT
            else:
                chunk.seen[row] = (max(mark.offset, -1), mark.timestamp_ms)
        for digest in whole.digests:
            if digest in duplicates:
                self.recent.offsets[digest] = whole.end
            else:
                self.recent.drop(digest, whole.end)
        self.number_none(whole, whole.digests)
        self.end_rows(whole)
        self._land(list(duplicates), whole)
        self._note_settled(whole.places)

    def _accept(
        self,
        whole: Whole,
        kinds: dict[bytes, VerdictKind],
        duplicates: dict[bytes, Mark],
        *,
        covered: bool,
    ) -> None:
        """Offer the records of a unit, but for those that are duplicates by themselves; all of them end together."""
        whole.marked = whole.digests
        whole.accepted = [digest for digest in whole.digests if digest not in duplicates]
        for digest in whole.digests:
            self.recent.fly(digest, whole.end)
        if self.unit_ring is not None:
            self.number_none(whole, duplicates)
            self.unit_ring.offer_unit(whole.accepted, whole.end)
        if not covered and len(whole.accepted) > 1 and not self.folding:
            self.tear(whole.end + 1)
        firsts: dict[bytes, Place] = {}
        for place in whole.places:
            chunk, row = place
            as_unit_chunk(chunk).units[row] = whole
            bears = chunk.digests[row]
            chunk.states[row] = HELD
            chunk.reasons.pop(row, None)
            if bears in duplicates:
                chunk.kinds[row] = DUPLICATE
                chunk.seen[row] = (max(duplicates[bears].offset, -1), duplicates[bears].timestamp_ms)
            elif bears in firsts and self.keys.unit.repeats == "drop":
                first = firsts[bears]
                chunk.kinds[row] = DUPLICATE
                chunk.seen[row] = (first.offset, int(first.chunk.timestamps[first.row]))
            else:
                self._offer_member(whole, place, kinds, covered=covered)
            if bears is not None:
                firsts.setdefault(bears, place)
        self._note_settled(whole.places)
        if whole.left:
            return
        if self._settling:
            # What waits for it is judged by the loop that judged this: a queue of such units may be longer than a stack.
            self._land_ids(self.finish_unit(whole))
        else:
            self._promoted += self._completed(whole.places[-1].chunk, self.finish_unit(whole))

    def _offer_member(
        self, whole: Whole, place: Place, kinds: dict[bytes, VerdictKind], *, covered: bool
    ) -> None:
        chunk, row = place
        digest = chunk.digests[row]
        if not whole.digests:
            chunk.kinds[row], chunk.reasons[row] = UNKEYED, "absent"
            if self._discards_unkeyed:
                chunk.withheld.add(row)
                return
        else:
            # One record with an ID is enough for the unit.
            unit_kind = FRESH if covered else UNVERIFIED
            chunk.kinds[row] = unit_kind if digest is None else KINDS.index(kinds[digest])
            if chunk.kinds[row] == UNVERIFIED:
                chunk.reasons[row] = "uncovered"
        chunk.states[row] = OFFERED if chunk is self._admitting else APART
        whole.left += 1

    def _deliver_each(self, places: Sequence[Place], reason: str) -> None:
        """Offer records one by one, unverified: their unit cannot be judged. They leave no mark.

        Else a unit that came again whole would be rejected for what came of it before, and what did not come then would be lost.
        """
        for chunk, row in places:
            as_unit_chunk(chunk).gathered.discard(row)
            chunk.kinds[row], chunk.reasons[row] = UNVERIFIED, reason
            chunk.states[row] = OFFERED if chunk is self._admitting else APART
            digest = chunk.digests[row]
            if self.folding and digest is not None:
                self.note_maybe([digest], int(chunk.timestamps[row]))
        if not self.folding:
            self.tear(places[-1].offset + 1)
        self._note_settled(places)

    def _note_settled(self, places: Sequence[Place]) -> None:
        """Note verdicts of records that came before what comes now."""
        for place in places:
            if place.chunk is not self._admitting:
                self.settled.append(place)
                if place.chunk.states[place.row] == APART:
                    self._promoted.append(place)

    # --- what waits ----------------------------------------------------------------------------------------

    def _settle(self, ended: Iterable[bytes]) -> list[Place]:
        """As `Lane._settle`: records and units wait in one queue for each ID, in the order in which they are judged."""
        self._settling = True
        try:
            self._settle_all({*ended, *self.undecided} if self.parked else set())
        finally:
            self._settling = False
        offered, self._promoted = self._promoted, []
        self.settled.sort(key=lambda place: place.offset)
        return sorted(offered, key=lambda place: place.offset)

    def _settle_all(self, ready: set[bytes]) -> None:
        while ready:
            freed: set[bytes] = set()
            progressed = False
            self.undecided -= ready
            for digest in ready:
                while (queue := self.parked.get(digest)) and (over := self._settle_first(digest, queue[0])):
                    progressed = True
                    freed |= over
            if progressed:
                self._advance()
            ready = {*self.undecided, *freed} if progressed else set[bytes]()

    def _settle_first(self, digest: bytes, waiting: Any) -> set[bytes]:
        """Judge what waits first for an ID; return the IDs for which something else is first now, none where it has to wait on."""
        if isinstance(waiting, Whole):
            if self._is_first(waiting) and self._settle_out(waiting):
                return set(waiting.digests)
            self._stand_in_line(waiting)
            return set()
        chunk, index, stored = waiting
        if not self._settle_one(chunk, index, stored):
            return set()
        self.parked[digest].popleft()
        self._drop_empty([digest])
        place = Place(chunk, index)
        self.settled.append(place)
        if chunk.states[index] == APART:
            self._promoted.append(place)
        else:
            self._note_dirty(chunk)
        return {digest}

    def _is_first(self, whole: Whole) -> bool:
        return all(self.parked[digest][0] is whole for digest in whole.digests)

    def _settle_out(self, whole: Whole) -> bool:
        """Judge a unit that waited; it leaves its queues first, so that nothing that it ends waits for it."""
        if not all(self._last_sighting(each, whole.end, whole.stored.get(each))[0] for each in whole.digests):
            return False
        for digest in whole.digests:
            self.parked[digest].popleft()
        self._drop_empty(whole.digests)
        return self._settle_unit(whole)

    def _drop_empty(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            if not self.parked.get(digest, True):
                del self.parked[digest]

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return what records with these unit keys have looked up, and what units do that they may make whole."""
        keys = list(digests)
        asked = [self.keys.name_of(key) for key in keys]
        for name in self.units.may_end(self.keys.members_of(keys).values()):
            asked += [chunk.digests[row] for chunk, row in self.units.open[name].items]
        return asked


def as_unit_chunk(chunk: Chunk) -> UnitChunk:
    """Return a chunk that has members of units as what it is."""
    if not isinstance(chunk, UnitChunk):
        raise TypeError(f"records from {chunk.offsets[0]} belong to no unit")
    return chunk
