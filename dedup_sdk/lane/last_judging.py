"""What a record is told whose ID is compared with the last ones of its lane."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, compress, repeat
from operator import le
from typing import Any, Final, cast

import numpy as np

from dedup_sdk.lane.chunk import (
    DONE,
    DUPLICATE,
    PARKED,
    PARKED_KIND,
    Place,
)
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_verdicts import COMPLETED_TWIN, LastVerdicts
from dedup_sdk.lane.track import Saved, Track
from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.keys import PARTITION_LANE
from dedup_sdk.last.rule import LaneMark
from dedup_sdk.last.standing import Standing
from dedup_sdk.marks import Int64s
from dedup_sdk.orders import Place as IdPlace

_WORTH_A_RUN: Final = 4
"""So many records are judged at once; fewer one by one."""


class LastJudging(LastVerdicts):
    """The half of such a lane that judges."""

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
    ) -> LastChunk:
        """Judge records at or above ``position``, ascending by offset; ``digests`` are their lane keys (`LaneKeys`).

        As `dedup_sdk.lane.judging.Judging.admit`; when ``find`` raises, nothing of the lane has changed.
        """
        chunk = LastChunk(offsets, timestamps, digests, items, latest_ms=self.latest_ms)
        if self._restored:
            self._skip_restored(chunk)
        self._leave_unkeyed(chunk, missing, discard=discard_unkeyed)
        self._find_tracks(chunk, find)
        self._note_others(chunk, find)
        # Asked before anything changes: an order of the user's may raise.
        ids: list[Any] = self.keys.ids_of(self._keys(chunk))
        places = self.rule.order.places(ids)
        if self.outdated:
            self.renew()
        self._take_in(chunk)
        self._judge_all(chunk, ids, places)
        if chunk.open < len(offsets):
            self._dirty.append(chunk)
            self._advance()
        return chunk

    # --- which lane ----------------------------------------------------------------------------------------

    def _find_tracks(self, chunk: LastChunk, find: Find) -> None:
        """Put every record on the track of its lane; those of lanes that are not in memory are looked up, all at once."""
        if self.keys.lane is None and not chunk.unmarked:
            lanes: list[bytes | None] = []
            wanted = {PARTITION_LANE}
        else:
            lanes = self.keys.lanes_of(self._keys(chunk))
            wanted = {lane for lane in lanes if lane is not None}
        self._load_tracks([lane for lane in wanted if lane not in self.tracks], find)
        if len(wanted) == 1:
            chunk.track = self.tracks[wanted.pop()]
        else:
            chunk.tracks = [None if lane is None else self.tracks[lane] for lane in lanes]

    def _load_tracks(self, lanes: list[bytes], find: Find) -> None:
        if not lanes:
            return
        found = find(b"".join(lanes), len(lanes))
        payloads = found.payloads or [b""] * len(found.indexes)
        marks: dict[bytes, LaneMark] = {}
        for index, offset, timestamp_ms, payload in zip(
            found.indexes, found.offsets, found.timestamps, payloads, strict=True
        ):
            if offset < self.position:
                # Else it says nothing of what comes before it.
                marks[lanes[index]] = self._restored_mark(Saved(payload, offset, timestamp_ms))
        for lane in lanes:
            self.tracks[lane] = Track(lane, marks.get(lane))

    # --- verdicts ------------------------------------------------------------------------------------------

    def _judge_all(self, chunk: LastChunk, ids: list[Any], places: list[IdPlace | None]) -> None:
        """Judge the records of a chunk, where it goes stretch by stretch: IDs that are each newer than the one before at once."""
        track = chunk.track
        if chunk.others:
            # One after the other: what one leaves behind is what the next is asked about.
            for row, offset in enumerate(chunk.offsets):
                self._judge_rows(chunk, ids, places, row, row + 1)
                self.sightings.take_off(chunk.others[row], offset)
            return
        if track is None or chunk.unmarked or not self._is_plain(track, chunk):
            self._judge_rows(chunk, ids, places, 0, len(ids))
            return
        for start, end, rising in stretches_of(places, track.ahead):
            if rising and end - start >= _WORTH_A_RUN and not track.mixed:
                self._judge_run(chunk, track, ids[start:end], places[start:end], start)
            else:
                self._judge_rows(chunk, ids, places, start, end)

    def _is_plain(self, track: Track, chunk: LastChunk) -> bool:
        """Whether a lane is remembered and covered at all times of a chunk."""
        ahead = track.ahead
        return ahead is not None and ahead.covered and self._is_alive_throughout(ahead, chunk.timestamps)

    def _judge_run(
        self, chunk: LastChunk, track: Track, ids: list[bytes], places: list[Any], start: int
    ) -> None:
        """Judge records from row ``start`` on that are each newer than all before: they are fresh, as every record is at first."""
        track.take_off()
        ahead, last = track.ahead, start + len(ids) - 1
        if ahead is None:
            raise AssertionError("a lane without a last ID has no newer ones")
        ahead.seen.take_run(ids, [rank for _, rank in places])
        ahead.pass_by(chunk.offsets[last], int(chunk.timestamps[start : last + 1].max()))
        track.flying.update(zip(places, chunk.offsets[start : last + 1], strict=True))
        track.pending += len(ids)

    def _is_alive_throughout(self, mark: LaneMark, timestamps: Int64s) -> bool:
        """Whether the lane is remembered and covered at all these timestamps, each seen from the one before."""
        longest_ms = int(np.diff(timestamps, prepend=mark.timestamp_ms).max())
        return self.window.holds(longest_ms, 0) and self.covers(int(timestamps.min()))

    def _judge_rows(
        self, chunk: LastChunk, ids: list[Any], places: list[IdPlace | None], start: int, end: int
    ) -> None:
        """Judge one record after the other; nearly all are new, which is told at once."""
        timestamps = chunk.timestamps[start:end].tolist()
        window_ms = self.window.time_ms or 0
        covered = self.covers(min(timestamps))
        # What is given up yet may be what a lane is known by: then a second opinion would not have been asked.
        lenient = self.second is None
        tracks: Iterable[Track | None] = chunk.tracks[start:end] or repeat(chunk.track, end - start)
        candidates = map(_candidate, zip(ids[start:end], places[start:end], strict=True))
        rows = zip(tracks, candidates, chunk.offsets[start:end], timestamps, strict=True)
        for row, (track, candidate, offset, timestamp_ms) in enumerate(rows, start):
            if track is None or candidate.id_bytes is None:
                continue
            ahead, place = track.ahead, candidate.place
            if (
                covered
                and (lenient or track.covered)
                and ahead is not None
                and ahead.seen.known is None
                and place is not None
                and timestamp_ms - ahead.timestamp_ms <= window_ms
                and place not in track.flying
            ):
                track.take_off()
                standing = ahead.seen.take(candidate)
                if standing <= Standing.SEEN:
                    if standing is Standing.SEEN:
                        # Not in flight, so that one was completed.
                        self._repeat(chunk, row, ahead)
                    else:
                        track.flying[place] = offset
                    ahead.offset = offset
                    ahead.timestamp_ms = max(ahead.timestamp_ms, timestamp_ms)
                    track.pending += 1
                    continue
            self._judge(chunk, row, track, candidate)

    def _repeat(self, chunk: LastChunk, row: int, mark: LaneMark) -> None:
        """Call a record a duplicate of what its lane remembers."""
        chunk.kinds[row] = DUPLICATE
        chunk.seen[row] = (mark.offset, mark.timestamp_ms)
        if not self.reveals:
            chunk.finish(row)

    def _judge(self, chunk: LastChunk, row: int, track: Track, candidate: Candidate) -> None:
        """Judge one record, and put it on its track."""
        if self.rule.malformed(candidate):
            self._leave_track(chunk, row)
            blocker = self._judge_unreadable(chunk, row)
            if blocker is not None:
                self._wait(chunk, row, blocker)
            return
        offset, timestamp_ms = chunk.offsets[row], int(chunk.timestamps[row])
        track.take_off()
        track.pending += 1
        leader = self._leader(track, candidate.token, offset, timestamp_ms)
        if leader is not None and not self._is_open(leader):
            self._decide(chunk, row, COMPLETED_TWIN, self._sighting(leader))
        else:
            blocker = self._judge_by(track.ahead, chunk, row, track) if leader is None else leader
            if blocker is not None:
                self._wait(chunk, row, blocker)
        if track.flying:
            standing = self.rule.standing(track.ahead, candidate, timestamp_ms)
            track.mixed = track.mixed or standing is Standing.UNCOMPARABLE
        # Whatever the verdict: what a lane remembers hangs only on what is completed.
        track.ahead = self._after(track.ahead, candidate, chunk, row)
        track.covered = track.covered and track.ahead is not None and track.ahead.covered
        if leader is None:
            track.flying[candidate.token] = offset

    def _judge_by(self, mark: LaneMark | None, chunk: LastChunk, row: int, track: Track) -> int | None:
        """Give a record its verdict by what its lane remembers then; or return the offset of one that it has to wait for."""
        candidate = self.id_at(chunk, row)
        timestamp_ms = int(chunk.timestamps[row])
        standing, lenient = self.rule.standing(mark, candidate, timestamp_ms), self.second is None
        is_old = standing in (Standing.BELOW, Standing.SEEN)
        if track.pending > 1 and (is_old or not track.covered):
            # What lies ahead may not come to be, and may have raised the floor: what is completed tells more.
            base = track.base(self.rule)
            known = self.rule.standing(base, candidate, timestamp_ms)
            if known is Standing.SEEN or self._may_be_lenient(standing, track, candidate, base, timestamp_ms):
                standing, lenient = known, False
            elif is_old and known is not standing:
                blocker = self._last_open(track, chunk.offsets[row])
                if blocker is not None:
                    return blocker
        alive = self.rule.alive(mark, timestamp_ms)
        covered = (
            self.covers(int(chunk.sighted[row]))
            and (lenient or track.covered)
            and (alive is None or alive.covered)
        )
        judgement = self.rule.judge(standing, covered=covered)
        return self._pronounce(
            chunk, row, judgement, None if mark is None else (mark.offset, mark.timestamp_ms)
        )

    def _may_be_lenient(
        self, standing: Standing, track: Track, candidate: Candidate, base: LaneMark | None, timestamp_ms: int
    ) -> bool:
        """Whether it does no harm to say less of what lies below the floor; a second opinion would not be asked then."""
        return (
            standing is Standing.BELOW
            and self.rule.below_floor == "deliver"
            and self.second is None
            # Else it says nothing of what was completed since, or before.
            and candidate.token not in track.flying
            and (base is None or self.rule.alive(base, timestamp_ms) is not None)
        )

    def _leader(self, track: Track, token: Any, offset: int, timestamp_ms: int) -> int | None:
        """Return the offset of the record above the watermark that this one repeats, inside the window."""
        return self._repeated(track.flying.get(token), offset, timestamp_ms, self.window)

    def _last_open(self, track: Track, before: int) -> int | None:
        """Return the last offset in flight on a track below ``before``."""
        # The records themselves are asked: of several that bear one ID, a window apart, only the newest is among those flying.
        for each in reversed(self._chunks):
            chunk = on_tracks(each)
            for row in reversed(range(bisect_left(chunk.offsets, before) if chunk.open else 0)):
                if chunk.states[row] != DONE and chunk.track_of(row) is track:
                    return chunk.offsets[row]
        return None

    def _wait(self, chunk: LastChunk, row: int, leader: int) -> None:
        """Park a record behind one in flight; where nothing is hidden, call it a duplicate of that one."""
        if self.reveals:
            chunk.kinds[row] = DUPLICATE
            chunk.reasons[row] = "in-flight"
            seen = self._sighting(leader)
            if seen is not None:
                chunk.seen[row] = seen
            return
        chunk.states[row] = PARKED
        chunk.kinds[row] = PARKED_KIND
        chunk.reasons[row] = "in-flight"
        self.waiting.setdefault(leader, deque()).append(Place(chunk, row))

    def _leave_track(self, chunk: LastChunk, row: int) -> None:
        """Take a record out of the fold: nothing of it will be remembered."""
        chunk.unmarked.add(row)
        if chunk.track is None:
            chunk.tracks[row] = None


# A constructor in C: there is one for each record.
_candidate = partial(tuple.__new__, Candidate)


def stretches_of(places: list[IdPlace | None], ahead: LaneMark | None) -> Iterator[tuple[int, int, bool]]:
    """Yield stretches ``[start, end)``, and whether their places are each newer than all before; what is not stands alone."""
    if ahead is None or None in places:
        yield 0, len(places), False
        return
    origins, ranks = zip(*cast("list[IdPlace]", places), strict=True)
    if origins.count(ahead.seen.origin) != len(places):
        yield 0, len(places), False
        return
    start = 0
    newest = accumulate(ranks, max, initial=ahead.seen.last_rank)
    for row in compress(range(len(ranks)), map(le, ranks, newest)):
        if start < row:
            yield start, row, True
        yield row, row + 1, False
        start = row + 1
    if start < len(ranks):
        yield start, len(ranks), True
