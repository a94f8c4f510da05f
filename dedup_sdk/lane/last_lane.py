"""One partition's decisions where IDs are compared with the last one: see `dedup_sdk.lane.lane` for what a lane is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from dedup_sdk.lane.chunk import APART, OFFERED, Chunk, Place
from dedup_sdk.lane.compared import Compared, late_rows
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_judging import LastJudging
from dedup_sdk.lane.last_saving import LastSaving, joined
from dedup_sdk.lane.last_state import Waiter
from dedup_sdk.lane.last_verdicts import COMPLETED_TWIN
from dedup_sdk.lane.run import Run
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.track import Track
from dedup_sdk.last.standing import Standing
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

    def _completed(self, chunk: Chunk, ended: Iterable[int]) -> list[Place]:
        self._note_dirty(chunk)
        offered: list[Place] = []
        if self.waiting:
            # Judged by what is below them, so before the watermark passes it by.
            awaited = self.waiting.keys() & ended
            over = deque(sorted(offset for offset in awaited if not self._is_open(offset)))
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
        seen = self._sighting(leader)
        for waiter in self.waiting.pop(leader):
            place, token = waiter
            chunk, row = on_tracks(place.chunk), place.row
            track = chunk.track_of(row)
            blocker: int | None = None
            if track is None:
                blocker = self._judge_unreadable(chunk, row)
            elif token is not None and track.flying.get(token) == leader:
                # Completed, and still the one whose ID this one bears: as found out when it began to wait.
                self._decide(chunk, row, COMPLETED_TWIN, seen)
            else:
                blocker = self._judge_again(chunk, row, track)
            if blocker is not None:
                self.waiting.setdefault(blocker, deque()).append(Waiter(place, None))
                continue
            settled.append(place)
            if chunk.states[row] != APART:
                self._note_dirty(chunk)
        self.settled += settled
        return settled

    def _judge_again(self, chunk: LastChunk, row: int, track: Track) -> int | None:
        """Judge a record that waited; return the offset of one that it has to wait for now."""
        candidate = self.id_at(chunk, row)
        offset, token = chunk.offsets[row], candidate.token
        ahead = self._leader(track, token, offset, int(chunk.timestamps[row]))
        if ahead is not None and self._is_open(ahead):
            return ahead
        if ahead is not None:
            self._decide(chunk, row, COMPLETED_TWIN, self._sighting(ahead))
            return None
        blocker = self._judge_by(self.before(track, offset), chunk, row, track, candidate)
        if blocker is None and chunk.states[row] == APART:
            track.fly(token, offset)
        return blocker

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return the lanes that records with these lane keys have looked up, and what a second opinion looks up of them."""
        keys = list(digests)
        lanes = {lane for lane in self.keys.lanes_of(keys) if lane not in self.tracks}
        return [*lanes, *self.keys.others_of(keys)]

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        keys: list[bytes | None],
        find: Find,
        *,
        newest_ms: int,
        window_ms: int,
    ) -> int | None:
        """Return the first of some offsets (ascending) that counts as completed and bears an ID that its lane never completed; None as a rule.

        That is known of what the lane remembers, not below its floor, and inside the window, measured from ``newest_ms``.
        """
        remembered_ms = max(newest_ms - window_ms, 0 if self.since_ms is None else self.since_ms)
        rows = [
            row
            for row, offset in enumerate(offsets)
            if keys[row] is not None and self.low <= offset < self.high and timestamps[row] >= remembered_ms
        ]
        lanes = [self.keys.lanes_of([keys[row]])[0] for row in rows]
        unknown = [lane for lane in dict.fromkeys(lanes) if lane is not None and lane not in self.tracks]
        stored = self._look_up(unknown, find)
        for row, digest in zip(rows, lanes, strict=True):
            if digest is None:
                continue
            track = self.tracks.get(digest)
            mark = stored.get(digest) if track is None else track.base(self.rule)
            [id_bytes] = self.keys.ids_of([keys[row]])
            candidate = self.candidate(id_bytes or b"")
            if self.rule.malformed(candidate) or (mark is not None and not mark.covered):
                continue
            if mark is None or mark.offset < offsets[row]:
                return offsets[row]
            if mark.seen.standing(candidate) in (Standing.NEWER, Standing.UNSEEN):
                return offsets[row]
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
        compared = Compared(self.rule.order, self.keys.ids_of(chunk.digests))
        self._find_tracks(chunk, find)
        self._take_over(chunk, compared)
        for each in {chunk.track, *chunk.tracks}:
            if each is not None:
                self._land(each)
        if self.second is not None:
            chunk.others = self.keys.others_of(digests)
            self.land_sightings(chunk, 0, len(offsets))
        if offsets:
            self.newest_ms = max(self.newest_ms, int(timestamps.max()))
            self._last_passed = offsets[-1], int(timestamps[-1]), digests[-1]
        # Nobody says in which leader epoch the last of these was written.
        self.epoch = None
        self.high = self.position = max(self.high, end)
        self._restored = tuple(r for r in self._restored if r[1] > self.high)
        changed, self._changed = self._changed, {}
        return Step(self.progress, joined(changed, self.sightings.take_step()))

    def _take_over(self, chunk: LastChunk, compared: Compared) -> None:
        """Fold completed records into what their lanes remember."""
        if chunk.track is None:
            for row, track in enumerate(chunk.tracks):
                if track is not None:
                    self._take_over_row(chunk, row, compared)
            return
        ahead, ranks = chunk.track.ahead, None
        if ahead is not None and chunk.offsets and ahead.offset < chunk.offsets[0] and not chunk.unmarked:
            is_alive = self._is_alive_throughout(ahead, chunk.timestamps)
            ranks = compared.ranks(ahead.seen.origin) if is_alive else None
        if ranks is None or ahead is None:
            for row in range(len(chunk.offsets)):
                self._take_over_row(chunk, row, compared)
        else:
            late, newest = late_rows(ranks, ahead.seen.last_rank)
            run = Run(chunk, chunk.track, ahead, compared.ids, ranks)
            run.leave_out(late)
            for row, above in zip(late, newest, strict=True):
                if not run.remembers(row, above):
                    run.take_to(row)
                    self._take_over_row(chunk, row, compared)
                    run.start = row + 1
            run.take_to(len(ranks))
            chunk.track.pending = 0

    def _take_over_row(self, chunk: LastChunk, row: int, compared: Compared) -> None:
        track, offset = chunk.track_of(row), chunk.offsets[row]
        if track is not None and (track.ahead is None or track.ahead.offset < offset):
            track.ahead = self._after(track.ahead, compared.candidate(row), chunk, row)
