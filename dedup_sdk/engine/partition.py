"""One open partition: its lane (what is decided) joined to its store (what survives)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dedup_sdk.decision import Mark, is_contradicted
from dedup_sdk.engine.claiming import PartitionClaims
from dedup_sdk.engine.counted import Counted
from dedup_sdk.engine.crowding import Crowding
from dedup_sdk.ids import Ids
from dedup_sdk.lane.chunk import (
    APART,
    DONE,
    OFFERED,
    PARKED,
    PARKED_KIND,
    REDELIVERED,
    UNVERIFIED,
    Chunk,
    Place,
)  # fmt: skip
from dedup_sdk.lane.judging import Find
from dedup_sdk.lane.last_lane import LastLane
from dedup_sdk.lane.maker import lane_maker
from dedup_sdk.lane.plan import NOTHING_KNOWN, StartPlan
from dedup_sdk.lane.ranges import Range, merged
from dedup_sdk.lane.unit_chunk import units_of
from dedup_sdk.lane.unit_lane import UnitLane
from dedup_sdk.marks import NO_MARKS, NONE_FOUND, Int64s
from dedup_sdk.observe import Counters, Observer
from dedup_sdk.progress import Coverage
from dedup_sdk.store.protocol import Loaded, PartitionStore
from dedup_sdk.strategy import LastId, Strategy
from dedup_sdk.units.keys import UnitKeys


class Partition(Counted):
    """The engine's hold on one partition. Not thread-safe; its owner takes care of that."""

    def __init__(
        self,
        topic: str,
        partition: int,
        store: PartitionStore,
        strategy: Strategy,
        *,
        counters: Counters,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        bears_full_disk: bool = False,
        claims: PartitionClaims | None = None,
    ) -> None:
        window = strategy.window_of(topic)
        super().__init__(
            topic,
            partition,
            store,
            window,
            strategy.keys,
            counters=counters,
            observers=observers,
            claims=claims,
            bears_full_disk=bears_full_disk,
        )
        self.loaded: Loaded | None = store.load()
        self._make_lane = lane_maker(strategy, window)
        self.gathers = isinstance(self.keys, UnitKeys) and not window.is_off
        self.compares = isinstance(strategy, LastId)
        self.tells_of_singles = not (self.compares or self.gathers)
        """Whether a mark says of each record with its ID what became of it, up to its offset."""
        # Such marks are more than last sightings: a fold of them begins where the history does.
        self.hangs_on_order = not self.tells_of_singles or window.count is not None
        self.forgets = strategy.forgets(topic)
        self._crowding = Crowding(f"{topic}[{partition}]")
        self._clock = clock
        self.begun = True
        self.is_claimed_elsewhere: Callable[[bytes], bool] = _nowhere
        """Whether another partition has records of a unit of that name."""
        self._handed_over: tuple[Range, ...] = ()
        """Offsets that the group completed elsewhere, as only a commit's text tells: they are hidden, and leave their mark, when they are
        read. Until then they count for nothing: the watermark stops before them."""
        self._handed_over_waiting: set[int] = set()
        """Those of them that were read and wait for a record in flight with the same ID."""
        self._handled_from = self._handled_end = -1
        self._read_to = 0
        self.has_failed = False
        """Whether an error that nobody expects left it half-changed; see `note_failure`."""

    # --- opening -------------------------------------------------------------------------------------------------

    def start(self, plan: StartPlan, *, begun: bool = True) -> None:
        """Begin as planned: with the store's marks, or with none.

        ``begun`` false: the group is new, and its history begins with the first record that comes.
        """
        loaded, self.loaded = self.loaded, None
        self.begun = begun
        # What an earlier beginning had to write does not belong to this one.
        self._forget_steps()
        if self.forgets:
            # To begin without marks is what is wanted, so that nothing is in doubt for it.
            plan = replace(
                plan,
                keep=False,
                progress=replace(plan.progress, since_ms=None, since_number=None, floor_number=0),
            )
        if plan.keep and loaded is not None:
            self._lane = self._make_lane(plan.progress, loaded.recent)
            self.store.append(self._lane.progress, NO_MARKS)
            self._note_journaled(loaded.recent)
        else:
            self.store.reset(plan.progress)
            self._lane = self._make_lane(plan.progress, NO_MARKS)
        self._note_found()
        self._note_what_is_missing()
        self._set_clock()
        self._read_to = self.lane.position

    def install(
        self,
        snapshot: str,
        plan: StartPlan,
        *,
        move: bool = False,
    ) -> Iterator[None]:
        """Begin with the marks of a snapshot folder instead, a few milliseconds a step; raises `SnapshotError` if it does not check.

        ``move``: its files are ours and were checked.
        """
        yield from self.store.installing(snapshot, plan.progress, move=move)
        self._forget_steps()
        self.loaded = None
        self._lane = self._make_lane(plan.progress, NO_MARKS)
        self._note_found()
        # What was left out of the snapshot for its age, its maker knows.
        self.lane.note_dropped(self.lane.high)
        self._note_what_is_missing()
        self._set_clock()
        self._read_to = self.lane.position

    def _note_what_is_missing(self) -> None:
        """Let lanes know where a plan begins behind what they remember: they go by offsets, of which it says nothing."""
        if self.compares and self.lane.since_ms == NOTHING_KNOWN:
            self.lane.forget_all()

    @property
    def started(self) -> bool:
        """Whether the lane has begun, so that records may be admitted."""
        return self._lane is not None

    def note_failure(self) -> None:
        """Note that an unexpected error (a bug, not a store's) came out of a call, which may have left this partition half-changed."""
        self.has_failed = True

    def fence(self) -> None:
        """Refuse marks from here on: the partition has another owner. What still comes is counted as stale."""
        self._fenced = True

    def _refuses(self, count: int) -> bool:
        self._counters.stale += count if self._fenced else 0
        return self._fenced

    def skip_to(self, offset: int) -> None:
        """Take everything before ``offset`` for completed without knowing its marks; coverage begins anew, where marks are missed."""
        if not self.forgets:
            self.lane.pass_uncounted(offset - self.lane.high)
            self.lane.forget_all()
        self.fold([], np.empty(0, np.int64), [], offset)

    @property
    def coverage(self) -> Coverage:
        """What is known of the partition."""
        return self.lane.coverage

    @property
    def covered(self) -> bool:
        """Whether the marks know all that the window of the next record could hold, so that a new ID is fresh."""
        return self.lane.covers(self._clock_ms if self._clock_ms >= 0 else self.now_ms())

    def read_from(self, offset: int) -> None:
        """Take note that records are read from here on: only those that came since are known to be the ones that were completed."""
        self._read_to = offset

    @property
    def committable(self) -> int:
        """The offset that the group may commit: everything before it is completed, and was read by this owner or committed before.

        A store may know more than the group has committed, of a log that is another one by now: a broker that was restored from a backup
        has other records there. They have to be read, and compared with the marks, before the group passes them.
        """
        return min(self.lane.high, self._read_to)

    # --- what the group completed elsewhere --------------------------------------------------------------------

    def tell_completed(self, ranges: Iterable[Range], epoch: int | None = None) -> None:
        """Hide what the group completed elsewhere above the watermark, as half-open ranges; only before the first record is admitted.

        ``epoch``: the leader epoch of the last of these records; one of a later epoch is another record. None where nobody says.
        A unit is hidden where all of its records are in the ranges; else it is delivered whole.
        """
        self._handed_over = merged(ranges)
        if self._handed_over:
            self.lane.note_completed_in(self._handed_over[-1][1], epoch)

    def completed_above(self, offset: int) -> tuple[Range, ...]:
        """Return what the group has completed at or above an offset, as half-open ranges, ascending.

        Of what was completed here only records that were read since the partition was taken; see `committable`.
        """
        here = [(start, min(end, self._read_to)) for start, end in self.lane.completed_above(offset)]
        waiting = ((each, each + 1) for each in self._handed_over_waiting)
        ranges = merged([*(each for each in here if each[0] < each[1]), *self._handed_over, *waiting])
        return tuple((max(start, offset), end) for start, end in ranges if end > offset)

    def _hide_handed_over(self, chunk: Chunk) -> None:
        """Complete the records of a chunk that the group completed elsewhere, instead of delivering them."""
        edges = np.asarray(self._handed_over, np.int64).ravel()
        # An offset inside a range has an odd number of edges at or before it.
        inside = edges.searchsorted(chunk.column, side="right") % 2 == 1
        position = chunk.offsets[-1] + 1
        self._handed_over = tuple(
            (max(start, position), end) for start, end in self._handed_over if end > position
        )
        rows = [row for row in np.flatnonzero(inside).tolist() if chunk.states[row] != DONE]
        self._handed_over_waiting.update(chunk.offsets[row] for row in rows)
        self._complete_handed_over([Place(chunk, row) for row in rows if chunk.states[row] == OFFERED], chunk)
        self._handed_over_waiting -= {chunk.offsets[row] for row in rows if chunk.states[row] != PARKED}

    def _complete_handed_over(self, offered: Iterable[Place], admitted: Chunk | None) -> None:
        """Complete those of the records in hand now that the group completed elsewhere: of a chunk that is admitted, and settled units."""
        earlier, self.lane.settled = self.lane.settled, []
        apart = [place for place in earlier if place.chunk.states[place.row] == APART]
        handed_over = [place for place in [*offered, *apart] if self._is_handed_over(place)]
        if handed_over:
            released = self._complete_as_redelivered(handed_over)
            # Verdicts of the chunk are counted with it.
            self.lane.settled = [place for place in self.lane.settled if place.chunk is not admitted]
            self.due += self._settled(released)
        self.lane.settled = earlier

    def _is_handed_over(self, place: Place) -> bool:
        """Whether the group completed a record elsewhere; of a unit, all of it."""
        whole = units_of(place.chunk).get(place.row)
        return all(
            each.offset in self._handed_over_waiting for each in ([place] if whole is None else whole.places)
        )

    def _complete_as_redelivered(self, places: Iterable[Place]) -> list[Place]:
        """Complete records that were offered, and that nobody was given; return what waited for them."""
        rows: dict[int, tuple[Chunk, list[int]]] = {}
        for chunk, row in places:
            chunk.kinds[row] = REDELIVERED
            chunk.reasons.pop(row, None)
            rows.setdefault(id(chunk), (chunk, []))[1].append(row)
        return [place for chunk, each in rows.values() for place in self.lane.complete(chunk, each)]

    def _settled(self, offered: list[Place]) -> list[Place]:
        return super()._settled(self._without_handed_over(offered) if self._handed_over_waiting else offered)

    def _without_handed_over(self, offered: list[Place]) -> list[Place]:
        """Complete those of the records that the group completed elsewhere; return the others, and what waited for these."""
        left: list[Place] = []
        while offered:
            place = offered.pop(0)
            if self._is_handed_over(place):
                offered += self._complete_as_redelivered([place])
            else:
                left.append(place)
        self._handed_over_waiting -= {place.offset for place in self.lane.settled}
        return left

    # --- the way of a batch --------------------------------------------------------------------------------------

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        ids: Ids,
        items: Sequence[Any],
        *,
        discard_unkeyed: bool,
        find: Find | None = None,
    ) -> list[Chunk]:
        """Judge records, ascending by offset; return their chunks in the same order.

        ``find`` takes the place of the store's own. When a look-up raises, nothing was admitted.
        """
        lane = self.lane
        if not self.begun:
            self.begin(offsets[0])
        late: list[Chunk] = []
        if offsets[0] < lane.position:
            cut = int(np.searchsorted(np.asarray(offsets), lane.position))
            late.append(self._late(offsets[:cut], timestamps[:cut], items[:cut]))
            if cut == len(offsets):
                self._read_to = max(self._read_to, offsets[-1] + 1)
                return late
            offsets, timestamps, items = offsets[cut:], timestamps[cut:], items[cut:]
            missing = {index - cut: reason for index, reason in ids.missing.items() if index >= cut}
            ids = Ids(ids.digests[cut:], missing)
        self._know_from(timestamps)
        self._tick(timestamps)
        lane.latest_ms = self.now_ms()
        if isinstance(lane, UnitLane):
            lane.units.elsewhere = self.is_claimed_elsewhere
        chunk = lane.admit(
            offsets,
            timestamps,
            ids.digests,
            ids.missing,
            self.store.find if find is None else find,
            items=items,
            discard_unkeyed=discard_unkeyed,
        )
        self._read_to = offsets[-1] + 1
        if self._handed_over:
            self._hide_handed_over(chunk)
        if self.claims is None:
            self._count(chunk)
        else:
            self.unclaimed.append(chunk)
        if isinstance(lane, UnitLane):
            self._note_due()
            self._crowding.note(lane, lane.latest_ms)
        return [*late, chunk]

    def contradiction(self, offsets: list[int], timestamps: Int64s, ids: Ids) -> int | None:
        """Return the first of some offsets (ascending) that counts as completed and has another record by now; None as a rule.

        Then the log is another one from there on, e.g. that of a broker which was restored from a backup.
        """
        lane, window_ms = self.lane, self.window.time_ms
        if offsets[0] >= lane.position and not lane.has_restored:
            return None
        # A time from the future counts as now, as where marks are dropped for their age.
        newest_ms = min(lane.newest_ms, self.now_ms())
        if isinstance(lane, LastLane) and window_ms is not None:
            return lane.contradiction(
                offsets, timestamps, ids.digests, self.store.find, newest_ms=newest_ms, window_ms=window_ms
            )
        if self.hangs_on_order or window_ms is None or self.forgets:
            # A mark may be gone for its number; or it is a unit's, and tells nothing of single records.
            return None
        rows = [
            row
            for row, offset in enumerate(offsets)
            if ids.digests[row] is not None and offset >= lane.dropped_to and lane.is_restored(offset)
        ]
        digests = [digest for row in rows if (digest := ids.digests[row]) is not None]
        marks = self._marks_of(digests)
        for row, digest in zip(rows, digests, strict=True):
            if is_contradicted(
                offsets[row], int(timestamps[row]), marks.get(digest), newest_ms=newest_ms, since_ms=lane.since_ms,
                window_ms=window_ms,
            ):  # fmt: skip
                return offsets[row]
        return None

    def _marks_of(self, digests: list[bytes]) -> dict[bytes, Mark]:
        """Return the newest mark of each ID, those of records in flight included."""
        asked = list(dict.fromkeys(digests))
        found = self.store.find(b"".join(asked), len(asked)) if asked else NONE_FOUND
        marks = {
            asked[index]: Mark(offset, timestamp_ms)
            for index, offset, timestamp_ms in zip(
                found.indexes, found.offsets, found.timestamps, strict=True
            )
        }
        for digest in asked:
            offset = self.lane.recent.offsets.get(digest, -1)
            if offset >= 0 and (digest not in marks or marks[digest].offset < offset):
                marks[digest] = Mark(offset, 0)
        return marks

    # --- units ---------------------------------------------------------------------------------------------------

    @property
    def units(self) -> UnitLane | None:
        """The lane, where it gathers units and has begun to deliver: what is open in a fold is not waited for."""
        return self._lane if isinstance(self._lane, UnitLane) and self._lane.is_live else None

    def take_due(self) -> list[Place]:
        """Return what got its verdict because a unit became whole or failed, ascending by offset; those offered are to be delivered."""
        due, self.due = self.due, []
        return sorted(due, key=lambda place: place.offset)

    def fail_unit(self, name: bytes, reason: str) -> None:
        """Let an open unit fail; its records are due."""
        lane = self.units
        if lane is not None and not self._refuses(0):
            lane.latest_ms = self.now_ms()
            lane.fail_unit(name, reason)
            self._note_due()

    def overdue_units(self, timeout_s: float, *, at_end: bool) -> list[bytes]:
        """Return the names of units that were begun longer ago than that, counting the time in which there was nothing more to read.

        ``at_end``: whether that is so now.
        """
        lane = self.units
        if lane is None or self._refuses(0):
            return []
        lane.units.tell_time(self.now_ms(), at_end=at_end)
        return lane.units.overdue(int(timeout_s * 1000))

    def _note_due(self) -> None:
        lane = self.lane
        if isinstance(lane, UnitLane):
            lane.due = []
            if self._handed_over_waiting:
                self._complete_handed_over([], None)
            if lane.settled:
                judged = self.judged
                self._settled([])
                self.due += self.judged
                self.judged = judged

    def begin(self, offset: int) -> None:
        """Let a new group's history begin here."""
        self.lane.begin(offset)
        self.begun = True
        # Written before anything can be committed: what the store does not know of would look like a jump.
        self.persist()

    def _set_clock(self) -> None:
        self._clock_ms = min(self.lane.newest_ms, self.now_ms())
        self._note_flush()

    def now_ms(self) -> int:
        """Return the engine's clock, in ms since the epoch."""
        return int(self._clock() * 1000)

    def _know_from(self, timestamps: Int64s) -> None:
        if self.lane.since_ms == NOTHING_KNOWN:
            self.lane.know_from(timestamps.clip(max=self.now_ms()), self._clock_ms)

    def _tick(self, timestamps: Int64s) -> None:
        newest = int(timestamps.max())
        if newest > self._clock_ms:
            # A record from the future counts as now: it must not make everything else look old.
            self._clock_ms = max(self._clock_ms, min(newest, self.now_ms()))

    def _late(self, offsets: list[int], timestamps: Int64s, items: Sequence[Any]) -> Chunk:
        """Judge records below the position: completed ones, ones still in flight, and ones that came out of order."""
        lane = self.lane
        chunk = Chunk(offsets, timestamps, [None] * len(offsets), items)
        chunk.unmarked.update(range(len(offsets)))
        for index, offset in enumerate(offsets):
            if lane.is_completed(offset):
                chunk.finish(index, REDELIVERED)
            elif lane.place(offset) is not None:
                chunk.finish(index, PARKED_KIND)
                chunk.reasons[index] = "in-flight"
            else:
                chunk.kinds[index] = UNVERIFIED
                chunk.reasons[index] = "out-of-order"
        self._count(chunk)
        return chunk

    def handled_since(self, committed: int) -> int | None:
        """Return the first offset, from ``committed`` on, that the application may have ended, None where it ended none there."""
        if self._handled_end <= committed:
            self._handled_from = self._handled_end = -1
            return None
        self._handled_from = max(self._handled_from, committed)
        return self._handled_from

    def _note_handled(self, first: int, last: int) -> None:
        """Note what the application ends, as one range: what lies between counts as handled, too."""
        self._handled_from = first if self._handled_from < 0 else min(self._handled_from, first)
        self._handled_end = max(self._handled_end, last + 1)

    def complete_chunk(self, chunk: Chunk) -> list[Place]:
        """Complete all of a chunk that the application has; return what is to be delivered next."""
        if self._refuses(chunk.open):
            return []
        self._note_handled(chunk.offsets[0], chunk.offsets[-1])
        return self._settled(self.lane.complete_chunk(chunk))

    def complete(
        self,
        offsets: Iterable[int],
        *,
        states: tuple[int, ...] = (OFFERED, APART),
        quietly: bool = False,
        dead_lettered: bool = False,
    ) -> list[Place]:
        """Complete single records that are in one of ``states``; return what is to be delivered next.

        ``quietly``: a record that is not in flight any more is no news. ``dead_lettered``: count them as such; they are completed like any
        other.
        """
        rows: dict[int, tuple[Chunk, list[int]]] = {}
        for offset in offsets:
            if self._refuses(1):
                continue
            place = self.lane.place(offset)
            if place is None or place.chunk.states[place.row] == DONE:
                self._counters.stale += not quietly
                continue
            if place.chunk.states[place.row] not in states:
                continue
            rows.setdefault(id(place.chunk), (place.chunk, []))[1].append(place.row)
        offered: list[Place] = []
        for chunk, indexes in rows.values():
            # One that is named twice ends once.
            self._counters.dead_lettered += len({*indexes}) if dead_lettered else 0
            self._note_handled(chunk.offsets[min(indexes)], chunk.offsets[max(indexes)])
            offered += self.lane.complete(chunk, indexes)
        return self._settled(offered)

    def release(self, offsets: Iterable[int]) -> list[Place]:
        """Hand records back: each is to be delivered again, its attempt counted up."""
        self.judged = []
        offered: list[Place] = []
        for offset in dict.fromkeys(offsets):
            if self._refuses(1):
                continue
            place = self.lane.place(offset)
            again = self.lane.release(place) if place else []
            self._counters.released += len(again)
            self._counters.stale += not again
            offered += again
        return offered

    def fold(self, offsets: list[int], timestamps: Int64s, digests: list[bytes | None], end: int) -> None:
        """Take over ``[high, end)``, completed by the group elsewhere, and write it."""
        lane = self.lane
        if offsets:
            self._know_from(timestamps)
            self._tick(timestamps)
        lane.latest_ms = self.now_ms()
        step = lane.fold(offsets, timestamps, digests, self.store.find, end)
        self._append(step.progress, step.marks)


def _nowhere(_name: bytes) -> bool:
    return False
