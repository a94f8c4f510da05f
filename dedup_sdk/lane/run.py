"""A run of records of one lane that are each newer than all before, with others between them that change nothing of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from typing import Any

from dedup_sdk.lane.last_chunk import LastChunk
from dedup_sdk.lane.track import Track
from dedup_sdk.last.rule import LaneMark


class Run:
    """The records of a chunk from row ``start`` on, which are not taken in yet.

    ``newer`` says of each row whether its record is newer than all before; what is not in it changes nothing where it is passed over.
    """

    __slots__ = ("_ahead", "_chunk", "_ids", "_ranks", "_track", "newer", "start")

    def __init__(
        self, chunk: LastChunk, track: Track, ahead: LaneMark, ids: Sequence[Any], ranks: Sequence[Any]
    ) -> None:
        self._chunk = chunk
        self._track = track
        self._ahead = ahead
        self._ids = ids
        self._ranks = ranks
        self.newer = bytearray(b"\1") * len(ids)
        self.start = 0

    def leave_out(self, rows: Sequence[int]) -> None:
        """Note which rows are not newer than all before."""
        for row in rows:
            self.newer[row] = 0

    def remembers(self, row: int, newest: Any) -> bool:
        """Whether the lane will remember the ID of this row when all before it is taken in, of which the highest rank is ``newest``."""
        taken = self.newer.count(1, self.start, row)
        return self._ahead.seen.remembers(self._ranks[row], newest, taken)

    def sighting_before(self, row: int) -> tuple[int, int]:
        """Return the offset of the lane's last record before a row, and its newest timestamp (ms) there."""
        ahead, start = self._ahead, self.start
        if row == start:
            return ahead.offset, ahead.timestamp_ms
        return self._chunk.offsets[row - 1], max(
            ahead.timestamp_ms, int(self._chunk.timestamps[start:row].max())
        )

    def take_to(self, end: int) -> None:
        """Take in what is newer, up to row ``end``, and pass over the rest."""
        start, self.start = self.start, end
        if start == end:
            return
        newer = self.newer[start:end]
        count = newer.count(1)
        ids, ranks = self._ids[start:end], self._ranks[start:end]
        if count < len(newer):
            ids, ranks = list(compress(ids, newer)), list(compress(ranks, newer))
        if count:
            self._ahead.seen.take_run(ids, ranks)
        self._ahead.pass_by(self._chunk.offsets[end - 1], int(self._chunk.timestamps[start:end].max()))
        self._track.pending += end - start
