"""A run of records whose IDs are compared, and the tracks that they are on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.lane.chunk import Chunk
from dedup_sdk.lane.track import Track
from dedup_sdk.last.rule import NO_TIME_MS
from dedup_sdk.marks import Int64s


class LastChunk(Chunk):
    """``timestamps`` are what lanes go by: below zero also for what lies in the future. ``sighted`` are those of the records themselves.

    ``track`` is the track of all its records, or None where they have several: then ``tracks`` has each record's, None where it is on none.

    Where there is a second opinion ``others`` has the digests by which it knows them (None: not), ``stored`` what the store said of these when they
    came, by row.
    """

    __slots__ = ("others", "sighted", "stored", "track", "tracks")

    def __init__(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: list[bytes | None],
        items: Sequence[Any] = (),
        *,
        latest_ms: int,
    ) -> None:
        self.sighted = timestamps
        if len(timestamps) and int(timestamps.max()) > latest_ms:
            timestamps = np.where(timestamps > latest_ms, NO_TIME_MS, timestamps)
        super().__init__(offsets, timestamps, digests, items)
        self.track: Track | None = None
        self.tracks: list[Track | None] = []
        self.others: list[bytes | None] = []
        self.stored: dict[int, Mark] = {}

    def track_of(self, row: int) -> Track | None:
        """Return the track of one record, None where it is on none."""
        if self.track is not None:
            return None if row in self.unmarked else self.track
        return self.tracks[row]


def on_tracks(chunk: Chunk) -> LastChunk:
    """Return a chunk of such a lane as what it is."""
    if not isinstance(chunk, LastChunk):
        raise TypeError(f"records from {chunk.offsets[0]} are of a lane that compares nothing")
    return chunk
