"""The verdict of a record whose ID is compared with the last ones of its source, given the records in flight."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress, repeat
from typing import Any, Final, NamedTuple

from dedup_sdk._core.compared import Compared, late_rows
from dedup_sdk._core.fallback import FallbackIds
from dedup_sdk._core.flight import DONE, DUPLICATE, KINDS, Chunk, Flight, RecordRef
from dedup_sdk._core.last_rule import Judgement, SourceState
from dedup_sdk._core.reach import KnownRange
from dedup_sdk._core.seen import Candidate, IdStatus, token_of
from dedup_sdk._core.sources import ActiveSource, LastNotes, Run, Sources, notes_of
from dedup_sdk._decision import decide
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window
from dedup_sdk.orders import SortKey
from dedup_sdk.orders._sort_key import ONLY_ORIGIN

DUPLICATE_IN_FLIGHT: Final = Judgement(VerdictKind.DUPLICATE)
"""The verdict of a record whose ID was borne by one that is completed."""


class Waiter(NamedTuple):
    """A record that waits for another one; ``token`` is that of its ID where the other bears the same, else None."""

    place: RecordRef
    token: Any


class LastJudge:
    """Gives records their verdicts, or has them wait on the offset of one in flight.

    ``fallback`` is the window of the fallback lookup, which decides where comparing cannot.
    """

    def __init__(
        self,
        flight: Flight,
        reach: KnownRange,
        sources: Sources,
        fallback_ids: FallbackIds,
        fallback: Window | None,
    ) -> None:
        self._flight = flight
        self._reach = reach
        self._sources = sources
        self._fallback_ids = fallback_ids
        self._fallback = fallback
        self._rule = sources.rule
        self._window = sources.rule.window

    def judge_all(self, chunk: Chunk, compared: Compared) -> None:
        """Judge the records of a chunk: of one source as columns, where nothing is in doubt there."""
        notes = notes_of(chunk)
        if notes.others:
            # One after the other: the mark of one may decide the next.
            for row, offset in enumerate(chunk.offsets):
                self.judge_rows(chunk, compared, range(row, row + 1))
                self._fallback_ids.begin(notes.others[row], offset)
            return
        source = notes.source
        if source is not None and source.ahead is not None and self._is_plain(source, source.ahead, chunk):
            ranks = compared.ranks(source.ahead.seen.origin)
            if ranks is not None:
                self._judge_columns(chunk, source, source.ahead, compared, ranks)
                return
        self.judge_rows(chunk, compared, range(len(chunk.offsets)))

    # --- columns ---------------------------------------------------------------------------------------------

    def _is_plain(self, source: ActiveSource, ahead: SourceState, chunk: Chunk) -> bool:
        """Whether all records of a chunk are of one source, which is remembered and covered at all their times.

        Nor may the source have begun anew while something was in flight (``mixed``): then a record in flight may be
        above its last ID.
        """
        return (
            not chunk.unmarked
            and not source.mixed
            and ahead.covered
            and self._sources.is_alive_throughout(ahead, chunk.timestamps)
        )

    def _judge_columns(
        self, chunk: Chunk, source: ActiveSource, ahead: SourceState, compared: Compared, ranks: list[Any]
    ) -> None:
        """Judge records that all are of the source's origin: the newest so far at once, the others one by one.

        A record newer than all before is fresh, which is the verdict that a chunk begins with. A repeated ID changes
        nothing in the source, so that the run of newer ones goes on around it. A late ID that was not seen is judged by
        itself, once all before it is taken in.
        """
        late, newest = late_rows(ranks, ahead.seen.last_rank)
        tokens, offsets = compared.tokens(), chunk.offsets
        source.begin()
        run = Run(chunk, source, ahead, compared.ids, ranks)
        run.leave_out(late)
        in_flight = source.writable()
        # All of the chunk beforehand: no ID that is newer than all before comes earlier in it.
        in_flight.update(zip(compress(tokens, run.newer), compress(offsets, run.newer), strict=True))
        for row, above in zip(late, newest, strict=True):
            token = tokens[row]
            leader = in_flight.get(token)
            if leader is not None and self._is_duplicate_in_flight(chunk, row, leader):
                self._wait(chunk, row, leader, token)
            elif leader is None and run.remembers(row, above):
                # Not in flight, so that one was completed.
                self._repeat(chunk, row, run.sighting_before(row))
            else:
                run.take_to(row)
                self.judge_rows(chunk, compared, range(row, row + 1))
                run.skip_to(row + 1)
        run.take_to(len(ranks))

    def _is_duplicate_in_flight(self, chunk: Chunk, row: int, leader: int) -> bool:
        """Whether a record of the same ID, which is in flight, hides this one."""
        leading = chunk.row_of(leader)
        place = self._flight.place(leader) if leading is None else RecordRef(chunk, leading)
        if place is None or place.chunk.states[place.row] == DONE:
            return False
        return self._window.holds(int(chunk.timestamps[row] - notes_of(place.chunk).sighted[place.row]), 0)

    # --- one record after the other --------------------------------------------------------------------------

    def judge_rows(self, chunk: Chunk, compared: Compared, rows: Sequence[int]) -> None:
        """Judge one record after the other, ascending; nearly all are new, which takes the shortest way."""
        notes, timestamps = notes_of(chunk), _of_rows(chunk.timestamps.tolist(), rows)
        # The window of the oldest record reaches back farthest.
        covered = self._reach.covers(min(timestamps))
        if compared.numbers is not None:
            self._judge_numbers(chunk, compared, compared.numbers, rows, timestamps, covered=covered)
            return
        window_ms = self._window.time_ms or 0
        # A record in flight may be released, and the source known by it alone: then the fallback lookup must decide.
        lenient = self._fallback is None
        for row, timestamp_ms in zip(rows, timestamps, strict=True):
            source = notes.source_of(row)
            if source is None:
                continue
            candidate = compared.candidate(row)
            ahead, place = source.ahead, candidate.place
            if (
                covered
                and (lenient or source.covered)
                and ahead is not None
                and ahead.seen.known is None
                and place is not None
                and timestamp_ms - ahead.timestamp_ms <= window_ms
                and token_of(place) not in source.in_flight
            ):
                source.begin()
                status = ahead.seen.take(candidate)
                # Any other status has left `ahead` as it was, so that `_judge` may begin from there.
                if status <= IdStatus.SEEN:
                    if status is IdStatus.SEEN:
                        # Not in flight, so that one was completed.
                        self._repeat(chunk, row, (ahead.offset, ahead.timestamp_ms))
                        source.join_fold()
                    else:
                        source.take(token_of(place), chunk.offsets[row])
                    ahead.pass_by(chunk.offsets[row], timestamp_ms)
                    continue
            self._judge(chunk, row, source, candidate)

    def _judge_numbers(
        self,
        chunk: Chunk,
        compared: Compared,
        numbers: list[int],
        rows: Sequence[int],
        timestamps: list[int],
        *,
        covered: bool,
    ) -> None:
        """Judge one record after the other whose IDs are numbers, with no more work for each than must be.

        Where there are many sources this is done for every record. The first of a source takes a short way, too.
        """
        notes = notes_of(chunk)
        window_ms, rule, seen = self._window.time_ms or 0, self._rule, IdStatus.SEEN
        lenient = self._fallback is None
        sources: Iterable[Any] = (
            _of_rows(notes.sources, rows) if notes.sources else repeat(notes.source, len(rows))
        )
        columns = zip(
            rows, sources, _of_rows(compared.ids, rows), _of_rows(numbers, rows), _of_rows(chunk.offsets, rows),
            timestamps, strict=True,
        )  # fmt: skip
        for row, source, id_bytes, number, offset, timestamp_ms in columns:
            in_flight, ahead = source.in_flight, source.ahead
            if covered and number not in in_flight:
                if ahead is None:
                    if not source.pending:
                        seen_first = rule.begin(_numbered(id_bytes, number), knows_all=True)
                        source.start_with(SourceState(seen_first, offset, timestamp_ms), number, offset)
                        continue
                elif (
                    timestamp_ms - ahead.timestamp_ms <= window_ms
                    and ahead.seen.known is None
                    and (lenient or source.covered)
                ):
                    if source.is_complete:
                        source.begin()
                    status = ahead.seen.take_number(id_bytes, number)
                    if status <= seen:
                        if status is seen:
                            # Not in flight, so that one was completed.
                            self._repeat(chunk, row, (ahead.offset, ahead.timestamp_ms))
                            source.join_fold()
                        else:
                            source.take(number, offset)
                        ahead.pass_by(offset, timestamp_ms)
                        continue
            self._judge(chunk, row, source, compared.candidate(row))

    def _judge(self, chunk: Chunk, row: int, source: ActiveSource, candidate: Candidate) -> None:
        """Judge one record, and have it take part in the fold of its source."""
        if self._rule.malformed(candidate):
            _leave_source(chunk, row)
            blocker = self.judge_unreadable(chunk, row)
            if blocker is not None:
                self._wait(chunk, row, blocker)
            return
        offset, timestamp_ms = chunk.offsets[row], int(chunk.timestamps[row])
        source.begin()
        source.join_fold()
        token = candidate.token
        leader = self._leader(source, token, offset, timestamp_ms)
        if leader is not None and not self._flight.is_open(leader):
            self.decide(chunk, row, DUPLICATE_IN_FLIGHT, self.sighting(leader))
        elif leader is not None:
            self._wait(chunk, row, leader, token)
        else:
            blocker = self._judge_by(source.ahead, chunk, row, source, candidate)
            if blocker is not None:
                self._wait(chunk, row, blocker)
        mixes = bool(source.in_flight) and (
            self._rule.alive(source.ahead, timestamp_ms) is None
            or self._rule.status(source.ahead, candidate, timestamp_ms) is IdStatus.UNCOMPARABLE
        )
        # Whatever the verdict: the memory of a source depends on completed records only.
        source.look_ahead(self._sources.after(source.ahead, candidate, chunk, row), mixes=mixes)
        if leader is None:
            source.put_in_flight(token, offset)

    def judge_again(self, chunk: Chunk, row: int, source: ActiveSource) -> int | None:
        """Judge a record that waited; return the offset of one that it has to wait for now."""
        candidate = self._sources.id_at(chunk, row)
        offset, token = chunk.offsets[row], candidate.token
        ahead = self._leader(source, token, offset, int(chunk.timestamps[row]))
        if ahead is not None and self._flight.is_open(ahead):
            return ahead
        if ahead is not None:
            self.decide(chunk, row, DUPLICATE_IN_FLIGHT, self.sighting(ahead))
            return None
        before = self._sources.before(source, offset)
        blocker = self._judge_by(before, chunk, row, source, candidate)
        if blocker is None and chunk.states[row] != DONE:
            source.put_in_flight(token, offset)
        return blocker

    def _judge_by(
        self, state: SourceState | None, chunk: Chunk, row: int, source: ActiveSource, candidate: Candidate
    ) -> int | None:
        """Give a record its verdict by the given state of its source; or return the offset of a record to wait on."""
        timestamp_ms = int(chunk.timestamps[row])
        rule, lenient = self._rule, self._fallback is None
        status = rule.status(state, candidate, timestamp_ms)
        is_old = status in (IdStatus.BELOW, IdStatus.SEEN)
        if source.pending > 1 and (is_old or not source.covered):
            # Records in flight may be released, so the state ahead is provisional, and may have raised the floor: the
            # completed records tell more.
            base = source.base(rule)
            known = rule.status(base, candidate, timestamp_ms)
            if known is IdStatus.SEEN or self._may_be_lenient(status, source, candidate, base, timestamp_ms):
                status, lenient = known, False
            elif is_old and known is not status:
                blocker = self._last_open(source, chunk.offsets[row])
                if blocker is not None:
                    return blocker
        alive = rule.alive(state, timestamp_ms)
        covered = (
            self._reach.covers(timestamp_ms)
            and (lenient or source.covered)
            and (alive is None or alive.covered)
        )
        judgement = rule.judge(status, covered=covered)
        return self._pronounce(
            chunk, row, judgement, None if state is None else (state.offset, state.timestamp_ms)
        )

    def _may_be_lenient(
        self,
        status: IdStatus,
        source: ActiveSource,
        candidate: Candidate,
        base: SourceState | None,
        timestamp_ms: int,
    ) -> bool:
        """Whether an ID below the floor may be judged by the completed records alone.

        That does no harm where no fallback lookup would be asked, and it knows less than the state ahead.
        """
        return (
            status is IdStatus.BELOW
            and self._rule.below_floor == "deliver"
            and self._fallback is None
            # Otherwise the base lacks records completed since, or before.
            and candidate.token not in source.in_flight
            and (base is None or self._rule.alive(base, timestamp_ms) is not None)
        )

    # --- who waits for whom ------------------------------------------------------------------------------------

    def _leader(self, source: ActiveSource, token: Any, offset: int, timestamp_ms: int) -> int | None:
        """Return the offset of the record above the watermark that this one repeats, inside the window."""
        return self._repeated(source.in_flight.get(token), offset, timestamp_ms, self._window)

    def _repeated(self, leader: int | None, offset: int, timestamp_ms: int, window: Window) -> int | None:
        """Return the offset of a record above the watermark if it comes before this one, inside a window."""
        # A record that waited is judged again when later ones have come, which decide nothing of it.
        place = None if leader is None or leader >= offset else self._flight.place(leader)
        if place is None or not window.holds(timestamp_ms - int(notes_of(place.chunk).sighted[place.row]), 0):
            return None
        return leader

    def _last_open(self, source: ActiveSource, before: int) -> int | None:
        """Return the last offset in flight of a source below ``before``."""
        # The records are searched: of several that bear one ID, a window apart, only the newest is in ``in_flight``.
        for chunk in reversed(self._flight.chunks):
            notes: LastNotes = notes_of(chunk)
            for row in reversed(range(bisect_left(chunk.offsets, before) if chunk.open else 0)):
                if chunk.states[row] != DONE and notes.source_of(row) is source:
                    return chunk.offsets[row]
        return None

    def _wait(self, chunk: Chunk, row: int, leader: int, token: Any = None) -> None:
        """Have a record wait on one in flight; ``token`` is that of its ID, where both bear the same.

        Where nothing is hidden, it is called a duplicate of that record instead.
        """
        if not self._flight.shows_duplicates:
            chunk.hold(row, "in-flight")
            self._flight.wait(leader, Waiter(RecordRef(chunk, row), token))
            return
        chunk.judge(row, DUPLICATE, "in-flight", seen=self.sighting(leader))

    # --- verdicts ----------------------------------------------------------------------------------------------

    def judge_unreadable(self, chunk: Chunk, row: int) -> int | None:
        """Give a record whose ID the order cannot read its verdict; or return the offset of a record to wait on."""
        return self._pronounce(chunk, row, self._rule.judge(IdStatus.MALFORMED, covered=True), None)

    def _pronounce(
        self, chunk: Chunk, row: int, judgement: Judgement, seen: tuple[int, int] | None
    ) -> int | None:
        """Give a record its verdict, by the fallback lookup if in doubt.

        Or return the offset of a record to wait on.
        """
        notes = notes_of(chunk)
        digest = notes.others[row] if notes.others else None
        if judgement.kind is VerdictKind.UNVERIFIED and digest is not None and self._fallback is not None:
            offset, timestamp_ms = chunk.offsets[row], int(notes.sighted[row])
            leaders = [
                each
                for each in self._fallback_ids.in_flight.get(digest, ())
                if self._repeated(each, offset, timestamp_ms, self._fallback) is not None
            ]
            # One that is in flight, or waits itself, decides; else the last that was completed.
            leader = max(leaders, key=lambda each: (self._flight.is_open(each), each), default=None)
            if leader is not None and self._flight.is_open(leader):
                return leader
            if leader is not None:
                judgement, seen = DUPLICATE_IN_FLIGHT, self.sighting(leader)
            else:
                mark = self._fallback_ids.last(digest, notes.stored.get(row))
                since_ms, reaches_ms = self._reach.since_ms, timestamp_ms - (self._fallback.time_ms or 0)
                kind = decide(
                    offset, timestamp_ms, mark, keyed=True, low=offset, high=offset, done=(), window=self._fallback,
                    covered=since_ms is None or since_ms <= reaches_ms,
                )  # fmt: skip
                if kind is not VerdictKind.UNVERIFIED:
                    judgement = Judgement(kind)
                if kind is VerdictKind.DUPLICATE and mark is not None:
                    seen = mark.offset, mark.timestamp_ms
        self.decide(chunk, row, judgement, seen)
        return None

    def sighting(self, leader: int) -> tuple[int, int] | None:
        """Return the offset and the timestamp (ms) of a record that another one repeats."""
        place = self._flight.place(leader)
        return None if place is None else (leader, int(notes_of(place.chunk).sighted[place.row]))

    def decide(self, chunk: Chunk, row: int, judgement: Judgement, seen: tuple[int, int] | None) -> None:
        """Give a record its verdict."""
        kind, reason = judgement
        if kind is not VerdictKind.DUPLICATE:
            chunk.judge(row, KINDS.index(kind), reason)
            chunk.unhold(row)
            return
        chunk.judge(row, DUPLICATE, reason, seen=seen)
        if not self._flight.shows_duplicates:
            chunk.finish(row)

    def _repeat(self, chunk: Chunk, row: int, seen: tuple[int, int]) -> None:
        """Call a record a duplicate by its source, whose last record had this offset and timestamp (ms)."""
        chunk.judge(row, DUPLICATE, seen=seen)
        if not self._flight.shows_duplicates:
            chunk.finish(row)


def _leave_source(chunk: Chunk, row: int) -> None:
    """Take a record out of the fold: nothing of it will be remembered."""
    chunk.leave_no_mark([row])
    notes_of(chunk).leave_source(row)


def _of_rows(column: list[Any], rows: Sequence[int]) -> list[Any]:
    """Return the values of a column at some rows."""
    return column[rows.start : rows.stop] if isinstance(rows, range) else [column[row] for row in rows]


def _numbered(id_bytes: bytes, number: int) -> Candidate:
    return Candidate(id_bytes, SortKey(ONLY_ORIGIN, number))
