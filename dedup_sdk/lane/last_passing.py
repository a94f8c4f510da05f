"""How lanes whose IDs are compared follow the watermark."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from dedup_sdk.decision import Mark
from dedup_sdk.lane.chunk import Chunk
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_state import LastState
from dedup_sdk.lane.track import Track


class LastPassing(LastState):
    """The half of such a lane that learns from what is completed."""

    def _pass(self, chunks: list[Chunk]) -> None:
        """Fold the records that the watermark passes into what their lanes remember."""
        for each in chunks:
            chunk = on_tracks(each)
            end = len(chunk.states) - len(chunk.states.lstrip(b"\0")) if chunk.open else len(chunk.states)
            start = bisect_left(chunk.offsets, self.high)
            if start < end:
                self.newest_ms = max(self.newest_ms, int(chunk.timestamps[start:end].max()))
                self._fold_rows(chunk, start, end)
                if chunk.others:
                    self.land_sightings(chunk, start, end)

    def land_sightings(self, chunk: LastChunk, start: int, end: int) -> None:
        """Let completed records leave what a second opinion looks up."""
        timestamps = chunk.sighted[start:end].tolist()
        rows = zip(chunk.others[start:end], chunk.offsets[start:end], timestamps, strict=True)
        for digest, offset, timestamp_ms in rows:
            if digest is not None:
                self.sightings.land(digest, Mark(offset, timestamp_ms))

    def _fold_rows(self, chunk: LastChunk, start: int, end: int) -> None:
        apart: set[Track] = set()
        landed: dict[bytes, Track] = {}
        for track, passing in self._passing(chunk, start, end).items():
            if track is None or not passing:
                continue
            if passing == track.pending:
                # Everything judged is completed: what lies ahead is known already.
                track.land()
                landed[track.digest] = track
            else:
                apart.add(track)
        self._changed.update(landed)
        self._unflushed.update(landed)
        for row in range(start, end) if apart else ():
            track = chunk.track_of(row)
            if track in apart and track is not None:
                self._fold_row(track, chunk, row)

    def _passing(self, chunk: LastChunk, start: int, end: int) -> dict[Track | None, int]:
        """Return how many records of each track are passed."""
        if chunk.track is None:
            return Counter(chunk.tracks[start:end])
        return {chunk.track: end - start - sum(start <= row < end for row in chunk.unmarked)}

    def _fold_row(self, track: Track, chunk: LastChunk, row: int) -> None:
        candidate = self.id_at(chunk, row)
        track.pending -= 1
        if track.pending == 0:
            self._land(track)
            return
        track.move_base(self._after(track.base(self.rule), candidate, chunk, row))
        self._changed[track.digest] = self._unflushed[track.digest] = track
        track.let_go(candidate.token, chunk.offsets[row])

    def _land(self, track: Track) -> None:
        track.land()
        self._changed[track.digest] = self._unflushed[track.digest] = track
