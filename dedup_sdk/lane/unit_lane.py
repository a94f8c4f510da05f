"""One partition's decisions where records may belong to units: see `dedup_sdk.lane.lane` for what a lane is, `dedup_sdk.units` for units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from dedup_sdk.lane.chunk import APART, DONE, OFFERED, Chunk, Place
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.unit_chunk import HELD, Whole, units_of
from dedup_sdk.lane.unit_judging import UnitJudging
from dedup_sdk.marks import Int64s
from dedup_sdk.record import value_bytes
from dedup_sdk.units.gathering import UNFINISHED, Gathered

MOST_OPEN: Final = 100_000
"""So many records of others may come of its partition while a unit is open, so many offsets in a fold: all that comes since is in memory for it.

Those that it may have itself (`Unit.records`) come on top, but not in a fold, which then does not know what became of it.
"""
_MEGABYTE: Final = 2**20


class UnitLane(UnitJudging):
    """One partition for one group, with units: see `UnitState` for what it holds. ``is_live``: records came that are not folded."""

    is_live = False

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
        """As `UnitJudging.admit`; what a fold before could not tell is not covered from then on."""
        if not self.folding:
            if not self.is_live:
                self._go_live()
            self._fail_crowded()
        chunk = super().admit(
            offsets, timestamps, digests, missing, find, items=items, discard_unkeyed=discard_unkeyed
        )
        if self.units.open and not self.folding:
            self.units.tell_came(len(offsets), value_bytes(items))
        return chunk

    def _go_live(self) -> None:
        self.is_live = True
        self.units.wait_anew()
        if self._maybe:
            self.forgot_before(max(self._maybe.values()) + 1)
            self._maybe = {}

    # --- how records end -----------------------------------------------------------------------------------

    def complete_chunk(self, chunk: Chunk) -> list[Place]:
        """Complete every record that was offered with its chunk; return what is to be delivered next."""
        if not units_of(chunk):
            return super().complete_chunk(chunk)
        return self.complete(chunk, [row for row, state in enumerate(chunk.states) if state == OFFERED])

    def complete(self, chunk: Chunk, indexes: Iterable[int]) -> list[Place]:
        """Complete some records of a chunk; return what is to be delivered next. One of a unit is over when its unit is."""
        units = units_of(chunk)
        ended: list[bytes | None] = []
        for index in indexes:
            if chunk.states[index] not in (OFFERED, APART):
                continue
            whole = units.get(index)
            if whole is None:
                chunk.finish(index)
                ended.append(chunk.digests[index])
            else:
                ended += self._end_member(whole, chunk, index)
        return self._completed(chunk, ended)

    def _end_member(self, whole: Whole, chunk: Chunk, index: int) -> list[bytes]:
        chunk.states[index] = HELD
        whole.left -= 1
        return [] if whole.left else self.finish_unit(whole)

    # --- units that do not become whole ---------------------------------------------------------------------

    def _fail_crowded(self) -> None:
        """Let units fail behind whose first record too much has come; their time may not count, while there is so much to read."""
        unit = self.keys.unit
        while name := self.units.crowded(MOST_OPEN + unit.records, unit.megabytes * _MEGABYTE):
            self.crowded.append((name, self.units.open[name].offsets[0]))
            self.fail_unit(name, UNFINISHED)

    def fail_unit(self, name: bytes, reason: str) -> None:
        """Deliver what has come of an open unit, record by record, and whatever comes of it later; it goes to ``due``."""
        self._deliver_each(self.units.fail(name, reason, self.latest_ms).items, reason)
        self.due += self._promoted
        self._promoted = []

    # --- what others completed -----------------------------------------------------------------------------

    def fold(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], find: Find, end: int
    ) -> Step:
        """Take over records ``[high, end)`` that the group completed elsewhere; return the step to write.

        Only while nothing is in flight. ``offsets`` ascending; records without an ID or a unit have None. The watermark stays before a unit
        that is open: it is whole in a later piece, and else a call without records closes it.

        Judged as they were, by the marks: but of a unit that had several IDs the log does not tell whether it was rejected where what came
        before is not known. It leaves no mark then, and coverage begins behind it.
        """
        self.folding = True
        try:
            if offsets:
                self._fold_records(offsets, timestamps, digests, find)
                self._close_units(offsets[-1] - MOST_OPEN)
            self.position = max(self.position, end)
            if not offsets:
                self._close_units(self.position)
            self._advance()
        finally:
            self.folding = False
        if offsets:
            self.newest_ms = max(self.newest_ms, int(timestamps.max()))
        # Nobody says in which leader epoch the last of these was written.
        self.epoch = None
        self._restored = tuple(r for r in self._restored if r[1] > self.high)
        while self._restored and self._restored[0][0] <= self.high == self.position:
            self.high = self.position = max(self.high, self._restored[0][1])
            self._restored = self._restored[1:]
        step = self.take_step()
        self.settled, self.due, self._promoted = [], [], []
        return Step(self.progress, self._marks_of([]) if step is None else step.marks)

    def _fold_records(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], find: Find
    ) -> None:
        missing = {row: "absent" for row, key in enumerate(digests) if key is None}
        chunk = self.admit(offsets, timestamps, digests, missing, find)
        waiting = [*self.complete_chunk(chunk), *self.due]
        self.due = []
        while waiting:
            place = waiting.pop()
            waiting += self.complete(place.chunk, [place.row])

    def _close_units(self, begun_below: int) -> None:
        """Pass units that a fold has open: what became of them is not known, and what comes of them later is not waited for."""
        for name in [name for name, unit in self.units.open.items() if unit.offsets[0] < begun_below]:
            self._pass_gathered(self.units.fail(name, UNFINISHED, self.latest_ms))

    def _pass_gathered(self, unit: Gathered) -> None:
        places: list[Place] = unit.items
        for chunk, row in places:
            if chunk.states[row] != DONE:
                chunk.finish(row)
            digest = chunk.digests[row]
            self.note_maybe([] if digest is None else [digest], int(chunk.timestamps[row]))
