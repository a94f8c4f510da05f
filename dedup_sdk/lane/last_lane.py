"""One partition's decisions where IDs are compared with the last one: see `dedup_sdk.lane.lane` for what a lane is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from dedup_sdk.lane.chunk import APART, OFFERED, Chunk, Place
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_judging import LastJudging, stretches_of
from dedup_sdk.lane.last_saving import LastSaving
from dedup_sdk.lane.last_verdicts import COMPLETED_TWIN
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.track import Track
from dedup_sdk.last.candidate import Candidate
from dedup_sdk.marks import Int64s


class LastLane(LastJudging, LastSaving):
    """One partition for one group, its IDs compared within lanes: see `LastState` for what it holds."""

    # --- how records end -----------------------------------------------------------------------------------

    def complete_chunk(self, chunk: Chunk) -> list[Place]:
        """Complete every record that was offered with its chunk; return what is to be delivered next."""
        if not chunk.open:
            return []
        chunk.finish_offered()
        return self._completed(chunk, chunk.offsets)

    def complete(self, chunk: Chunk, indexes: Iterable[int]) -> list[Place]:
        """Complete some records of a chunk; return what is to be delivered next. What is parked stays so."""
        ended: list[int] = []
        for index in indexes:
            if chunk.states[index] in (OFFERED, APART):
                chunk.finish(index)
                ended.append(chunk.offsets[index])
        return self._completed(chunk, ended)

    def bury(self, place: Place) -> list[Place]:
        """End a record that its lane will not remember (it was dead-lettered); what waits for it is judged again."""
        chunk, row = on_tracks(place.chunk), place.row
        if chunk.states[row] not in (OFFERED, APART):
            return []
        chunk.finish(row)
        self.buried = max(self.buried or 0, place.offset + 1)
        chunk.given_up.add(row)
        other = chunk.others[row] if chunk.others else None
        if other is not None:
            self.sightings.give_up(other, place.offset)
        track = chunk.track_of(row)
        if track is not None:
            self._leave_track(chunk, row)
            track.pending -= 1
            token = self.id_at(chunk, row).token
            if track.flying.get(token) == place.offset:
                del track.flying[token]
            track.exact = False
            track.mixed = True
            if track.pending:
                self.outdated.add(track)
            else:
                self._land(track)
        return self._completed(chunk, [place.offset])

    def _completed(self, chunk: Chunk, ended: Iterable[int]) -> list[Place]:
        if chunk not in self._dirty:
            self._dirty.append(chunk)
        offered: list[Place] = []
        if self.waiting:
            # Judged by what is below them, so before the watermark passes it by.
            over = deque(
                sorted(offset for offset in ended if offset in self.waiting and not self._is_open(offset))
            )
            while over:
                for place in self._settle(over.popleft()):
                    if place.chunk.states[place.row] == APART:
                        offered.append(place)
                    elif place.offset in self.waiting:
                        over.append(place.offset)
        self._advance()
        self.settled.sort(key=lambda place: place.offset)
        return sorted(offered, key=lambda place: place.offset)

    def _settle(self, leader: int) -> list[Place]:
        """Judge what waited for a record that is over, and return that of it which waits for no other one."""
        settled: list[Place] = []
        queue = self.waiting.pop(leader)
        for place in queue:
            chunk, row = on_tracks(place.chunk), place.row
            track = chunk.track_of(row)
            blocker = (
                self._judge_unreadable(chunk, row) if track is None else self._judge_again(chunk, row, track)
            )
            if blocker is not None:
                self.waiting.setdefault(blocker, deque()).append(place)
                continue
            settled.append(place)
            if chunk.states[row] != APART and chunk not in self._dirty:
                self._dirty.append(chunk)
        self.settled += settled
        return settled

    def _judge_again(self, chunk: LastChunk, row: int, track: Track) -> int | None:
        """Judge a record that waited; return the offset of one that it has to wait for now."""
        offset, token = chunk.offsets[row], self.id_at(chunk, row).token
        ahead = self._leader(track, token, offset, int(chunk.timestamps[row]))
        if ahead is not None and self._is_open(ahead):
            return ahead
        if ahead is not None:
            self._decide(chunk, row, COMPLETED_TWIN, self._sighting(ahead))
            return None
        blocker = self._judge_by(self.before(track, offset), chunk, row, track)
        if blocker is None and chunk.states[row] == APART:
            track.flying[token] = offset
        return blocker

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return the lanes that records with these lane keys have looked up, and what a second opinion looks up of them."""
        keys = list(digests)
        lanes = {lane for lane in self.keys.lanes_of(keys) if lane not in self.tracks}
        return [*lanes, *self.keys.others_of(keys)]

    def own_mark(self, _place: Place) -> bytes | None:
        """Return None: what a lane remembers follows the watermark, so that no record in flight has left anything."""
        return None

    # --- what others completed -----------------------------------------------------------------------------

    def fold(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], find: Find, end: int
    ) -> Step:
        """Take over records ``[high, end)`` that the group completed elsewhere; return the step to write.

        Only while nothing is in flight. ``offsets`` ascending; records without an ID have None; holes are not passed.
        """
        chunk = LastChunk(offsets, timestamps, digests, latest_ms=self.latest_ms)
        chunk.unmarked.update(index for index, digest in enumerate(digests) if digest is None)
        self._find_tracks(chunk, find)
        self._take_over(chunk)
        if self.second is not None:
            chunk.others = self.keys.others_of(digests)
            self.land_sightings(chunk, 0, len(offsets))
        if offsets:
            self.newest_ms = max(self.newest_ms, int(timestamps.max()))
        # Nobody says in which leader epoch the last of these was written.
        self.epoch = None
        self.high = self.position = max(self.high, end)
        self._restored = tuple(r for r in self._restored if r[1] > self.high)
        changed, self._changed = self._changed, {}
        return Step(self.progress, self._joined(changed, self.sightings.take_step()))

    def _take_over(self, chunk: LastChunk) -> None:
        """Fold completed records into what their lanes remember."""
        ids: list[Any] = self.keys.ids_of(chunk.digests)
        places = self.rule.order.places(ids)
        track = chunk.track
        ahead = None if track is None or chunk.unmarked else track.ahead
        stretches: Iterable[tuple[int, int, bool]] = [(0, len(ids), False)]
        is_later = ahead is not None and bool(ids) and ahead.offset < chunk.offsets[0]
        if ahead is not None and is_later and self._is_alive_throughout(ahead, chunk.timestamps):
            stretches = stretches_of(places, ahead)
        for start, end, rising in stretches:
            if rising and ahead is not None:
                ahead.seen.take_run(
                    ids[start:end], [place.rank for place in places[start:end] if place is not None]
                )
                ahead.pass_by(chunk.offsets[end - 1], int(chunk.timestamps[start:end].max()))
                continue
            for row in range(start, end):
                self._take_over_row(chunk, row, Candidate(ids[row], places[row]))
        for each in {chunk.track, *chunk.tracks}:
            if each is not None:
                self._land(each)

    def _take_over_row(self, chunk: LastChunk, row: int, candidate: Candidate) -> None:
        track, offset = chunk.track_of(row), chunk.offsets[row]
        if track is not None and (track.ahead is None or track.ahead.offset < offset):
            track.ahead = self._after(track.ahead, candidate, chunk, row)
