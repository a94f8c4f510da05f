"""The memory that compares IDs with the last ones of their source, in the order of the IDs.

source
    the records whose IDs are compared with each other: the partition, or one producer in it
fallback lookup
    IDs that are looked up where comparing cannot decide; each completed record leaves a mark for it
    (`dedup_sdk._core.fallback`)
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np

from dedup_sdk._core.compared import Compared
from dedup_sdk._core.fallback import FallbackIds
from dedup_sdk._core.flight import SINGLE, Chunk, Flight, RecordRef
from dedup_sdk._core.last_judge import DUPLICATE_IN_FLIGHT, LastJudge, Waiter
from dedup_sdk._core.last_rule import NO_TIME_MS, LastRule
from dedup_sdk._core.memory import LastRecord, Live, Taken, Written
from dedup_sdk._core.reach import KnownRange
from dedup_sdk._core.source_keys import SourceKeys
from dedup_sdk._core.sources import ActiveSource, LastNotes, Sources, keys_of, notes_of, source_marks
from dedup_sdk._core.state import PartitionState
from dedup_sdk._decision import Mark
from dedup_sdk._marks import (
    NO_MARKS,
    NONE_FOUND,
    NOTHING_KNOWN,
    Find,
    Int64s,
    Marks,
    Progress,
    join_marks,
    select_marks,
    take_digests,
)
from dedup_sdk._window import Window


class LastMemory:
    """`dedup_sdk._core.memory.Memory` of sources; the digests of records are their source keys (`SourceKeys`).

    It follows the watermark. Records wait on the offset of one in flight. ``fallback`` is the window of a fallback
    lookup, None without one.

    The memory of a source is a fold over its completed records in offset order; dead letters take part, and so do
    duplicates, which change nothing. A record that was completed above the watermark is folded when the watermark
    passes it. So the memory does not depend on the order of completion, and a rebuild gives the same. A last ID that
    moved with completion would put a record that is still in flight below the floor. The price: after a crash,
    records completed above the watermark come again. To write their IDs into ``done`` would avoid that, but would
    put every ID into the journal.

    A source cannot be set back: the offsets of its IDs are not kept. If a group is set back, its sources are folded
    again from ``low``, and no window limits that fold. Where it begins later, too little is known of the sources.
    """

    def __init__(
        self,
        rule: LastRule,
        keys: SourceKeys,
        progress: Progress,
        recent: Marks = NO_MARKS,
        *,
        fallback: Window | None = None,
    ) -> None:
        longest_ms = max(rule.window.time_ms or 0, 0 if fallback is None else fallback.time_ms or 0)
        self.rule = rule
        self.keys = keys
        self.flight = Flight(progress, in_order=True)
        self.reach = KnownRange(rule.window, progress.known, longest_ms=longest_ms)
        self.sources = Sources(rule, keys, self.flight, self.reach)
        self.fallback_ids = FallbackIds()
        self._fallback = fallback
        self.last_judge = LastJudge(self.flight, self.reach, self.sources, self.fallback_ids, fallback)
        self.flight.watch(passing=self._pass)
        looked_up, sources = _parted(recent)
        self.fallback_ids.restore(looked_up)
        self.sources.load(sources)
        if self.reach.since_ms == NOTHING_KNOWN:
            # Sources depend on offsets, which the progress does not have where it begins behind their last records.
            self.forget_all()

    @property
    def committed_low(self) -> int:
        """See `Memory`."""
        return self.flight.low

    @property
    def exact_from(self) -> int:
        """See `Memory`."""
        return 0

    def note_inexact_below(self, offset: int) -> None:
        """See `Memory`."""

    @property
    def written_since_ms(self) -> int | None:
        """See `Memory`."""
        return self.reach.since_ms

    @property
    def recent_count(self) -> int:
        """How many sources are in memory, and IDs of the fallback lookup."""
        return len(self.sources.active) + len(self.fallback_ids.recent)

    @property
    def looked_up(self) -> int:
        """How many sources in memory, at least, are neither in the journal nor in flight.

        Records whose ID could not be read name them.
        """
        unchanged = len(self.sources.active) - len(self.sources.unflushed)
        return max(0, unchanged - self.flight.in_flight) if unchanged else 0

    def forget_all(self) -> None:
        """See `Memory`. The sources stay, but some of their completed records may be missing from them."""
        self.reach.forget_all()
        self.sources.doubt_all()

    def pass_uncounted(self, count: int) -> None:
        """See `Memory`. These records are folded into no source."""
        if count > 0:
            self.sources.doubt_all()

    # --- records that come ---------------------------------------------------------------------------------

    def asks_for(self, digests: Iterable[bytes | None]) -> Iterable[bytes | None]:
        """Return the sources that records with these keys have looked up, and the digests of their fallback lookup."""
        keys = list(digests)
        sources = {each for each in self.keys.sources_of(keys) if each not in self.sources.active}
        return [*sources, *self.keys.others_of(keys)]

    def look_up(
        self, chunk: Chunk, missing: dict[int, str], find: Find, *, discard: bool, now_ms: int
    ) -> Compared:
        """See `Memory`."""
        _note(chunk, now_ms)
        chunk.judge_unkeyed(missing, discard=discard)
        # Asked before anything changes: an order of the user's may raise.
        compared = Compared(self.rule.order, self.keys.ids_of(keys_of(chunk)))
        # If the look-up after this one raises, the sources found here stay: the store says the same of each.
        self.sources.find(chunk, find)
        if self._fallback is not None:
            self._look_others_up(chunk, find)
        return compared

    def _look_others_up(self, chunk: Chunk, find: Find) -> None:
        """Look up the marks that the fallback lookup has of the records."""
        notes, others = notes_of(chunk), self.keys.others_of(keys_of(chunk))
        rows = [row for row, digest in enumerate(others) if digest is not None]
        asked = [digest for digest in others if digest is not None]
        found = find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        for index, offset, timestamp_ms in zip(found.indexes, found.offsets, found.timestamps, strict=True):
            notes.note_stored(rows[index], Mark(offset, timestamp_ms))
        notes.know_others(others)

    def judge(self, chunk: Chunk, known: Compared) -> None:
        """See `Memory`."""
        self.last_judge.judge_all(chunk, known)

    def contradiction(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        *,
        now_ms: int,
    ) -> int | None:
        """See `Memory`. Nothing is known below the floor of a source."""
        flight, reach = self.flight, self.reach
        newest_ms = min(reach.newest_ms, now_ms)
        window_ms = self.rule.window.time_ms or 0
        remembered_ms = max(newest_ms - window_ms, 0 if reach.since_ms is None else reach.since_ms)
        rows = [
            row
            for row, offset in enumerate(offsets)
            if digests[row] is not None
            and flight.low <= offset < flight.high
            and timestamps[row] >= remembered_ms
        ]
        sources = [self.keys.sources_of([digests[row]])[0] for row in rows]
        active = self.sources.active
        unknown = [each for each in dict.fromkeys(sources) if each is not None and each not in active]
        stored = self.sources.look_up(unknown, find)
        for row, digest in zip(rows, sources, strict=True):
            if digest is None:
                continue
            source = active.get(digest)
            state = stored.get(digest) if source is None else source.base(self.rule)
            [id_bytes] = self.keys.ids_of([digests[row]])
            candidate = self.sources.candidate(id_bytes or b"")
            if self.rule.malformed(candidate) or (state is not None and not state.covered):
                continue
            if state is None or state.offset < offsets[row]:
                return offsets[row]
            if state.seen.lacks(candidate):
                return offsets[row]
        return None

    # --- records that end ----------------------------------------------------------------------------------

    def complete(self, chunk: Chunk, rows: Iterable[int] | None) -> list[RecordRef]:
        """See `Memory`."""
        ended = chunk.offsets
        if rows is None:
            chunk.finish_offered()
        else:
            ended = [chunk.offsets[row] for row in chunk.finish_open(rows)]
        flight = self.flight
        offered: list[RecordRef] = []
        if flight.waiting:
            # They are judged by the records below them, so before the watermark passes these.
            awaited = [offset for offset in ended if offset in flight.waiting]
            over = deque(sorted(offset for offset in awaited if not flight.is_open(offset)))
            while over:
                for place in self._settle(over.popleft()):
                    if place.chunk.states[place.row] == SINGLE:
                        offered.append(place)
                    elif place.offset in flight.waiting:
                        over.append(place.offset)
        flight.advance(chunk)
        flight.sort_settled()
        return sorted(offered, key=lambda place: place.offset)

    def _settle(self, leader: int) -> list[RecordRef]:
        """Judge the records that waited on one that has ended; return those that wait on no other."""
        settled: list[RecordRef] = []
        judge, seen = self.last_judge, self.last_judge.sighting(leader)
        for place, token in self.flight.take_waiters(leader):
            chunk, row = place
            source = notes_of(chunk).source_of(row)
            blocker: int | None = None
            if source is None:
                blocker = judge.judge_unreadable(chunk, row)
            elif token is not None and source.in_flight.get(token) == leader:
                # Completed, and still the one whose ID this one bears: as found out when it began to wait.
                judge.decide(chunk, row, DUPLICATE_IN_FLIGHT, seen)
            else:
                blocker = judge.judge_again(chunk, row, source)
            if blocker is not None:
                self.flight.wait(blocker, Waiter(place, None))
                continue
            settled.append(place)
            if chunk.states[row] != SINGLE:
                self.flight.note_dirty(chunk)
        self.flight.settle(settled)
        return settled

    def together(self, place: RecordRef) -> list[RecordRef]:
        """See `Memory`."""
        return [place]

    def _pass(self, chunks: list[Chunk], high: int) -> None:
        """Fold the records that the watermark passes into their sources."""
        for chunk in chunks:
            # `high` is still the old watermark: the flight calls this before the move.
            start, end = bisect_left(chunk.offsets, self.flight.high), bisect_left(chunk.offsets, high)
            if start < end:
                self.reach.note_completed(int(chunk.timestamps[start:end].max()))
                self.sources.complete(chunk, start, end)
                self._pass_others(chunk, start, end)

    def _pass_others(self, chunk: Chunk, start: int, end: int) -> None:
        """Have completed records leave a mark for the fallback lookup."""
        notes = notes_of(chunk)
        if not notes.others:
            return
        # Not the chunk's timestamps, which records from the future lack: a mark has its record's own time.
        timestamps = notes.sighted[start:end].tolist()
        for digest, offset, timestamp_ms in zip(
            notes.others[start:end], chunk.offsets[start:end], timestamps, strict=True
        ):
            if digest is not None:
                self.fallback_ids.complete(digest, Mark(offset, timestamp_ms))

    # --- marks to keep -------------------------------------------------------------------------------------

    def marks(self) -> Written | None:
        """See `Memory`. A mark for each source that the watermark changed."""
        self.flight.forget_dirty()
        changed, looked_up = self.sources.take_changed(), self.fallback_ids.take_step()
        return Written(_joined(changed, looked_up), []) if changed or looked_up.count else None

    def take_recent(self, clock_ms: int, find: Find) -> Taken:
        """See `Memory`. Sources that have nothing in flight are forgotten here."""
        unflushed = self.sources.take_unflushed()
        looked_up = self.fallback_ids.take_recent(self._waited_for())
        marks = _joined(unflushed, looked_up)
        if self.rule.window.time_ms is not None and marks.count:
            horizon = self.reach.horizon_ms(clock_ms)
            live = marks.timestamps >= horizon
            aged = np.flatnonzero(~live)
            if aged.size:
                try:
                    hidden = find(take_digests(marks.digests, aged), aged.size).indexes
                except BaseException:
                    self.sources.put_back(unflushed)
                    self.fallback_ids.restore(looked_up)
                    raise
                live[aged[hidden]] = True
                self.reach.forgot_before(horizon)
            if not live.all():
                marks = select_marks(marks, live)
        self.sources.drop_idle()
        return Taken(marks)

    def _waited_for(self) -> set[bytes]:
        """Return the digests by which waiting records are judged later, and of which the store had no mark yet."""
        found = (
            notes_of(place.chunk).others[place.row : place.row + 1]
            for queue in self.flight.waiting.values()
            for place, _ in queue
        )
        return {digest for others in found for digest in others if digest is not None}

    def put_back(self, marks: Marks) -> None:
        """See `Memory`."""
        looked_up, sources = _parted(marks)
        self.fallback_ids.restore(looked_up)
        self.sources.put_back_marks(sources)

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(self, chunk: Chunk, find: Find, live: Live, end: int, *, now_ms: int) -> LastRecord | None:
        """See `Memory`."""
        del live, end
        offsets, timestamps, keys = chunk.offsets, chunk.timestamps, chunk.digests
        _note(chunk, now_ms)
        chunk.leave_no_mark(row for row, key in enumerate(keys) if key is None)
        compared = Compared(self.rule.order, self.keys.ids_of(keys))
        self.sources.find(chunk, find)
        self.sources.take_over(chunk, compared)
        if self._fallback is not None:
            notes_of(chunk).know_others(self.keys.others_of(keys))
            self._pass_others(chunk, 0, len(offsets))
        return (offsets[-1], int(timestamps[-1]), keys[-1]) if offsets else None

    def folded(self, chunk: Chunk) -> Marks:
        """See `Memory`."""
        del chunk
        return _joined(self.sources.take_changed(), self.fallback_ids.take_step())


def open_last(
    rule: LastRule,
    keys: SourceKeys,
    progress: Progress,
    recent: Marks = NO_MARKS,
    *,
    fallback: Window | None = None,
) -> PartitionState:
    """Return the state of a partition whose IDs are compared: its progress, and the recent marks beside it."""
    return PartitionState(LastMemory(rule, keys, progress, recent, fallback=fallback))


def _note(chunk: Chunk, now_ms: int) -> None:
    """Set the timestamps by which sources judge a chunk: a record from the future has none."""
    timestamps = chunk.timestamps
    chunk.attach_notes(LastNotes(timestamps, chunk.unmarked))
    if len(timestamps) and int(timestamps.max()) > now_ms:
        chunk.replace_timestamps(np.where(timestamps > now_ms, NO_TIME_MS, timestamps))


def _joined(sources: dict[bytes, ActiveSource], looked_up: Marks) -> Marks:
    """Return the marks of sources, and those that are looked up."""
    marks = [source_marks(sources.values())] if sources else []
    return join_marks([*marks, looked_up] if looked_up.count else marks)


def _parted(marks: Marks) -> tuple[Marks, Marks]:
    """Return the marks that are looked up, and those of sources: these bear a payload."""
    bears = np.asarray([bool(payload) for payload in marks.payloads or [b""] * marks.count], np.bool_)
    return select_marks(marks, ~bears), select_marks(marks, bears)
