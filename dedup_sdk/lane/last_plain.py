"""Records of many lanes judged at once, where the lanes are plain: nearly all records of a topic that has a lane for each producer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dedup_sdk.lane.compared import Compared, Split
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_chunk import LastChunk, on_tracks
from dedup_sdk.lane.last_rows import LastRows
from dedup_sdk.lane.table import LaneTable, PlainRows
from dedup_sdk.lane.track import Saved, Track
from dedup_sdk.last.many import Bools, Places, Records, Taken, begins_of, take_many
from dedup_sdk.last.rule import LaneMark


@dataclass(slots=True)
class Plain:
    """What of ``n`` records may be judged at once: ``slots`` are those of their lanes, -1 where a record is on a track or on no lane."""

    table: LaneTable
    slots: Places
    split: Split

    @property
    def unreadable(self) -> list[int]:
        """The rows that have a lane, and an ID that is none."""
        if self.split.numbered is None:
            return []
        rows: list[int] = np.flatnonzero((self.slots >= 0) & ~self.split.numbered).tolist()
        return rows

    def records(self, chunk: LastChunk) -> tuple[Records, Places]:
        """Return the records on plain lanes, ordered by lane, and the slots of these."""
        taking_part = self.slots >= 0
        if self.split.numbered is not None:
            taking_part &= self.split.numbered
        rows = np.flatnonzero(taking_part)
        bits = len(self.slots).bit_length()
        # One sort of numbers that differ, so that it need not be a stable one.
        keys = self.slots[rows] << bits | rows
        keys.sort()
        rows = keys & ((1 << bits) - 1)
        slots = keys >> bits
        begins = begins_of(slots)
        first = np.flatnonzero(begins)
        split = self.split
        return Records(
            np.cumsum(begins) - 1,
            first,
            rows,
            split.high[rows],
            split.low[rows],
            chunk.column[rows],
            chunk.timestamps[rows],
        ), slots[first]


class LastPlain(LastRows):
    """The half of judging that looks at many lanes at once."""

    fewest_at_once = 64
    """In a smaller batch it is quicker to look at one record after the other."""

    # --- which lane ----------------------------------------------------------------------------------------

    def _find_plain(self, chunk: LastChunk, compared: Compared, find: Find) -> Plain | None:
        """Find the lanes of all records, with a row where that may be; None where single records are to be judged."""
        table = self.table
        count = len(chunk.offsets)
        if (
            table is None
            or self._piecemeal
            or count < self.fewest_at_once
            or not self.covers(int(chunk.timestamps.min()))
        ):
            return None
        split = compared.split()
        if split is None:
            return None
        lanes = self.keys.lanes_of(self._keys(chunk))
        slots: list[int | None] = list(map(table.slots.get, lanes))  # type: ignore[arg-type]
        if None in slots:
            rows = [row for row, slot in enumerate(slots) if slot is None and lanes[row]]
            unknown = dict.fromkeys(lane for row in rows if (lane := lanes[row]) is not None)
            self._load_rows(table, [lane for lane in unknown if lane not in self.tracks], find)
            for lane in unknown:
                track = self.tracks.get(lane)
                if track is not None:
                    self._settle_row(track)
            for row in rows:
                slots[row] = table.slots.get(lanes[row])  # type: ignore[arg-type]
        self._part_foreign(table, lanes, slots, compared, split)
        if None not in slots:
            return Plain(table, np.fromiter(slots, np.intp, count), split)
        chunk.tracks = [None if lane is None else self.tracks.get(lane) for lane in lanes]
        return Plain(
            table, np.fromiter((-1 if slot is None else slot for slot in slots), np.intp, count), split
        )

    def _part_foreign(
        self,
        table: LaneTable,
        lanes: list[bytes | None],
        slots: list[int | None],
        compared: Compared,
        split: Split,
    ) -> None:
        """Put the lanes on tracks that have an ID whose rank is none of the numbers that others have."""
        if split.numbered is None:
            return
        for row in np.flatnonzero(~split.numbered).tolist():
            lane = lanes[row]
            if lane in table.slots and compared.places[row] is not None:
                self.set_apart(lane)
        slots[:] = [None if lane is None else table.slots.get(lane) for lane in lanes]

    def _load_rows(self, table: LaneTable, lanes: list[bytes], find: Find) -> None:
        """Look up lanes that are not in memory."""
        marks = self._look_up(lanes, find)
        table.add_new([lane for lane in lanes if lane not in marks])
        for lane, mark in marks.items():
            if self._add_row(lane, mark) is None:
                self.tracks[lane] = Track(lane, mark)

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

    def _judge_plain(self, chunk: LastChunk, compared: Compared, plain: Plain) -> None:
        """Judge all records of a chunk: those on plain lanes at once, the others one after the other."""
        for row in plain.unreadable:
            self._judge_unreadable(chunk, row)
            self._leave_track(chunk, row)
        records, slots = plain.records(chunk)
        table = plain.table
        while len(slots):
            before = table.take(slots)
            taken = self._taken(before, records, compared, parts_twins=True)
            if isinstance(taken, Taken):
                odd = self._flying_again(table, records, slots, taken)
                if odd is None:
                    self._fly_plain(chunk, table, PlainRows.of(chunk, slots, before, records), taken)
                    break
            else:
                odd = taken
            self._set_odd_apart(table, chunk, records, slots, odd)
            records, slots = records.without(odd), slots[~odd]
        single = [row for row, track in enumerate(chunk.tracks) if track is not None]
        if single:
            self._judge_rows(chunk, compared, single)

    def _taken(
        self, before: np.ndarray, records: Records, compared: Compared, *, parts_twins: bool
    ) -> Taken | Bools:
        return take_many(
            before,
            records,
            compared.ids,
            depth=self.rule.depth,
            window_ms=self.window.time_ms or 0,
            parts_twins=parts_twins,
        )

    def _set_odd_apart(
        self, table: LaneTable, chunk: LastChunk, records: Records, slots: Places, odd: Bools
    ) -> None:
        """Put the records of odd lanes on tracks."""
        ends = records.ends()
        for at in np.flatnonzero(odd).tolist():
            track = self.set_apart(table.digest(int(slots[at])))
            chunk.put_on(track, records.rows[records.first[at] : ends[at] + 1].tolist())

    def _flying_again(self, table: LaneTable, records: Records, slots: Places, taken: Taken) -> Bools | None:
        """Return in which lanes an ID comes again that one in flight bears; None where that is none."""
        odd = np.zeros(len(slots), np.bool_)
        at = records.at[taken.seen]
        for lane, place in zip(at.tolist(), taken.seen.tolist(), strict=True):
            if table.pending[slots[lane]]:
                odd[lane] |= self._may_fly(int(slots[lane]), records, place)
        return odd if odd.any() else None

    def _may_fly(self, slot: int, records: Records, place: int) -> bool:
        """Whether a record that came before, and whose chunk is not passed, is on this lane and has the rank of the record at ``place``."""
        for each in self._chunks:
            plain = on_tracks(each).plain
            at = None if plain is None else plain.lane_of(slot)
            if plain is None or at is None:
                continue
            start, end = plain.records.at.searchsorted((at, at + 1))
            same = plain.records.low[start:end] == records.low[place]
            if (same & (plain.records.high[start:end] == records.high[place])).any():
                return True
        return False

    def _fly_plain(self, chunk: LastChunk, table: LaneTable, rows: PlainRows, taken: Taken) -> None:
        """Put records in flight, but for those that repeat what is completed."""
        chunk.plain = rows
        table.put(rows.slots, taken.after)
        table.pending[rows.slots] += rows.left
        if len(taken.seen):
            repeats = rows.records.rows[taken.seen]
            chunk.find_duplicates(repeats, taken.seen_offsets, taken.seen_ms, completed=not self.reveals)

    # --- what others completed -----------------------------------------------------------------------------

    def _take_over_plain(self, chunk: LastChunk, compared: Compared, plain: Plain) -> None:
        """Fold completed records into what plain lanes remember; what is not plain about it is left on tracks."""
        records, slots = plain.records(chunk)
        table = plain.table
        while len(slots):
            taken = self._taken(table.take(slots), records, compared, parts_twins=False)
            if isinstance(taken, Taken):
                table.put(slots, taken.after)
                break
            self._set_odd_apart(table, chunk, records, slots, taken)
            records, slots = records.without(taken), slots[~taken]
        # What has a record that nobody can read is written again, as where records are folded one by one.
        unread = {slot for slot in plain.slots[plain.unreadable].tolist() if table.rows["kind"][slot]}
        table.touch(
            np.asarray([*slots.tolist(), *(unread - {*slots.tolist()})], np.intp) if unread else slots
        )
