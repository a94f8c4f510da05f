"""One source of IDs that are compared, while some of its records are in flight.

base
    what the source remembers below the watermark.
ahead
    what it will remember once everything that was judged is completed, in offset order.
in_flight
    token of an ID (`Candidate.token`) -> offset of the newest record above the watermark that bears it, in flight or completed out of order.
pending
    how many of its records lie above the watermark and take part in the fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dedup_sdk.core.flight import Chunk
from dedup_sdk.core.last_rule import LastRule, SourceState
from dedup_sdk.decision import Mark
from dedup_sdk.marks import Int64s


class Saved(NamedTuple):
    """What a store keeps of a source: the bytes of its memory, offset and timestamp (ms) of its last completed record."""

    payload: bytes
    offset: int
    timestamp_ms: int


NONE_IN_FLIGHT: Final = MappingProxyType[Any, int]({})
"""What all sources share that have nothing in flight: nearly all of many, and a dictionary of each would be the larger part of it."""


class ActiveSource:
    """The state of one source.

    ``is_complete``: nothing is pending, and ``ahead`` is the base. Else the base is kept as bytes, which nearly nobody reads: what a batch
    leaves behind is written anyway, so that nothing is copied for it. ``ahead`` is the fold of everything judged, in offset
    order, so that it becomes the base as it is. ``mixed``: ``ahead`` has begun anew with a record in flight, so that
    it does not hold all that is in_flight. ``covered``: the base knew all that could matter when it began, and nothing in flight began the
    source anew.
    """

    __slots__ = (
        "_base", "_offset", "_payload", "_timestamp_ms", "ahead", "covered", "digest", "in_flight", "is_complete", "mixed", "pending",
    )  # fmt: skip

    def __init__(self, digest: bytes, mark: SourceState | None) -> None:
        self.digest = digest
        self.ahead = mark
        self._base: SourceState | None = None
        self._payload: bytes | None = None
        self._offset = self._timestamp_ms = 0
        self.is_complete = True
        self.covered = mark is None or mark.covered
        self.mixed = False
        self.in_flight: dict[Any, int] | MappingProxyType[Any, int] = NONE_IN_FLIGHT
        self.pending = 0

    def saved(self) -> tuple[bytes | None, int, int]:
        """Return the base as a store keeps it (`Saved`), but with no payload where nothing is remembered."""
        if self._payload is None:
            base = self.ahead if self.is_complete else self._base
            if base is not None:
                self._payload = base.seen.encode()
                self._offset, self._timestamp_ms = base.offset, base.timestamp_ms
        return self._payload, self._offset, self._timestamp_ms

    def base(self, rule: LastRule) -> SourceState | None:
        """Return the base, to be read only."""
        if self.is_complete:
            return self.ahead
        if self._base is None and self._payload is not None:
            self._base = rule.restore(self._payload, self._offset, self._timestamp_ms)
        return self._base

    def begin(self) -> None:
        """Let ``ahead`` go its own way from the base."""
        if self.is_complete:
            if self._payload is None and self.ahead is not None:
                self.saved()
            self._base = None
            self.is_complete = False
            self.covered = self.ahead is None or self.ahead.covered

    def put_in_flight(self, token: Any, offset: int) -> None:
        """Note that the newest record above the watermark that bears an ID is this one."""
        self.writable()[token] = offset

    def writable(self) -> dict[Any, int]:
        """Return ``in_flight``, to be written to."""
        if not isinstance(self.in_flight, dict):
            self.in_flight = {}
        return self.in_flight

    def let_go(self, token: Any, offset: int) -> None:
        """Note that this record is no longer the newest above the watermark that bears its ID, if it was."""
        if self.in_flight.get(token) == offset:
            del self.writable()[token]

    def move_base(self, base: SourceState | None) -> None:
        """Set what is remembered below the watermark, while something above it is pending."""
        self._base, self._payload = base, None

    def doubt(self) -> None:
        """Note that records of the source may have been passed that nobody folded; not while some are in flight: then it is in memory as it is."""
        if self.is_complete and self.ahead is not None:
            self.ahead.seen.doubt()
            self._payload = None

    def complete(self) -> None:
        """Note that nothing is pending, and what lies ahead is the base now."""
        self.is_complete = True
        self._base = self._payload = None
        self.mixed = False
        self.pending = 0
        self.in_flight = NONE_IN_FLIGHT


class LastNotes:
    """What comparing keeps with the records of a chunk.

    ``sighted`` are the timestamps of the records themselves; those of the chunk are what sources go by, below zero also for what lies in the
    future. ``source`` is the source of all records, or None where they have several: then ``sources`` has each record's, None where it
    belongs to none; ``unmarked`` are the chunk's.

    Where there is a second opinion ``others`` has the digests by which it knows them (None: not), ``stored`` what the store said of these when they
    came, by row.
    """

    __slots__ = ("others", "sighted", "source", "sources", "stored", "unmarked")

    def __init__(self, sighted: Int64s, unmarked: set[int]) -> None:
        self.sighted = sighted
        self.unmarked = unmarked
        self.source: ActiveSource | None = None
        self.sources: list[ActiveSource | None] = []
        self.others: list[bytes | None] = []
        self.stored: dict[int, Mark] = {}

    def source_of(self, row: int) -> ActiveSource | None:
        """Return the source of one record, None where it belongs to none."""
        if self.source is not None:
            return None if row in self.unmarked else self.source
        return self.sources[row]


def notes_of(chunk: Chunk) -> LastNotes:
    """Return what comparing keeps with the records of a chunk."""
    notes = chunk.notes
    if not isinstance(notes, LastNotes):
        raise TypeError(f"records from {chunk.offsets[0]} were not compared")
    return notes


class Run:
    """The records of a chunk from row ``start`` on, which are not taken in yet.

    ``newer`` says of each row whether its record is newer than all before; what is not in it changes nothing where it is passed over.
    """

    __slots__ = ("_ahead", "_chunk", "_ids", "_ranks", "_source", "newer", "start")

    def __init__(
        self, chunk: Chunk, source: ActiveSource, ahead: SourceState, ids: Sequence[Any], ranks: Sequence[Any]
    ) -> None:
        self._chunk = chunk
        self._source = source
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
        """Whether the source will remember the ID of this row when all before it is taken in, of which the highest rank is ``newest``."""
        taken = self.newer.count(1, self.start, row)
        return self._ahead.seen.remembers(self._ranks[row], newest, taken)

    def sighting_before(self, row: int) -> tuple[int, int]:
        """Return the offset of the source's last record before a row, and its newest timestamp (ms) there."""
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
        self._source.pending += end - start
