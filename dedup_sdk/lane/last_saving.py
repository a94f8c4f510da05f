"""What the key store gets of lanes whose IDs are compared: a mark for each lane that changed, its memory as the payload."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import on_tracks
from dedup_sdk.lane.last_passing import LastPassing
from dedup_sdk.lane.last_state import parted, saved_lanes
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.track import Track
from dedup_sdk.marks import Marks, join_marks, select_marks, take_digests


class LastSaving(LastPassing):
    """The half of such a lane that hands out what is to be kept."""

    def take_step(self) -> Step | None:
        """Return the lanes that the watermark changed since the last call, None when that is nothing; the caller writes it."""
        changed, self._changed = self._changed, {}
        self._dirty = {first: chunk for first, chunk in self._dirty.items() if chunk.offsets[-1] >= self.high}
        looked_up = self.sightings.take_step()
        if not changed and not looked_up.count and not self._moved:
            return None
        self._moved = False
        return Step(self._progress((), delta=True), joined(changed, looked_up))

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """Return what is in the journal, for a flush, and forget the lanes that have nothing in flight.

        Left out is what no record that is not older than the clock would find; coverage says so. Nothing is left out that hides
        an older mark of the store.
        """
        tracks, self._unflushed = self._unflushed, {}
        waited_for = self._waited_for()
        looked_up = self.sightings.take_recent(waited_for)
        marks = joined(tracks, looked_up)
        if self.window.time_ms is not None and marks.count:
            horizon = self.horizon_ms(clock_ms)
            live = marks.timestamps >= horizon
            aged = np.flatnonzero(~live)
            if aged.size:
                try:
                    hidden = find(take_digests(marks.digests, aged), aged.size).indexes
                except BaseException:
                    self._unflushed = tracks
                    self.sightings.restore(looked_up)
                    raise
                live[aged[hidden]] = True
                self.forgot_before(horizon)
            if not live.all():
                marks = select_marks(marks, live)
        self.tracks = {digest: track for digest, track in self.tracks.items() if track.pending}
        return marks

    def _waited_for(self) -> set[bytes]:
        """Return what parked records are judged by later, which the store was asked for before it had it."""
        found = (
            on_tracks(place.chunk).others[place.row : place.row + 1]
            for queue in self.waiting.values()
            for place, _ in queue
        )
        return {digest for others in found for digest in others if digest is not None}

    def put_back(self, marks: Marks) -> None:
        """Take back what `take_recent` gave out and nobody could store."""
        lanes, looked_up = parted(marks)
        self.sightings.restore(looked_up)
        for digest, saved in saved_lanes(lanes):
            track = self.tracks.get(digest)
            if track is None:
                track = self.tracks[digest] = Track(digest, self.rule.restore(*saved))
            self._unflushed.setdefault(digest, track)


def joined(lanes: dict[bytes, Track], looked_up: Marks) -> Marks:
    """Return the marks of lanes, and those that are looked up."""
    marks = [lane_marks(lanes.values())] if lanes else []
    return join_marks([*marks, looked_up] if looked_up.count else marks)


def lane_marks(tracks: Iterable[Track]) -> Marks:
    """Return the marks of lanes, as they are below the watermark."""
    digests: list[bytes] = []
    payloads: list[bytes] = []
    offsets: list[int] = []
    times: list[int] = []
    for track in tracks:
        payload, offset, timestamp_ms = track.saved()
        if payload is not None:
            digests.append(track.digest)
            payloads.append(payload)
            offsets.append(offset)
            times.append(timestamp_ms)
    return Marks(
        b"".join(digests), np.asarray(offsets, np.int64), np.asarray(times, np.int64), payloads=payloads
    )
