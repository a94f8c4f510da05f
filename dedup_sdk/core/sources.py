"""The sources of a partition whose IDs are compared: which are in memory, and how they follow the watermark."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from dedup_sdk.core.compared import Compared, late_rows
from dedup_sdk.core.flight import Chunk, Flight, digest_of
from dedup_sdk.core.last_rule import LastRule, SourceState
from dedup_sdk.core.memory import Find
from dedup_sdk.core.reach import Reach
from dedup_sdk.core.seen import Candidate
from dedup_sdk.core.source import ActiveSource, LastNotes, Run, Saved, notes_of
from dedup_sdk.core.source_keys import SourceKeys
from dedup_sdk.marks import Int64s, Marks, cut_digests


class Sources:
    """``active`` are the sources in memory, by their digests; those in ``unflushed`` are in the journal only.

    Memory follows the watermark: what is completed above it becomes durable when it passes.
    """

    def __init__(self, rule: LastRule, keys: SourceKeys, flight: Flight, reach: Reach) -> None:
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
        """Return what a source remembers, of which too little is known where records of it may have been passed since."""
        state = self.rule.restore(*saved)
        if self._reach.since_number is not None and saved.offset < self._reach.since_number:
            state.seen.doubt()
        return state

    def doubt_all(self) -> None:
        """Note that records may have been passed that nobody folded.

        By offset and not by time: by time alone a source that is never silent would be trusted after one window,
        without knowing what it missed.
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
        if len(wanted) == 1:
            notes.source = self.active[wanted.pop()]
        else:
            notes.sources = [None if digest is None else self.active[digest] for digest in digests]

    def look_up(self, digests: list[bytes], find: Find) -> dict[bytes, SourceState]:
        """Return what the store knows of sources that are not in memory."""
        states: dict[bytes, SourceState] = {}
        if not digests:
            return states
        found = find(b"".join(digests), len(digests))
        payloads = found.payloads or [b""] * len(found.indexes)
        for index, offset, timestamp_ms, payload in zip(
            found.indexes, found.offsets, found.timestamps, payloads, strict=True
        ):
            if offset < self._flight.position:
                # Else it says nothing of what comes before it.
                states[digests[index]] = self._restored(Saved(payload, offset, timestamp_ms))
        return states

    # --- single records --------------------------------------------------------------------------------------

    def candidate(self, id_bytes: bytes) -> Candidate:
        """Return an ID with its place."""
        return Candidate(id_bytes, self.rule.order.place(id_bytes))

    def id_at(self, chunk: Chunk, row: int) -> Candidate:
        """Return the ID of a record."""
        return self.candidate(self.keys.split(digest_of(chunk, row)).id_bytes)

    def after(
        self, state: SourceState | None, candidate: Candidate, chunk: Chunk, row: int
    ) -> SourceState | None:
        """Return what a source remembers once this record of it is completed; ``state`` may change in place."""
        timestamp_ms = int(chunk.timestamps[row])
        return self.rule.completed(
            state, candidate, offset=chunk.offsets[row], timestamp_ms=timestamp_ms,
            covered=self._reach.covers(timestamp_ms),
        )  # fmt: skip

    def before(self, source: ActiveSource, offset: int) -> SourceState | None:
        """Return what a source would remember just before ``offset``, were everything completed that was judged."""
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

    # --- what the watermark passes ---------------------------------------------------------------------------

    def complete(self, chunk: Chunk, start: int, end: int) -> None:
        """Fold the records of rows ``[start, end)`` into what their sources remember."""
        notes = notes_of(chunk)
        apart: set[ActiveSource] = set()
        whole: dict[bytes, ActiveSource] = {}
        for source, passing in _passing(notes, start, end).items():
            if source is None or not passing:
                continue
            if passing == source.pending:
                # Everything judged is completed: what lies ahead is known already.
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
        source.pending -= 1
        if source.pending == 0:
            source.complete()
        else:
            source.move_base(self.after(source.base(self.rule), candidate, chunk, row))
            source.let_go(candidate.token, chunk.offsets[row])
        self._changed[source.digest] = self.unflushed[source.digest] = source

    # --- what others completed -------------------------------------------------------------------------------

    def take_over(self, chunk: Chunk, compared: Compared) -> None:
        """Fold completed records into what their sources remember."""
        notes = notes_of(chunk)
        self._take_over(chunk, compared, notes)
        for source in {notes.source, *notes.sources}:
            if source is not None:
                source.complete()
                self._changed[source.digest] = self.unflushed[source.digest] = source

    def _take_over(self, chunk: Chunk, compared: Compared, notes: LastNotes) -> None:
        ahead = None if notes.source is None else notes.source.ahead
        ranks = None
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
                run.start = row + 1
        run.take_to(len(ranks))
        notes.source.pending = 0

    def _take_over_row(self, chunk: Chunk, row: int, compared: Compared) -> None:
        source = notes_of(chunk).source_of(row)
        if source is not None and (source.ahead is None or source.ahead.offset < chunk.offsets[row]):
            source.ahead = self.after(source.ahead, compared.candidate(row), chunk, row)

    def is_alive_throughout(self, state: SourceState, timestamps: Int64s) -> bool:
        """Whether a source is remembered and covered at all these timestamps, each seen from the one before."""
        longest_ms = int(np.diff(timestamps, prepend=state.timestamp_ms).max())
        return self.rule.window.holds(longest_ms, 0) and self._reach.covers(int(timestamps.min()))

    # --- what is kept ----------------------------------------------------------------------------------------

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
                source = self.active[digest] = ActiveSource(digest, self.rule.restore(*saved))
            self.unflushed.setdefault(digest, source)

    def drop_idle(self) -> None:
        """Forget the sources that have nothing in flight: what they remember is stored."""
        self.active = {digest: source for digest, source in self.active.items() if source.pending}


def keys_of(chunk: Chunk) -> list[bytes | None]:
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
