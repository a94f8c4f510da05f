"""The sources of a partition whose IDs are compared: their memories, and how they follow the watermark.

Of one source, while some of its records are in flight:

base
    its memory below the watermark
ahead
    its memory once every judged record is completed, in offset order
in_flight
    token of an ID (`Candidate.token`) -> offset of the newest record above the watermark that bears it, in flight or
    completed out of order
pending
    how many of its records lie above the watermark and take part in the fold
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np

from dedup_sdk._core.compared import Compared, late_rows
from dedup_sdk._core.flight import Chunk, Flight, digest_of
from dedup_sdk._core.last_rule import LastRule, SourceState
from dedup_sdk._core.reach import KnownRange
from dedup_sdk._core.seen import Candidate
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._decision import Mark
from dedup_sdk._marks import Find, Int64s, Marks, cut_digests


class Saved(NamedTuple):
    """A source as a store keeps it: the bytes of its memory, offset and timestamp (ms) of its last completed record."""

    payload: bytes
    offset: int
    timestamp_ms: int


NONE_IN_FLIGHT: Final = MappingProxyType[Any, int]({})
"""Shared by all sources that have nothing in flight: nearly all are such, and a dictionary each would take more."""


class ActiveSource:
    """The state of one source.

    ``is_complete``: nothing is pending, and ``ahead`` is the base. Else the base is kept as bytes, which are hardly
    ever read: the source is written after each batch anyway, so that nothing is copied for it. ``ahead`` is the fold
    of all judged records, in offset order, so that it becomes the base as it is. ``mixed``: ``ahead`` has begun anew
    with a record in flight, so that it does not have all IDs in flight. ``covered``: the base knew everything that
    could matter when it began, and nothing in flight began the source anew.
    """

    __slots__ = (
        "_base", "_offset", "_payload", "_timestamp_ms", "ahead", "covered", "digest", "in_flight", "is_complete",
        "mixed", "pending",
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
        """Begin a record that is in flight: from here on ``ahead`` changes, and the base stays as it is."""
        if self.is_complete:
            # Before `ahead` changes in place: the store must get the base, which nobody can tell afterwards.
            if self._payload is None and self.ahead is not None:
                self.saved()
            self._base = None
            self.is_complete = False
            self.covered = self.ahead is None or self.ahead.covered

    def put_in_flight(self, token: Any, offset: int) -> None:
        """Note that the newest record above the watermark that bears an ID is this one."""
        self.writable()[token] = offset

    def join_fold(self) -> None:
        """Note a record that takes part in the fold."""
        self.pending += 1

    def take(self, token: Any, offset: int) -> None:
        """Note a record that takes part in the fold, and is the newest that bears its ID."""
        self.pending += 1
        self.writable()[token] = offset

    def start_with(self, state: SourceState, token: Any, offset: int) -> None:
        """Begin with a first record, which nothing was remembered before."""
        self.begin()
        self.ahead = state
        self.take(token, offset)

    def look_ahead(self, state: SourceState | None, *, mixes: bool) -> None:
        """Set the memory that the source will have once a record in flight is completed.

        ``mixes``: beside others in flight the source begins anew with it, or cannot compare it.
        """
        self.ahead = state
        self.mixed = self.mixed or mixes
        self.covered = self.covered and state is not None and state.covered

    def fold(self, state: SourceState | None) -> None:
        """Set the memory of the source after a record that is completed."""
        self.ahead = state

    def pass_one(self) -> bool:
        """Note that the watermark passes one record; return whether nothing is pending any more."""
        self.pending -= 1
        return self.pending == 0

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
        """Set the memory below the watermark, while records above it are pending."""
        self._base, self._payload = base, None

    def doubt(self) -> None:
        """Note that records of the source may have been passed that nobody folded.

        Not while some are in flight: then the source is in memory, and correct.
        """
        if self.is_complete and self.ahead is not None:
            self.ahead.seen.doubt()
            self._payload = None

    def complete(self) -> None:
        """Note that nothing is pending: the memory ahead is the base now."""
        self.is_complete = True
        self._base = self._payload = None
        self.mixed = False
        self.pending = 0
        self.in_flight = NONE_IN_FLIGHT


class LastNotes:
    """The notes of a chunk whose IDs are compared.

    ``sighted`` are the timestamps of the records themselves; those of the chunk are the ones by which sources are
    judged, below zero also for a record from the future. ``source`` is the source of all records, or None where they
    have several: then ``sources`` has each record's, None where it belongs to none; ``unmarked`` are the chunk's.

    With a fallback lookup ``others`` has each record's digest there (None: none), and ``stored``, by row, the mark
    that the store had of it when the record came.
    """

    __slots__ = ("others", "sighted", "source", "sources", "stored", "unmarked")

    def __init__(self, sighted: Int64s, unmarked: set[int]) -> None:
        self.sighted = sighted
        self.unmarked = unmarked
        self.source: ActiveSource | None = None
        self.sources: list[ActiveSource | None] = []
        self.others: list[bytes | None] = []
        self.stored: dict[int, Mark] = {}

    def know_others(self, others: list[bytes | None]) -> None:
        """Note the digests of the records' fallback lookup."""
        self.others = others

    def belong_to(self, sources: list[ActiveSource | None]) -> None:
        """Note the source of each record."""
        known = set(sources) - {None}
        if len(known) == 1:
            self.source = known.pop()
        else:
            self.sources = sources

    def leave_source(self, row: int) -> None:
        """Note that a record belongs to no source; the caller has it leave no mark."""
        if self.sources:
            self.sources[row] = None

    def note_stored(self, row: int, mark: Mark) -> None:
        """Note the mark that the store has of a record's other ID."""
        self.stored[row] = mark

    def source_of(self, row: int) -> ActiveSource | None:
        """Return the source of one record, None where it belongs to none."""
        if self.source is not None:
            return None if row in self.unmarked else self.source
        return self.sources[row]


def notes_of(chunk: Chunk) -> LastNotes:
    """Return the notes of a chunk whose IDs are compared."""
    notes = chunk.notes
    if not isinstance(notes, LastNotes):
        raise TypeError(f"records from {chunk.offsets[0]} were not compared")
    return notes


class Run:
    """The records of a chunk from row ``start`` on, which are not taken in yet.

    ``newer`` says of each row whether its record is newer than all before; the others change nothing where they are
    passed over.
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
        """Whether the source will remember the ID of this row when all before it is taken in.

        ``newest`` is the highest rank of those.
        """
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
        """Take in the newer records up to row ``end``, and pass over the rest."""
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
        # The late records, too: this count is compared with all records that the watermark passes.
        self._source.pending += end - start

    def skip_to(self, row: int) -> None:
        """Note that the caller has taken in the records before a row."""
        self.start = row


class Sources:
    """``active`` are the sources in memory, by their digests; those in ``unflushed`` are in the journal only.

    Memory follows the watermark: records completed above it become durable when it passes.
    """

    def __init__(self, rule: LastRule, keys: SourceKeys, flight: Flight, reach: KnownRange) -> None:
        self.rule = rule
        self.keys = keys
        self.active: dict[bytes, ActiveSource] = {}
        self.unflushed: dict[bytes, ActiveSource] = {}
        self._flight = flight
        self._reach = reach
        self._changed: dict[bytes, ActiveSource] = {}

    def load(self, marks: Marks) -> None:
        """Take the marks of a journal; of each source the last one counts."""
        newest: dict[bytes, Saved] = {}
        for digest, saved in saved_sources(marks):
            known = newest.get(digest)
            if known is None or known.offset <= saved.offset:
                newest[digest] = saved
        for digest, saved in newest.items():
            self.active[digest] = self.unflushed[digest] = ActiveSource(digest, self._restored(saved))

    def _restored(self, saved: Saved) -> SourceState:
        """Return the state of a source from a store, in doubt where records of it may have been passed since."""
        state = self.rule.restore(*saved)
        if self._reach.since_number is not None and saved.offset < self._reach.since_number:
            state.seen.doubt()
        return state

    def doubt_all(self) -> None:
        """Note that records may have been passed that nobody folded.

        By offset and not by time: by time alone a source that is never silent would be trusted after one window,
        without knowing the records that it missed.
        """
        # Sources have no ranks: of those whose last record lies below this offset too little is known.
        self._reach.doubt_below(self._flight.high)
        for source in self.active.values():
            source.doubt()

    # --- which source a record belongs to --------------------------------------------------------------------

    def find(self, chunk: Chunk, find: Find) -> None:
        """Note the source of every record; those that are not in memory are looked up, all at once."""
        notes, digests = notes_of(chunk), self.keys.sources_of(keys_of(chunk))
        wanted = {digest for digest in digests if digest is not None}
        unknown = [digest for digest in wanted if digest not in self.active]
        states = self.look_up(unknown, find)
        for digest in unknown:
            self.active[digest] = ActiveSource(digest, states.get(digest))
        notes.belong_to([None if digest is None else self.active[digest] for digest in digests])

    def look_up(self, digests: list[bytes], find: Find) -> dict[bytes, SourceState]:
        """Return the states that the store has of sources that are not in memory."""
        states: dict[bytes, SourceState] = {}
        if not digests:
            return states
        found = find(b"".join(digests), len(digests))
        payloads = found.payloads or [b""] * len(found.indexes)
        for index, offset, timestamp_ms, payload in zip(
            found.indexes, found.offsets, found.timestamps, payloads, strict=True
        ):
            if offset < self._flight.position:
                # A later mark says nothing of the records before it.
                states[digests[index]] = self._restored(Saved(payload, offset, timestamp_ms))
        return states

    # --- single records --------------------------------------------------------------------------------------

    def candidate(self, id_bytes: bytes) -> Candidate:
        """Return an ID with its place."""
        return Candidate(id_bytes, self.rule.order.sort_key(id_bytes))

    def id_at(self, chunk: Chunk, row: int) -> Candidate:
        """Return the ID of a record."""
        return self.candidate(self.keys.split(digest_of(chunk, row)).id_bytes)

    def after(
        self, state: SourceState | None, candidate: Candidate, chunk: Chunk, row: int
    ) -> SourceState | None:
        """Return the state of a source once this record of it is completed; ``state`` may change in place."""
        timestamp_ms = int(chunk.timestamps[row])
        return self.rule.completed(
            state, candidate, offset=chunk.offsets[row], timestamp_ms=timestamp_ms,
            covered=self._reach.covers(timestamp_ms),
        )  # fmt: skip

    def before(self, source: ActiveSource, offset: int) -> SourceState | None:
        """Return the state that a source would have just before ``offset``, if every judged record were completed."""
        base = source.base(self.rule)
        state = None if base is None else base.copy()
        for chunk in self._flight.chunks:
            notes = notes_of(chunk)
            for row in range(bisect_left(chunk.offsets, self._flight.high), len(chunk.offsets)):
                if chunk.offsets[row] >= offset:
                    return state
                if notes.source_of(row) is source:
                    state = self.after(state, self.id_at(chunk, row), chunk, row)
        return state

    # --- records that the watermark passes -------------------------------------------------------------------

    def complete(self, chunk: Chunk, start: int, end: int) -> None:
        """Fold the records of rows ``[start, end)`` into their sources."""
        notes = notes_of(chunk)
        apart: set[ActiveSource] = set()
        whole: dict[bytes, ActiveSource] = {}
        for source, passing in _passing(notes, start, end).items():
            if source is None or not passing:
                continue
            if passing == source.pending:
                # Every judged record is completed: the state ahead is the new base.
                source.complete()
                whole[source.digest] = source
            else:
                apart.add(source)
        self._changed.update(whole)
        self.unflushed.update(whole)
        for row in range(start, end) if apart else ():
            source = notes.source_of(row)
            if source in apart and source is not None:
                self._complete_row(source, chunk, row)

    def _complete_row(self, source: ActiveSource, chunk: Chunk, row: int) -> None:
        candidate = self.id_at(chunk, row)
        if source.pass_one():
            source.complete()
        else:
            source.move_base(self.after(source.base(self.rule), candidate, chunk, row))
            source.let_go(candidate.token, chunk.offsets[row])
        self._changed[source.digest] = self.unflushed[source.digest] = source

    # --- records completed elsewhere -------------------------------------------------------------------------

    def take_over(self, chunk: Chunk, compared: Compared) -> None:
        """Fold completed records into their sources."""
        notes = notes_of(chunk)
        self._take_over(chunk, compared, notes)
        for source in {notes.source, *notes.sources}:
            if source is not None:
                source.complete()
                self._changed[source.digest] = self.unflushed[source.digest] = source

    def _take_over(self, chunk: Chunk, compared: Compared, notes: LastNotes) -> None:
        ahead = None if notes.source is None else notes.source.ahead
        ranks = None
        # No record may be folded twice: if the source is ahead of some, each row is compared with its offset.
        if ahead is not None and chunk.offsets and ahead.offset < chunk.offsets[0] and not chunk.unmarked:
            is_alive = self.is_alive_throughout(ahead, chunk.timestamps)
            ranks = compared.ranks(ahead.seen.origin) if is_alive else None
        if ranks is None or ahead is None or notes.source is None:
            for row in range(len(chunk.offsets)):
                self._take_over_row(chunk, row, compared)
            return
        late, newest = late_rows(ranks, ahead.seen.last_rank)
        run = Run(chunk, notes.source, ahead, compared.ids, ranks)
        run.leave_out(late)
        for row, above in zip(late, newest, strict=True):
            if not run.remembers(row, above):
                run.take_to(row)
                self._take_over_row(chunk, row, compared)
                run.skip_to(row + 1)
        run.take_to(len(ranks))

    def _take_over_row(self, chunk: Chunk, row: int, compared: Compared) -> None:
        source = notes_of(chunk).source_of(row)
        if source is not None and (source.ahead is None or source.ahead.offset < chunk.offsets[row]):
            source.fold(self.after(source.ahead, compared.candidate(row), chunk, row))

    def is_alive_throughout(self, state: SourceState, timestamps: Int64s) -> bool:
        """Whether a source is remembered and covered at all these timestamps, each seen from the one before."""
        # Where timestamps run backwards, or are missing, the step is too long: then the slow way decides.
        longest_ms = int(np.diff(timestamps, prepend=state.timestamp_ms).max())
        return self.rule.window.holds(longest_ms, 0) and self._reach.covers(int(timestamps.min()))

    # --- marks to keep ---------------------------------------------------------------------------------------

    def take_changed(self) -> dict[bytes, ActiveSource]:
        """Return the sources that the watermark changed since the last call."""
        changed, self._changed = self._changed, {}
        return changed

    def take_unflushed(self) -> dict[bytes, ActiveSource]:
        """Return the sources that are in the journal only: for a flush."""
        unflushed, self.unflushed = self.unflushed, {}
        return unflushed

    def put_back(self, unflushed: dict[bytes, ActiveSource]) -> None:
        """Note that sources are in the journal only, after all."""
        self.unflushed = unflushed | self.unflushed

    def put_back_marks(self, marks: Marks) -> None:
        """Take the marks of sources back that nobody could store."""
        for digest, saved in saved_sources(marks):
            source = self.active.get(digest)
            if source is None:
                source = self.active[digest] = ActiveSource(digest, self._restored(saved))
            self.unflushed.setdefault(digest, source)

    def drop_idle(self) -> None:
        """Forget the sources that have nothing in flight: the store has them."""
        self.active = {digest: source for digest, source in self.active.items() if source.pending}


def keys_of(chunk: Chunk) -> Sequence[bytes | None]:
    """Return the source key of each record that belongs to a source, None of the others."""
    if not chunk.unmarked:
        return chunk.digests
    return [None if row in chunk.unmarked else key for row, key in enumerate(chunk.digests)]


def source_marks(sources: Iterable[ActiveSource]) -> Marks:
    """Return the marks of sources, as they are below the watermark: the memory of each is the payload.

    The key of such a mark is the digest of the source. So journal, files, expiry, snapshots and fingerprints are those
    of any marks.
    """
    digests: list[bytes] = []
    payloads: list[bytes] = []
    offsets: list[int] = []
    times: list[int] = []
    for source in sources:
        payload, offset, timestamp_ms = source.saved()
        if payload is not None:
            digests.append(source.digest)
            payloads.append(payload)
            offsets.append(offset)
            times.append(timestamp_ms)
    return Marks(
        b"".join(digests), np.asarray(offsets, np.int64), np.asarray(times, np.int64), payloads=payloads
    )


def saved_sources(marks: Marks) -> Iterator[tuple[bytes, Saved]]:
    """Yield each mark of a source, in their order."""
    columns = zip(marks.payloads or [], marks.offsets.tolist(), marks.timestamps.tolist(), strict=True)
    yield from zip(cut_digests(marks.digests), map(Saved._make, columns), strict=True)


def _passing(notes: LastNotes, start: int, end: int) -> dict[ActiveSource | None, int]:
    """Return how many records of each source are passed."""
    if notes.source is None:
        return Counter(notes.sources[start:end])
    return {notes.source: end - start - sum(start <= row < end for row in notes.unmarked)}
