"""One partition's decisions: what is in flight, what is completed, and what every record is told.

A lane is fed in offset order and answers in columns. It knows no Kafka, no RocksDB and no clock: older marks come from
``find``, a function of digests, and completed work leaves it as a `Step` that the key store writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from dedup_sdk.lane.chunk import APART, OFFERED, Chunk, Place, digest_of
from dedup_sdk.lane.judging import Find, Judging
from dedup_sdk.lane.saving import Saving, Step
from dedup_sdk.marks import NO_MARKS, Int64s


class Lane(Judging, Saving):
    """One partition for one group: see `LaneState` for what it holds."""

    # --- how records end -----------------------------------------------------------------------------------

    def complete_chunk(self, chunk: Chunk) -> list[Place]:
        """Complete every record that was offered with its chunk; return what is to be delivered next."""
        if not chunk.open:
            return []
        chunk.finish_offered()
        waiting = [*self.parked, *self.recent.behind, *self.recent.beneath]
        return self._completed(chunk, waiting if len(waiting) < len(chunk.offsets) else chunk.digests)

    def complete(self, chunk: Chunk, indexes: Iterable[int]) -> list[Place]:
        """Complete some records of a chunk; return what is to be delivered next. What is parked stays so."""
        ended: list[int] = []
        for index in indexes:
            # Asked of each when its turn comes: one that is named twice ends once.
            if chunk.states[index] in (OFFERED, APART):
                chunk.finish(index)
                ended.append(index)
        return self._completed(chunk, [chunk.digests[index] for index in ended])

    def _completed(self, chunk: Chunk, ended: Collection[bytes | None]) -> list[Place]:
        """Draw the conclusions: what is written, where the watermark is, and who no longer waits for these IDs."""
        self._note_dirty(chunk)
        digests = [digest for digest in ended if digest is not None]
        self._land_ids(digests)
        self._advance()
        return self._settle(digests)

    def _land_ids(self, digests: Iterable[bytes]) -> None:
        """Make marks of IDs that nothing has in flight any more."""
        for digest in digests if self.recent.behind or self.recent.beneath else ():
            if digest in self.recent.beneath:
                self.recent.land_beneath(digest, self._is_open)
            offset = self.recent.offsets.get(digest)
            if offset is not None and not self._is_open(offset):
                self.recent.land(digest, offset)

    def _settle(self, ended: Iterable[bytes]) -> list[Place]:
        """Judge the parked records whose turn has come; return those to deliver, ascending by offset.

        That is those with the ID of a record that is over, and those that wait for numbers: any end may bring these.
        """
        offered: list[Place] = []
        ready = {*ended, *self.undecided} if self.parked else set[bytes]()
        while ready:
            progressed = False
            self.undecided -= ready
            for digest in ready & self.parked.keys():
                queue = self.parked[digest]
                while queue and self._settle_one(*queue[0]):
                    chunk, index, _ = queue.popleft()
                    progressed = True
                    self.settled.append(Place(chunk, index))
                    if chunk.states[index] == APART:
                        offered.append(Place(chunk, index))
                    else:
                        self._note_dirty(chunk)
                if not queue:
                    del self.parked[digest]
            if progressed:
                self._advance()
            ready = set(self.undecided) if progressed else set[bytes]()
        self.settled.sort(key=lambda place: place.offset)
        return sorted(offered, key=lambda place: place.offset)

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return what records with these digests have looked up."""
        return () if self.window.is_off else digests

    # --- what others completed -----------------------------------------------------------------------------

    def fold(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], find: Find, end: int
    ) -> Step:
        """Take over records ``[high, end)`` that the group completed elsewhere; return the step to write.

        Only while nothing is in flight. ``offsets`` ascending; records without an ID have None; holes are not passed.
        """
        chunk = Chunk(offsets, timestamps, digests)
        if self.ring is not None:
            self._fold_ring(chunk, find)
            chunk.unmarked.update(index for index, digest in enumerate(digests) if digest is None)
        elif None in digests:
            keyed = [index for index, digest in enumerate(digests) if digest is not None]
            chunk.unmarked.update(index for index, digest in enumerate(digests) if digest is None)
            self.recent.fold(
                [digest_of(chunk, index) for index in keyed],
                [offsets[index] for index in keyed],
                timestamps[keyed],
            )
        else:
            all_keyed: list[Any] = digests
            chunk.joined = b"".join(all_keyed)
            self.recent.fold(all_keyed, offsets, timestamps)
        chunk.finish_offered()
        if offsets:
            self.newest_ms = max(self.newest_ms, int(timestamps.max()))
            self._last_passed = offsets[-1], int(timestamps[-1]), digests[-1]
        # Nobody says in which leader epoch the last of these was written.
        self.epoch = None
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
