"""The plain lanes of a partition (`dedup_sdk.last.rows`): a row each, and what of a chunk lies on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.lane.chunk import Chunk
from dedup_sdk.last.many import LONGEST_WINDOW_MS, Places, Records
from dedup_sdk.last.rows import MOST_DEPTH, Rows, payloads_of, row_type
from dedup_sdk.last.rule import LastRule
from dedup_sdk.marks import Int64s, Marks

_FEWEST: Final = 1_024


@dataclass(slots=True)
class PlainRows:
    """The records of a chunk that are on plain lanes.

    ``slots``: the slots of their lanes, ascending; ``before``: the rows of these as they were when the chunk came; ``left``: how many of a lane's records
    the watermark has not passed. A lane that has none left is none of the chunk's any more: its slot may be another's by now.
    ``at_row`` says of each row of the chunk which of these lanes it is on, -1 where it is on none.
    """

    slots: Places
    before: Rows
    left: Int64s
    records: Records
    at_row: Places

    @classmethod
    def of(cls, chunk: Chunk, slots: Places, before: Rows, records: Records) -> PlainRows:
        """Return what has come with a chunk: none of it is passed."""
        at_row = np.full(len(chunk.offsets), -1, np.intp)
        at_row[records.rows] = records.at
        return cls(slots, before, np.bincount(records.at, minlength=len(slots)), records, at_row)

    def lane_of(self, slot: int) -> int | None:
        """Return which of the lanes a slot is, None where the chunk has nothing left of it."""
        at = int(self.slots.searchsorted(slot))
        return at if at < len(self.slots) and self.slots[at] == slot and self.left[at] else None

    def pass_repeat(self, at: int, offset: int, timestamp_ms: int) -> None:
        """Let the watermark pass a record whose ID its lane remembered before."""
        self.left[at] -= 1
        self.before["offset"][at] = offset
        self.before["time"][at] = max(int(self.before["time"][at]), timestamp_ms)

    def rows_of(self, at: int) -> list[int]:
        """Return the rows of one of the lanes, ascending."""
        start, end = self.records.at.searchsorted((at, at + 1))
        rows: list[int] = self.records.rows[start:end].tolist()
        return rows


class LaneTable:
    """Rows of plain lanes, as they will be when all that was judged is completed.

    ``slots``: digest -> where its row is. ``pending``: how many of a lane's records lie above the watermark; ``changed``: whether something of it is not in
    the journal, ``unflushed``: in no sorted file. All three by slot.
    """

    def __init__(self, depth: int) -> None:
        self._type = row_type(depth)
        self.clear()

    def clear(self) -> None:
        """Forget all lanes."""
        self.slots: dict[bytes, int] = {}
        self._free: list[int] = []
        self._used = 0
        self._touched: list[Places] = []
        self.rows: Rows = np.zeros(_FEWEST, self._type)
        self.pending: NDArray[np.int32] = np.zeros(_FEWEST, np.int32)
        self.changed: NDArray[np.bool_] = np.zeros(_FEWEST, np.bool_)
        self.unflushed: NDArray[np.bool_] = np.zeros(_FEWEST, np.bool_)

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def unflushed_count(self) -> int:
        """How many lanes are in the journal, and in no sorted file."""
        return int(np.count_nonzero(self.unflushed[: self._used]))

    def add(self, digest: bytes, row: Rows | None = None) -> int:
        """Take in a lane, by default one of which nothing is remembered; return its slot."""
        slot = self._free.pop() if self._free else self._used
        if slot == self._used:
            self._used += 1
            if slot == len(self.rows):
                self._grow()
        self.slots[digest] = slot
        if row is not None:
            self.rows[slot] = row[0]
        else:
            self.rows["digest"][slot] = np.void(digest)
        return slot

    def add_new(self, digests: list[bytes]) -> None:
        """Take in lanes of which nothing is remembered."""
        start = self._used
        if self._free or start + len(digests) > len(self.rows):
            for digest in digests:
                self.add(digest)
            return
        self._used += len(digests)
        self.slots.update(zip(digests, range(start, self._used), strict=True))
        self.rows["digest"][start : self._used] = np.frombuffer(b"".join(digests), "V16")

    def _grow(self) -> None:
        room = len(self.rows) + len(self.rows) // 2
        for name in ("rows", "pending", "changed", "unflushed"):
            column: NDArray[Any] = getattr(self, name)
            wider = np.zeros(room, column.dtype)
            wider[: len(column)] = column
            setattr(self, name, wider)

    def remove(self, digest: bytes) -> int:
        """Let a lane go; return the slot that it had."""
        slot = self.slots.pop(digest)
        self._free.append(slot)
        self.rows[slot] = np.zeros((), self._type)
        self.pending[slot] = 0
        self.changed[slot] = self.unflushed[slot] = False
        return slot

    def digest(self, slot: int) -> bytes:
        """Return the lane of a slot."""
        digest: bytes = self.rows["digest"][slot].tobytes()
        return digest

    def doubt(self) -> None:
        """Note that records may have been passed that nobody folded, of all lanes that have nothing in flight."""
        landed = (self.pending[: self._used] == 0) & (self.rows["kind"][: self._used] != 0)
        self.rows["known"][: self._used][landed] = 0

    def take(self, slots: Places) -> Rows:
        """Return some rows, as a copy."""
        return self.rows.take(slots)

    def put(self, slots: Places, rows: Rows) -> None:
        """Set some rows."""
        # As bytes: numpy copies fields one by one.
        as_bytes = f"V{self._type.itemsize}"
        self.rows.view(as_bytes)[slots] = rows.view(as_bytes)

    def touch(self, slots: Places) -> None:
        """Note that the watermark passes records of these lanes."""
        self.changed[slots] = self.unflushed[slots] = True
        self._touched.append(slots)

    def take_touched(self) -> Places:
        """Return the slots of the lanes that the watermark changed since the last call, each once."""
        touched, self._touched = self._touched, []
        if not touched:
            return np.empty(0, np.intp)
        taken: list[Places] = []
        for slots in touched:
            changed = slots[self.changed[slots]]
            self.changed[changed] = False
            taken.append(changed)
        return np.concatenate(taken)

    def unflushed_slots(self) -> Places:
        """Return the slots of the lanes that are in no sorted file."""
        return np.flatnonzero(self.unflushed[: self._used])

    def unsettled(self) -> list[bytes]:
        """Return the lanes that have records above the watermark, or something that is not in the journal."""
        slots = np.flatnonzero((self.pending[: self._used] > 0) | self.changed[: self._used])
        return list(map(self.digest, slots.tolist()))


def table_for(rule: LastRule) -> LaneTable | None:
    """Return a table for the lanes of a rule, None where none of them would be plain."""
    window_ms = rule.window.time_ms
    if not rule.order.dense or rule.depth > MOST_DEPTH or window_ms is None or window_ms >= LONGEST_WINDOW_MS:
        return None
    return LaneTable(rule.depth)


def marks_of_rows(rows: Rows) -> Marks:
    """Return the marks of lanes, but for those of which nothing is remembered."""
    kept = np.flatnonzero(rows["kind"])
    if len(kept) < len(rows):
        rows = rows.take(kept)
    return Marks(
        rows["digest"].tobytes(), rows["offset"].copy(), rows["time"].copy(), payloads=payloads_of(rows)
    )
