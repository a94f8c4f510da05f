"""Judging records one by one where IDs are compared: the rule, with what is in flight of a lane."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

from dedup_sdk.lane.chunk import DONE, DUPLICATE, PARKED, PARKED_KIND, Place
from dedup_sdk.lane.compared import Compared
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_state import Waiter
from dedup_sdk.lane.last_verdicts import COMPLETED_TWIN, LastVerdicts
from dedup_sdk.lane.track import NONE_FLYING, Track
from dedup_sdk.last.candidate import Candidate, token_of
from dedup_sdk.last.rule import LaneMark
from dedup_sdk.last.standing import Standing
from dedup_sdk.orders import Place as IdPlace
from dedup_sdk.orders.place import ONLY_ORIGIN


class LastRows(LastVerdicts):
    """The half of judging that looks at one record after the other."""

    def _judge_rows(self, chunk: LastChunk, compared: Compared, rows: Sequence[int]) -> None:
        """Judge one record after the other, ascending; nearly all are new, which is told at once."""
        timestamps = _of_rows(chunk.timestamps.tolist(), rows)
        covered = self.covers(min(timestamps))
        if compared.numbers is not None:
            self._judge_numbers(chunk, compared, compared.numbers, rows, timestamps, covered=covered)
            return
        window_ms = self.window.time_ms or 0
        # What is given up yet may be what a lane is known by: then a second opinion would not have been asked.
        lenient = self.second is None
        for row, timestamp_ms in zip(rows, timestamps, strict=True):
            track = chunk.track_of(row)
            if track is None:
                continue
            candidate = compared.candidate(row)
            ahead, place = track.ahead, candidate.place
            if (
                covered
                and (lenient or track.covered)
                and ahead is not None
                and ahead.seen.known is None
                and place is not None
                and timestamp_ms - ahead.timestamp_ms <= window_ms
                and token_of(place) not in track.flying
            ):
                track.take_off()
                standing = ahead.seen.take(candidate)
                if standing <= Standing.SEEN:
                    if standing is Standing.SEEN:
                        # Not in flight, so that one was completed.
                        self._repeat(chunk, row, (ahead.offset, ahead.timestamp_ms))
                    else:
                        track.fly(token_of(place), chunk.offsets[row])
                    ahead.pass_by(chunk.offsets[row], timestamp_ms)
                    track.pending += 1
                    continue
            self._judge(chunk, row, track, candidate)

    def _judge_numbers(
        self,
        chunk: LastChunk,
        compared: Compared,
        numbers: list[int],
        rows: Sequence[int],
        timestamps: list[int],
        *,
        covered: bool,
    ) -> None:
        """Judge one record after the other whose IDs are numbers, with no more work for each than must be.

        Where there are many lanes this is done for every record. The first of a lane is told at once as well.
        """
        window_ms, rule, seen = self.window.time_ms or 0, self.rule, Standing.SEEN
        lenient = self.second is None
        tracks: Iterable[Any] = (
            _of_rows(chunk.tracks, rows) if chunk.tracks else repeat(chunk.track, len(rows))
        )
        columns = zip(
            rows, tracks, _of_rows(compared.ids, rows), _of_rows(numbers, rows), _of_rows(chunk.offsets, rows), timestamps,
            strict=True,
        )  # fmt: skip
        for row, track, id_bytes, number, offset, timestamp_ms in columns:
            flying, ahead = track.flying, track.ahead
            if covered and number not in flying:
                if ahead is None:
                    if not track.pending:
                        track.take_off()
                        track.ahead = LaneMark(
                            rule.begin(_numbered(id_bytes, number), knows_all=True), offset, timestamp_ms
                        )
                        track.flying = {number: offset}
                        track.pending = 1
                        continue
                elif (
                    timestamp_ms - ahead.timestamp_ms <= window_ms
                    and ahead.seen.known is None
                    and (lenient or track.covered)
                ):
                    if track.landed:
                        track.take_off()
                    standing = ahead.seen.take_number(id_bytes, number)
                    if standing <= seen:
                        if standing is seen:
                            # Not in flight, so that one was completed.
                            self._repeat(chunk, row, (ahead.offset, ahead.timestamp_ms))
                        elif flying is NONE_FLYING:
                            track.flying = {number: offset}
                        else:
                            flying[number] = offset
                        ahead.pass_by(offset, timestamp_ms)
                        track.pending += 1
                        continue
            self._judge(chunk, row, track, compared.candidate(row))

    def _repeat(self, chunk: LastChunk, row: int, seen: tuple[int, int]) -> None:
        """Call a record a duplicate of what its lane remembers, whose last record had this offset and timestamp (ms)."""
        chunk.kinds[row] = DUPLICATE
        chunk.seen[row] = seen
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
        token = candidate.token
        leader = self._leader(track, token, offset, timestamp_ms)
        if leader is not None and not self._is_open(leader):
            self._decide(chunk, row, COMPLETED_TWIN, self._sighting(leader))
        elif leader is not None:
            self._wait(chunk, row, leader, token)
        else:
            blocker = self._judge_by(track.ahead, chunk, row, track, candidate)
            if blocker is not None:
                self._wait(chunk, row, blocker)
        if track.flying:
            standing = self.rule.standing(track.ahead, candidate, timestamp_ms)
            begins_anew = self.rule.alive(track.ahead, timestamp_ms) is None
            track.mixed = track.mixed or begins_anew or standing is Standing.UNCOMPARABLE
        # Whatever the verdict: what a lane remembers hangs only on what is completed.
        track.ahead = self._after(track.ahead, candidate, chunk, row)
        track.covered = track.covered and track.ahead is not None and track.ahead.covered
        if leader is None:
            track.fly(token, offset)

    def _judge_by(
        self, mark: LaneMark | None, chunk: LastChunk, row: int, track: Track, candidate: Candidate
    ) -> int | None:
        """Give a record its verdict by what its lane remembers then; or return the offset of one that it has to wait for."""
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
            self.covers(int(chunk.timestamps[row]))
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

    def _wait(self, chunk: LastChunk, row: int, leader: int, token: Any = None) -> None:
        """Park a record behind one in flight, where it bears the same ID with its token; where nothing is hidden, call it a duplicate of that one."""
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
        self.waiting.setdefault(leader, deque()).append(Waiter(Place(chunk, row), token))

    def _leave_track(self, chunk: LastChunk, row: int) -> None:
        """Take a record out of the fold: nothing of it will be remembered."""
        chunk.unmarked.add(row)
        if chunk.tracks:
            chunk.tracks[row] = None


def _of_rows(column: list[Any], rows: Sequence[int]) -> list[Any]:
    """Return what a column has at some rows."""
    return column[rows.start : rows.stop] if isinstance(rows, range) else [column[row] for row in rows]


def _numbered(id_bytes: bytes, number: int) -> Candidate:
    return Candidate(id_bytes, IdPlace(ONLY_ORIGIN, number))
