"""Lanes of a partition whose IDs are compared: what is in memory of them, and how it follows the watermark."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from dedup_sdk.lane.chunk import Chunk, Place, digest_of
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.sightings import Sightings
from dedup_sdk.lane.state import GRACE, LaneState, cut_digests
from dedup_sdk.lane.track import Saved, Track
from dedup_sdk.last.candidate import Candidate
from dedup_sdk.last.keys import LaneKeys
from dedup_sdk.last.rule import LaneMark, LastRule
from dedup_sdk.marks import NO_MARKS, Marks, select_marks
from dedup_sdk.progress import Progress
from dedup_sdk.window import Window


class Waiter(NamedTuple):
    """A record that waits for another one; ``token`` is that of its ID where the other bears the same, else None."""

    place: Place
    token: Any


class LastState(LaneState):
    """The state of one partition for one group, as `LaneState`; its marks are those of lanes.

    ``tracks`` are the lanes in memory; those in ``unflushed`` are in the journal only. Records that wait for one in flight are in
    ``waiting``, by its offset. Memory follows the watermark: what is completed above it becomes durable when it passes.
    ``second`` is the window of a second opinion, None without one; ``sightings`` is what it knows.
    """

    def __init__(
        self,
        rule: LastRule,
        keys: LaneKeys,
        progress: Progress,
        recent: Marks = NO_MARKS,
        *,
        second: Window | None = None,
    ) -> None:
        self.rule = rule
        self.second = second
        self.sightings = Sightings()
        self.keys = keys
        self.tracks: dict[bytes, Track] = {}
        self.waiting: dict[int, deque[Waiter]] = {}
        self._changed: dict[bytes, Track] = {}
        self._unflushed: dict[bytes, Track] = {}
        super().__init__(rule.window, progress, recent)

    def _load(self, recent: Marks) -> None:
        lanes, looked_up = parted(recent)
        self.sightings.restore(looked_up)
        newest: dict[bytes, Saved] = {}
        for digest, saved in saved_lanes(lanes):
            known = newest.get(digest)
            if known is None or known.offset <= saved.offset:
                newest[digest] = saved
        for digest, saved in newest.items():
            self.tracks[digest] = self._unflushed[digest] = Track(digest, self._restored_mark(saved))

    def _restored_mark(self, saved: Saved) -> LaneMark:
        """Return what a lane remembers, of which too little is known where records of it may have been passed since."""
        mark = self.rule.restore(*saved)
        if self.since_number is not None and saved.offset < self.since_number:
            mark.seen.doubt()
        return mark

    def forget_all(self) -> None:
        """See `LaneState`: what lanes remember is right, but not all that was completed of them."""
        super().forget_all()
        self._doubt_lanes()

    def pass_uncounted(self, count: int) -> None:
        """See `LaneState`: records are passed that nobody folds."""
        if count > 0:
            self._doubt_lanes()

    def _doubt_lanes(self) -> None:
        # Lanes have no ranks: of those whose last record lies below this offset too little is known.
        self.since_number = self.high
        for track in self.tracks.values():
            track.doubt()

    @property
    def recent_count(self) -> int:
        """How many lanes are in memory, and IDs that a second opinion looks up."""
        return len(self.tracks) + len(self.sightings.recent)

    def horizon_ms(self, clock_ms: int) -> int:
        """Return the timestamp before which a sighting may be forgotten, by the longer of the windows."""
        window_ms = max(self.window.time_ms or 0, 0 if self.second is None else self.second.time_ms or 0)
        return clock_ms - window_ms - window_ms // GRACE

    @property
    def looked_up(self) -> int:
        """How many lanes in memory, at least, are neither in the journal nor in flight: records that nobody could read name them."""
        unchanged = len(self.tracks) - len(self._unflushed)
        return max(0, unchanged - self.in_flight) if unchanged else 0

    @property
    def _follows_watermark(self) -> bool:
        """It does: what lanes remember is folded in offset order."""
        return True

    # --- single records ------------------------------------------------------------------------------------

    def _after(
        self, mark: LaneMark | None, candidate: Candidate, chunk: LastChunk, row: int
    ) -> LaneMark | None:
        timestamp_ms = int(chunk.timestamps[row])
        return self.rule.completed(
            mark, candidate, offset=chunk.offsets[row], timestamp_ms=timestamp_ms,
            covered=self.covers(int(chunk.timestamps[row])),
        )  # fmt: skip

    def id_at(self, chunk: Chunk, row: int) -> Candidate:
        """Return the ID of a record."""
        return self.candidate(self.keys.split(digest_of(chunk, row)).id_bytes)

    def candidate(self, id_bytes: bytes) -> Candidate:
        """Return an ID with its place."""
        return Candidate(id_bytes, self.rule.order.place(id_bytes))

    # --- what lies ahead -----------------------------------------------------------------------------------

    def before(self, track: Track, offset: int) -> LaneMark | None:
        """Return what the lane would remember just before ``offset``, were everything completed that was judged."""
        base = track.base(self.rule)
        mark = None if base is None else base.copy()
        for each in self._chunks:
            chunk = on_tracks(each)
            for row in range(bisect_left(chunk.offsets, self.high), len(chunk.offsets)):
                if chunk.offsets[row] >= offset:
                    return mark
                if chunk.track_of(row) is track:
                    mark = self._after(mark, self.id_at(chunk, row), chunk, row)
        return mark


def parted(marks: Marks) -> tuple[Marks, Marks]:
    """Return the marks of lanes, and those that are looked up: the latter bear no payload."""
    bears = np.asarray([bool(payload) for payload in marks.payloads or [b""] * marks.count], np.bool_)
    return select_marks(marks, bears), select_marks(marks, ~bears)


def saved_lanes(marks: Marks) -> Iterator[tuple[bytes, Saved]]:
    """Yield each mark of a lane, in their order."""
    columns = zip(marks.payloads or [], marks.offsets.tolist(), marks.timestamps.tolist(), strict=True)
    yield from zip(cut_digests(marks.digests), map(Saved._make, columns), strict=True)
