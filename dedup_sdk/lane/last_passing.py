"""How lanes whose IDs are compared follow the watermark, and go from a row to a track and back."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Any

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.lane.chunk import FRESH, Chunk
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_state import LastState
from dedup_sdk.lane.table import LaneTable, PlainRows
from dedup_sdk.lane.track import Track
from dedup_sdk.last.many import Places
from dedup_sdk.last.rows import Rows, mark_of


class LastPassing(LastState):
    """The half of such a lane that learns from what is completed."""

    patience_chunks = 8
    """Where records are completed one by one their lanes stay on tracks, until so many chunks were completed as a whole."""

    # --- the watermark -------------------------------------------------------------------------------------

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
        if end == len(chunk.offsets):
            self._piecemeal = max(0, self._piecemeal - 1)
        elif FRESH in chunk.kinds[start:end]:
            self._piecemeal = self.patience_chunks
        if self.table is not None and chunk.plain is not None:
            self._pass_rows(self.table, chunk, chunk.plain, start, end)
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

    # --- rows ------------------------------------------------------------------------------------------------

    def _pass_rows(self, table: LaneTable, chunk: LastChunk, plain: PlainRows, start: int, end: int) -> None:
        """Pass records ``[start, end)`` of a chunk on plain lanes."""
        if end == len(chunk.offsets):
            lanes = np.flatnonzero(plain.left)
            slots = plain.slots[lanes]
            table.pending[slots] -= plain.left[lanes]
            plain.left[lanes] = 0
            table.touch(slots)
            return
        by_halves = FRESH in chunk.kinds[start:end]
        for row, at in enumerate(plain.at_row[start:end].tolist(), start):
            if at < 0 or not plain.left[at]:
                continue
            slot = int(plain.slots[at])
            if by_halves:
                self.set_apart(table.digest(slot))
            else:
                # What repeats is completed as it comes, and a lane remembers nothing more for it.
                plain.pass_repeat(at, chunk.offsets[row], int(chunk.timestamps[row]))
                table.pending[slot] -= 1
                table.touch(np.asarray([slot]))

    def set_apart(self, digest: bytes) -> Track:
        """Put a lane that has a row on a track, as it would be had its records been judged one by one."""
        table = self.table
        if table is None:
            raise AssertionError(f"lane {digest.hex()} has no row: nothing of this partition has")
        slot = table.slots[digest]
        track = self.tracks[digest] = Track(digest, mark_of(table.rows[slot], self.rule.depth))
        pending = int(table.pending[slot])
        if pending:
            base = mark_of(self._bases(np.asarray([slot]))[0], self.rule.depth)
            track.resume(base, pending, self._put_on(track, slot))
        if table.changed[slot]:
            self._changed[digest] = track
        if table.unflushed[slot]:
            self._unflushed[digest] = track
        table.remove(digest)
        return track

    def _put_on(self, track: Track, slot: int) -> dict[Any, int]:
        """Put the records that a lane has in flight on its track, and return its IDs that fly."""
        flying: dict[Any, int] = {}
        for each in self._chunks:
            chunk = on_tracks(each)
            at = None if chunk.plain is None else chunk.plain.lane_of(slot)
            if chunk.plain is None or at is None:
                continue
            rows = chunk.plain.rows_of(at)
            chunk.put_on(track, rows)
            chunk.plain.left[at] = 0
            chunk.plain.at_row[rows] = -1
            for row in rows:
                # What is no duplicate bears its ID alone: else its lane would be on a track.
                if chunk.offsets[row] >= self.high and chunk.kinds[row] == FRESH:
                    flying[self.id_at(chunk, row).token] = chunk.offsets[row]
        return flying

    def _bases(self, slots: Places) -> Rows:
        """Return what plain lanes remember below the watermark, shape as given."""
        table = self.table
        if table is None:
            raise AssertionError("nothing of this partition has a row")
        rows = table.take(slots)
        for each in reversed(self._chunks):
            plain = on_tracks(each).plain
            if plain is None or not len(plain.slots):
                continue
            at = np.minimum(plain.slots.searchsorted(slots), len(plain.slots) - 1)
            there = np.flatnonzero((plain.slots[at] == slots) & (plain.left[at] > 0))
            if there.size:
                rows[there] = plain.before[at[there]]
        return rows

    def _settle_row(self, track: Track) -> bool:
        """Give the lane of a track a row again, if it is plain and has nothing in flight."""
        if self.table is None or not track.landed:
            return False
        digest = track.digest
        slot = self.table.add(digest) if track.ahead is None else self._add_row(digest, track.ahead)
        if slot is None:
            return False
        del self.tracks[digest]
        if self._changed.pop(digest, None) is not None:
            self.table.touch(np.asarray([slot]))
        if self._unflushed.pop(digest, None) is not None:
            self.table.unflushed[slot] = True
        return True
