"""A run of records of one partition, admitted together and kept as columns until all of them are completed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk.marks import Int64s, Marks
from dedup_sdk.record import Verdict, VerdictKind

Rows = np.ndarray[Any, np.dtype[np.intp]]

KINDS: Final = tuple(VerdictKind)
FRESH, DUPLICATE, REDELIVERED, UNVERIFIED, UNKEYED, PARKED_KIND = range(len(KINDS))

DONE: Final = 0
"""Completed: handled, judged a duplicate, discarded or dead-lettered."""
OFFERED: Final = 1
"""With the application (or on its way to it)."""
PARKED: Final = 2
"""Waits for the record of the same ID that is in flight."""

APART: Final = 3
"""With the application (or on its way to it), and ended one by one: never together with its chunk."""

_DELIVERED: Final = frozenset({VerdictKind.FRESH, VerdictKind.UNVERIFIED, VerdictKind.UNKEYED})
_COMPLETE_OFFERED: Final = bytes([DONE, DONE]) + bytes(range(2, 256))


class Chunk:
    """Columns of ``n`` records, ascending by offset.

    ``kinds[i]`` is an index into `KINDS`, ``states[i]`` one of `DONE`, `OFFERED`, `PARKED`, `APART`; ``saved[i]`` is 1 when the
    completion of record ``i`` is in the key store. ``column`` is ``offsets`` as an array. ``items`` are the caller's own objects (records or messages),
    parallel to the columns. ``unmarked`` are records that leave no mark when completed; ``withheld`` are records without
    an ID that the policy keeps from the application.
    """

    __slots__ = (
        "attempts", "column", "digests", "items", "joined", "kinds", "offsets", "open", "reasons", "saved", "seen", "states",
        "timestamps", "unmarked", "withheld",
    )  # fmt: skip

    def __init__(
        self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], items: Sequence[Any] = ()
    ) -> None:
        count = len(offsets)
        self.offsets = offsets
        self.column = np.fromiter(offsets, np.int64, count)
        self.timestamps = timestamps
        self.digests = digests
        self.joined: bytes | None = None
        self.items = items
        self.kinds = bytearray(count)
        self.states = bytearray(b"\x01") * count
        self.saved = bytearray(count)
        self.open = count
        self.unmarked: set[int] = set()
        self.withheld: set[int] = set()
        self.reasons: dict[int, str] = {}
        self.seen: dict[int, tuple[int, int]] = {}
        self.attempts: dict[int, int] = {}

    def finish(self, index: int, kind: int | None = None) -> None:
        """Complete one record, with the verdict it got if that is only known now."""
        if kind is not None:
            self.kinds[index] = kind
        self.states[index] = DONE
        self.open -= 1

    def find_duplicates(self, rows: Rows, seen: Int64s, seen_ms: Int64s, *, completed: bool) -> None:
        """Call records duplicates of marks with these offsets and timestamps, shapes ``(k,)``; complete them if told."""
        np.frombuffer(self.kinds, np.uint8)[rows] = DUPLICATE
        if completed:
            np.frombuffer(self.states, np.uint8)[rows] = DONE
            self.open -= len(rows)
        hits = rows.tolist()
        self.seen.update(zip(hits, zip(seen.tolist(), seen_ms.tolist(), strict=True), strict=True))
        for row in hits if self.reasons else ():
            self.reasons.pop(row, None)

    def take_whole(self) -> Marks | None:
        """Return the marks of all records if all are completed, leave marks, and none is saved; they count as saved then."""
        if self.open or self.joined is None or self.unmarked or self.saved.count(1):
            return None
        self.saved = bytearray(b"\x01") * len(self.saved)
        return Marks(self.joined, self.column, self.timestamps)

    def finish_offered(self) -> None:
        """Complete every record that was offered with the chunk; those parked or apart stay."""
        self.states = self.states.translate(_COMPLETE_OFFERED)
        self.open = len(self.states) - self.states.count(DONE)

    def first_open(self) -> int:
        """Return the offset of the first record that is not completed; there must be one."""
        return self.offsets[len(self.states) - len(self.states.lstrip(b"\0"))]

    def unsaved(self) -> np.ndarray[Any, np.dtype[np.intp]]:
        """Return the indexes of completed records that the store does not know yet, ascending."""
        states, saved = np.frombuffer(self.states, np.uint8), np.frombuffer(self.saved, np.uint8)
        return np.flatnonzero((states | saved) == 0)

    def done_ranges(self, high: int) -> list[tuple[int, int]]:
        """Return what is completed at or above ``high`` as half-open offset ranges, ascending."""
        return self.ranges_of(np.flatnonzero(np.frombuffer(self.states, np.uint8) == DONE), high)

    def ranges_of(self, rows: Rows, high: int) -> list[tuple[int, int]]:
        """Return some rows (ascending) that lie at or above ``high`` as half-open offset ranges, ascending."""
        if not len(rows) or self.offsets[rows[-1]] < high:
            return []
        breaks = np.flatnonzero(np.diff(rows) != 1)
        firsts = rows[np.concatenate(([0], breaks + 1))].tolist()
        lasts = rows[np.concatenate((breaks, [len(rows) - 1]))].tolist()
        ranges = ((self.offsets[f], self.offsets[t] + 1) for f, t in zip(firsts, lasts, strict=True))
        return [(start, end) for start, end in ranges if end > high]

    def row_of(self, offset: int) -> int | None:
        """Return the row of an offset, None when it is not in this chunk."""
        row = bisect_left(self.offsets, offset)
        return row if row < len(self.offsets) and self.offsets[row] == offset else None

    def verdict(self, index: int) -> Verdict:
        """Return the verdict of one record as the public value."""
        kind = KINDS[self.kinds[index]]
        seen_offset, seen_ms = self.seen.get(index, (None, None))
        return Verdict(
            kind=kind,
            deliver=kind in _DELIVERED and index not in self.withheld,
            reason=self.reasons.get(index, ""),
            seen_offset=seen_offset,
            age_ms=None if seen_ms is None else int(self.timestamps[index]) - seen_ms,
            attempt=self.attempts.get(index, 1),
        )


class Place(NamedTuple):
    """One record: its chunk and its row there."""

    chunk: Chunk
    row: int

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.chunk.offsets[self.row]


def digest_of(chunk: Chunk, index: int) -> bytes:
    """Return the digest of a record that has one."""
    digest = chunk.digests[index]
    if digest is None:
        raise AssertionError(f"record {chunk.offsets[index]} has no ID and was to be judged by it")
    return digest
