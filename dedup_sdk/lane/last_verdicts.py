"""How a record gets its verdict where IDs are compared: by its lane, and in doubt by a second opinion."""

from __future__ import annotations

from dedup_sdk.decision import Mark, decide
from dedup_sdk.lane.chunk import APART, KINDS, PARKED
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_passing import LastPassing
from dedup_sdk.last.rule import Judgement
from dedup_sdk.last.standing import Standing
from dedup_sdk.marks import NONE_FOUND
from dedup_sdk.record import VerdictKind
from dedup_sdk.window import Window

COMPLETED_TWIN = Judgement(VerdictKind.DUPLICATE)
"""The verdict of a record whose ID was borne by one that is completed."""


class LastVerdicts(LastPassing):
    """What every way of judging ends in."""

    def _note_others(self, chunk: LastChunk, find: Find) -> None:
        """Look up what a second opinion knows of the records."""
        if self.second is None:
            return
        others = self.keys.others_of(self._keys(chunk))
        rows = [row for row, digest in enumerate(others) if digest is not None]
        asked = [digest for digest in others if digest is not None]
        found = find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        for index, offset, timestamp_ms in zip(found.indexes, found.offsets, found.timestamps, strict=True):
            chunk.stored[rows[index]] = Mark(offset, timestamp_ms)
        chunk.others = others

    def _keys(self, chunk: LastChunk) -> list[bytes | None]:
        """Return the lane key of each record that is to be on a track, None of the others."""
        if not chunk.unmarked:
            return chunk.digests
        return [None if row in chunk.unmarked else key for row, key in enumerate(chunk.digests)]

    def _judge_unreadable(self, chunk: LastChunk, row: int) -> int | None:
        """Give a record its verdict whose ID the order cannot read; or return the offset of one that it has to wait for."""
        return self._pronounce(chunk, row, self.rule.judge(Standing.MALFORMED, covered=True), None)

    def _pronounce(
        self, chunk: LastChunk, row: int, judgement: Judgement, seen: tuple[int, int] | None
    ) -> int | None:
        """Give a record its verdict, in doubt by a second opinion; or return the offset of one that it has to wait for."""
        digest = chunk.others[row] if chunk.others else None
        if judgement.kind is VerdictKind.UNVERIFIED and digest is not None and self.second is not None:
            offset, timestamp_ms = chunk.offsets[row], int(chunk.sighted[row])
            leaders = [
                each
                for each in self.sightings.flying.get(digest, ())
                if self._repeated(each, offset, timestamp_ms, self.second) is not None
            ]
            # One that is in flight, or waits itself, decides; else the last that was completed.
            leader = max(leaders, key=lambda each: (self._is_open(each), each), default=None)
            if leader is not None and self._is_open(leader):
                return leader
            if leader is not None:
                judgement, seen = COMPLETED_TWIN, self._sighting(leader)
            else:
                mark = self.sightings.last(digest, chunk.stored.get(row))
                reaches_ms = timestamp_ms - (self.second.time_ms or 0)
                kind = decide(
                    offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), window=self.second,
                    covered=self.since_ms is None or self.since_ms <= reaches_ms,
                )  # fmt: skip
                if kind is not VerdictKind.UNVERIFIED:
                    judgement = Judgement(kind)
                if kind is VerdictKind.DUPLICATE and mark is not None:
                    seen = mark.offset, mark.timestamp_ms
        self._decide(chunk, row, judgement, seen)
        return None

    def _repeated(self, leader: int | None, offset: int, timestamp_ms: int, window: Window) -> int | None:
        """Return the offset of a record above the watermark if it comes before this one, inside a window."""
        place = None if leader is None or leader >= offset else self.place(leader)
        if place is None or not window.holds(
            timestamp_ms - int(on_tracks(place.chunk).sighted[place.row]), 0
        ):
            return None
        return leader

    def _sighting(self, leader: int) -> tuple[int, int] | None:
        """Return the offset and the timestamp of a record that this one repeats."""
        place = self.place(leader)
        return None if place is None else (leader, int(on_tracks(place.chunk).sighted[place.row]))

    def _decide(self, chunk: LastChunk, row: int, judgement: Judgement, seen: tuple[int, int] | None) -> None:
        kind, reason = judgement
        chunk.kinds[row] = KINDS.index(kind)
        chunk.reasons.pop(row, None)
        if reason:
            chunk.reasons[row] = reason
        if kind is not VerdictKind.DUPLICATE:
            if chunk.states[row] == PARKED:
                chunk.states[row] = APART
            return
        if seen is not None:
            chunk.seen[row] = seen
        if not self.reveals:
            chunk.finish(row)
