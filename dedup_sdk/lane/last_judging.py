"""What a record is told whose ID is compared with the last ones of its lane."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

from dedup_sdk.lane.chunk import DONE, Place
from dedup_sdk.lane.compared import Compared, late_rows
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_rows import LastRows
from dedup_sdk.lane.run import Run
from dedup_sdk.lane.track import Saved, Track
from dedup_sdk.last.rule import LaneMark
from dedup_sdk.marks import Int64s


class LastJudging(LastRows):
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
        # Asked before anything changes: an order of the user's may raise.
        compared = Compared(self.rule.order, self.keys.ids_of(self._keys(chunk)))
        self._find_tracks(chunk, find)
        self._note_others(chunk, find)
        self._take_in(chunk)
        self._judge_all(chunk, compared)
        if chunk.open < len(offsets):
            self._note_dirty(chunk)
            self._advance()
        return chunk

    # --- which lane ----------------------------------------------------------------------------------------

    def _find_tracks(self, chunk: LastChunk, find: Find) -> None:
        """Put every record on the track of its lane; those of lanes that are not in memory are looked up, all at once."""
        lanes = self.keys.lanes_of(self._keys(chunk))
        wanted = {lane for lane in lanes if lane is not None}
        self._load_tracks([lane for lane in wanted if lane not in self.tracks], find)
        if len(wanted) == 1:
            chunk.track = self.tracks[wanted.pop()]
        else:
            chunk.tracks = [None if lane is None else self.tracks[lane] for lane in lanes]

    def _load_tracks(self, lanes: list[bytes], find: Find) -> None:
        """Put lanes on tracks that are not in memory; what the store knows of them is looked up."""
        marks = self._look_up(lanes, find)
        for lane in lanes:
            self.tracks[lane] = Track(lane, marks.get(lane))

    def _look_up(self, lanes: list[bytes], find: Find) -> dict[bytes, LaneMark]:
        """Return what the store knows of lanes that are not in memory."""
        marks: dict[bytes, LaneMark] = {}
        if not lanes:
            return marks
        found = find(b"".join(lanes), len(lanes))
        payloads = found.payloads or [b""] * len(found.indexes)
        for index, offset, timestamp_ms, payload in zip(
            found.indexes, found.offsets, found.timestamps, payloads, strict=True
        ):
            if offset < self.position:
                # Else it says nothing of what comes before it.
                marks[lanes[index]] = self._restored_mark(Saved(payload, offset, timestamp_ms))
        return marks

    # --- verdicts ------------------------------------------------------------------------------------------

    def _judge_all(self, chunk: LastChunk, compared: Compared) -> None:
        """Judge the records of a chunk: of one lane as columns, where nothing is in doubt there."""
        count = len(chunk.offsets)
        if chunk.others:
            # One after the other: what one leaves behind is what the next is asked about.
            for row, offset in enumerate(chunk.offsets):
                self._judge_rows(chunk, compared, range(row, row + 1))
                self.sightings.take_off(chunk.others[row], offset)
            return
        track = chunk.track
        if track is not None and track.ahead is not None and self._is_plain(track, track.ahead, chunk):
            ranks = compared.ranks(track.ahead.seen.origin)
            if ranks is not None:
                self._judge_columns(chunk, track, track.ahead, compared, ranks)
                return
        self._judge_rows(chunk, compared, range(count))

    def _is_plain(self, track: Track, ahead: LaneMark, chunk: LastChunk) -> bool:
        """Whether all records of a chunk are on one track, whose lane is remembered and covered at all their times."""
        return (
            not chunk.unmarked
            and not track.mixed
            and ahead.covered
            and self._is_alive_throughout(ahead, chunk.timestamps)
        )

    def _is_alive_throughout(self, mark: LaneMark, timestamps: Int64s) -> bool:
        """Whether the lane is remembered and covered at all these timestamps, each seen from the one before."""
        longest_ms = int(np.diff(timestamps, prepend=mark.timestamp_ms).max())
        return self.window.holds(longest_ms, 0) and self.covers(int(timestamps.min()))

    def _judge_columns(
        self, chunk: LastChunk, track: Track, ahead: LaneMark, compared: Compared, ranks: list[Any]
    ) -> None:
        """Judge records that all are of the lane's origin: those newer than all before at once, of the others what repeats one of these.

        What is newer is fresh, as every record is at first. A repeat changes nothing of what the lane remembers, so that the run of newer
        ones goes on around it; what comes late and was not seen is judged by itself, when all before it is taken in.
        """
        late, newest = late_rows(ranks, ahead.seen.last_rank)
        tokens, offsets = compared.tokens(), chunk.offsets
        track.take_off()
        run = Run(chunk, track, ahead, compared.ids, ranks)
        run.leave_out(late)
        flying = track.in_flight()
        # All of the chunk beforehand: no ID that is newer than all before comes earlier in it.
        flying.update(zip(compress(tokens, run.newer), compress(offsets, run.newer), strict=True))
        for row, above in zip(late, newest, strict=True):
            token = tokens[row]
            leader = flying.get(token)
            if leader is not None and self._is_twin(chunk, row, leader):
                self._wait(chunk, row, leader, token)
            elif leader is None and run.remembers(row, above):
                # Not in flight, so that one was completed.
                self._repeat(chunk, row, run.sighting_before(row))
            else:
                run.take_to(row)
                self._judge_rows(chunk, compared, range(row, row + 1))
                run.start = row + 1
        run.take_to(len(ranks))

    def _is_twin(self, chunk: LastChunk, row: int, leader: int) -> bool:
        """Whether a record of the same ID, which is in flight, hides this one."""
        leading = chunk.row_of(leader)
        place = self.place(leader) if leading is None else Place(chunk, leading)
        if place is None or place.chunk.states[place.row] == DONE:
            return False
        return self.window.holds(int(chunk.timestamps[row] - on_tracks(place.chunk).sighted[place.row]), 0)
