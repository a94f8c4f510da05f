"""What the key store gets of lanes whose IDs are compared: a mark for each lane that changed, its memory as the payload."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_state import LastState
from dedup_sdk.lane.saving import Step
from dedup_sdk.lane.state import cut_digests
from dedup_sdk.lane.track import Track
from dedup_sdk.marks import Marks


class LastSaving(LastState):
    """The half of such a lane that hands out what is to be kept."""

    def take_step(self) -> Step | None:
        """Return the lanes that the watermark changed since the last call, None when that is nothing; the caller writes it."""
        changed, self._changed = self._changed, {}
        self._dirty = [chunk for chunk in self._dirty if chunk.offsets[-1] >= self.high]
        if not changed and not self._moved:
            return None
        self._moved = False
        return Step(self._progress((), delta=True), lane_marks(changed.values()))

    def take_recent(self, clock_ms: int, find: Find) -> Marks:
        """Return the lanes that are in the journal, for a flush, and forget those that have nothing in flight.

        Left out are those that no record which is not older than the clock would find; coverage says so. Nothing is left out that hides
        an older mark of the store.
        """
        tracks, self._unflushed = self._unflushed, {}
        marks = lane_marks(tracks.values())
        if self.window.time_ms is not None and marks.count:
            horizon = self.horizon_ms(clock_ms)
            live = marks.timestamps >= horizon
            aged = np.flatnonzero(~live)
            if aged.size:
                digests = cut_digests(marks.digests)
                try:
                    hidden = find(b"".join([digests[index] for index in aged.tolist()]), aged.size).indexes
                except BaseException:
                    self._unflushed = tracks
                    raise
                live[aged[hidden]] = True
                self.forgot_before(horizon)
            if not live.all():
                kept = [
                    digest
                    for digest, is_live in zip(cut_digests(marks.digests), live.tolist(), strict=True)
                    if is_live
                ]
                marks = lane_marks([tracks[digest] for digest in kept])
        self.tracks = {digest: track for digest, track in self.tracks.items() if track.pending}
        return marks

    def put_back(self, marks: Marks) -> None:
        """Take back what `take_recent` gave out and nobody could store."""
        rows = zip(
            cut_digests(marks.digests),
            marks.offsets.tolist(),
            marks.timestamps.tolist(),
            marks.payloads or [],
            strict=True,
        )
        for digest, offset, timestamp_ms, payload in rows:
            track = self.tracks.get(digest)
            if track is None:
                track = self.tracks[digest] = Track(digest, self.rule.restore(payload, offset, timestamp_ms))
            self._unflushed.setdefault(digest, track)


def lane_marks(tracks: Iterable[Track]) -> Marks:
    """Return the marks of lanes, as they are below the watermark."""
    known = [(track.digest, saved) for track in tracks if (saved := track.saved()) is not None]
    return Marks(
        b"".join([digest for digest, _ in known]),
        np.asarray([saved.offset for _, saved in known], np.int64),
        np.asarray([saved.timestamp_ms for _, saved in known], np.int64),
        payloads=[saved.payload for _, saved in known],
    )
