"""One open partition: its state in memory (verdicts), its store on disk (marks), and the gates that records pass.

step
    the marks of newly completed records, and the progress that belongs to them: one atomic write to the store's journal
flush
    recent marks become a sorted file of the store, and the journal before them is dropped; it goes on in steps of a few
    milliseconds (`Writer.flush_step`)
disk_full
    the store's disk is full: steps stay in memory, and are written when there is room (`Writer.write_again`). Commits
    may go on meanwhile: records that a store lacks, up to the committed offset, are read from the topic again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import compress
from operator import attrgetter, is_not, itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from dedup_sdk._core.flight import (
    DONE,
    DUPLICATE,
    FRESH,
    HELD,
    HELD_KIND,
    KINDS,
    OFFERED,
    REDELIVERED,
    SINGLE,
    UNVERIFIED,
    Chunk,
    Flight,
    RecordRef,
    digest_of,
)
from dedup_sdk._core.lookup import LookupMemory
from dedup_sdk._core.memory import Memory
from dedup_sdk._core.ranges import Range, Ranges, before_offset, from_offset, merged
from dedup_sdk._core.reach import StartPlan
from dedup_sdk._core.state import PartitionState
from dedup_sdk._engine.gates import Gate
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._marks import NO_MARKS, Coverage, Find, Int64s, Marks, Progress, join_marks
from dedup_sdk._masking import shown
from dedup_sdk._observe import Counters, Observer, VerdictEvent, of_partition
from dedup_sdk._store.manifest import Manifest
from dedup_sdk._store.protocol import Loaded, PartitionStore
from dedup_sdk._strategy import Terms
from dedup_sdk._window import Window, length_text
from dedup_sdk.errors import StoreUnavailableError
from dedup_sdk.ids import Ids

G = TypeVar("G", bound=Gate)

logger = logging.getLogger("dedup_sdk")

_stands_still = attrgetter("stands_still")


class AnotherLog(NamedTuple):
    """A log that was replaced: from ``first_offset`` on its records are others; None if that offset is unknown."""

    first_offset: int | None


class Run(NamedTuple):
    """Some rows of a chunk, ascending."""

    chunk: Chunk
    rows: Sequence[int]


class Partition:
    """One open partition of an engine. Not thread-safe.

    ``flight`` and ``memory`` exist once the partition has ``started``. ``judged``: the held-back records that got their
    verdict in the last `complete`, duplicates included. ``due``: the held-back records that got their verdict outside
    of `complete`; `take_due` empties the list. ``begun``: the group's history has a first offset. ``has_failed``: see
    `note_failure`.
    ``has_offered``: a record came that was not hidden at once. ``own_counters``: the totals of this partition.
    """

    flight: Flight
    memory: Memory
    state: PartitionState

    def __init__(
        self,
        topic: str,
        partition: int,
        store: PartitionStore,
        terms: Terms,
        *,
        counters: Counters,
        observers: Sequence[Observer],
        clock: Callable[[], float],
        tolerates_full_disk: bool = False,
        gates: Iterable[Gate] = (),
        all_partitions: Callable[[], Iterable[Partition]] = tuple,
        is_in_doubt: Callable[[], bool] = bool,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.store = store
        self.terms = terms
        self.keys, self.window, self.ephemeral = terms.keys, terms.window, terms.ephemeral
        self.depends_on_order, self.marks_single_ids = terms.depends_on_order, terms.marks_single_ids
        self.gates: list[Gate] = list(gates)
        self.writer = Writer(
            store,
            self.window,
            counters,
            topic,
            partition,
            gates=self.gates,
            tolerates_full_disk=tolerates_full_disk,
            is_in_doubt=is_in_doubt,
        )
        self.verdicts = VerdictCounter(topic, partition, counters, observers)
        self.loaded: Loaded | None = store.load()
        """The content of the store that the partition begins with; see `begin_with`."""
        self._stored = self.loaded
        self.started = False
        self.begun = True
        self.has_failed = self.has_offered = False
        self.judged: list[RecordRef] = []
        self.due: list[RecordRef] = []
        self._counters, self.own_counters = counters, of_partition(counters, topic, partition)
        self._clock = clock
        self._own_gates = list(self.gates)
        self._all_partitions = all_partitions
        self._handled_from = self._handled_end = -1
        self._read_to = 0

    # --- opening -------------------------------------------------------------------------------------------------

    def begin_with(self, loaded: Loaded | None) -> None:
        """Begin with this part of the store's content, or with nothing: the rest belongs to another log."""
        self.loaded = loaded

    def start(self, plan: StartPlan, *, begun: bool = True) -> None:
        """Start as planned: with the store's marks, or with none.

        ``begun``: False for a new group, whose history begins with the first record that comes.
        """
        loaded, stored = self.loaded, self._stored
        self.loaded = self._stored = None
        self.begun = begun
        self.writer.drop_flush()
        if self.ephemeral:
            # Without marks by design, so that no verdict is in doubt for their absence.
            progress = replace(
                plan.progress,
                known=replace(plan.progress.known, since_ms=None, since_number=None, floor_number=0),
            )
            plan = replace(plan, keep=False, progress=progress)
        if plan.keep and loaded is not None:
            self._begin(plan.progress, loaded.recent)
            # No write if the store has the same progress already.
            if (progress := self.state.progress) != loaded.progress or loaded is not stored:
                self.store.append(progress, NO_MARKS)
        else:
            self.store.reset(plan.progress)
            self._begin(plan.progress)

    def install_steps(
        self, snapshot: str, plan: StartPlan, *, manifest: Manifest, move: bool = False
    ) -> Iterator[None]:
        """Start with the marks of a snapshot folder instead; each step takes a few milliseconds.

        ``move``: move its files instead of copying them; they were checked. ``manifest``: as in
        `PartitionStore.install_steps`. Raises `SnapshotError` for a damaged snapshot.
        """
        # A flush of what the store has now must not go on between the steps.
        self.writer.drop_flush()
        # The snapshot's maker left out marks for their age.
        known = replace(plan.progress.known, dropped_to=plan.progress.high)
        progress = replace(plan.progress, known=known)
        yield from self.store.install_steps(snapshot, progress, move=move, manifest=manifest)
        self.loaded = self._stored = None
        self._begin(progress)

    def _begin(self, progress: Progress, recent: Marks = NO_MARKS) -> None:
        self.state = self.terms.open(progress, recent)
        self.flight, self.memory = self.state.flight, self.state.memory
        more = self.terms.gates(self.state) if self.terms.gates is not None else ()
        self.gates[:] = [*self._own_gates, *more]
        for gate in self.gates:
            gate.enter(self, self._all_partitions)
        self.state.memory.reach.start_stream_time(self.now_ms())
        self.writer.begin(self.state, journaled=recent)
        self._read_to = self.flight.position
        self.started = True

    def begin(self, offset: int) -> None:
        """Begin a new group's history at this offset."""
        self.flight.begin(offset)
        self.begun = True
        # Written before any commit: a commit that the store does not know of would look like a jump of the group.
        self.writer.persist()

    def gate(self, kind: type[G]) -> G | None:
        """Return the gate of a class, None if it has none."""
        return next((gate for gate in self.gates if isinstance(gate, kind)), None)

    # --- coverage and progress -----------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Return the engine's clock, in ms since the epoch."""
        return int(self._clock() * 1000)

    @property
    def coverage(self) -> Coverage:
        """The part of the log that the marks cover."""
        return self.state.coverage

    @property
    def covered(self) -> bool:
        """Whether the marks cover the whole window of the next record, so that an unknown ID is fresh."""
        stream_time_ms = self.memory.reach.stream_time_ms
        return self.memory.reach.covers(stream_time_ms if stream_time_ms >= 0 else self.now_ms())

    @property
    def committable(self) -> int:
        """The offset that the group may commit: all records before it are completed.

        Those from the start offset on were read by this owner, too.

        A store may be ahead of the committed offset. If the log was replaced since (a broker restored from a backup),
        other records are at these offsets. They must be read and compared with the marks before the group passes them.
        """
        return min(self.flight.high, self._read_to)

    def read_from(self, offset: int) -> None:
        """Set the offset from which this owner reads; see `committable`. Recovery has ended."""
        self._read_to = offset
        for gate in self.gates:
            gate.before_persist(NO_MARKS)

    def pass_holes(self, end: int) -> None:
        """Count the offsets from the position to before ``end`` as read: the log has no record there."""
        if end <= self.flight.position or self.writer.fenced:
            return
        if self.begun:
            self.flight.pass_holes(end)
        else:
            self.begin(end)
        self._read_to = max(self._read_to, end)

    def another_log(
        self,
        offsets: list[int],
        timestamps: Int64s,
        ids: Ids,
        leader_epochs: Callable[[], Iterable[int | None]],
    ) -> AnotherLog | None:
        """Return an `AnotherLog` if records (ascending) are others than the ones completed at their offsets; else None.

        Then the log was replaced, e.g. by a broker that was restored from a backup. ``leader_epochs`` returns those in
        which the records were written, and is called only if they can matter.
        """
        flight = self.flight
        if flight.is_another_log(offsets, leader_epochs):
            return AnotherLog(None)
        if self.ephemeral or (offsets[0] >= flight.position and not flight.restored):
            return None
        at = self.memory.contradiction(
            offsets, timestamps, ids.digests, self.store.find, now_ms=self.now_ms()
        )
        return None if at is None else AnotherLog(at)

    def handled_since(self, committed: int) -> int | None:
        """Return the first offset from ``committed`` on that the application may have completed, None without one."""
        if self._handled_end <= committed:
            self._handled_from = self._handled_end = -1
            return None
        self._handled_from = max(self._handled_from, committed)
        return self._handled_from

    # --- records that come ---------------------------------------------------------------------------------------

    def is_next(self, offsets: list[int]) -> bool:
        """Whether records ascend by offset, from where this owner has read to: none of them comes a second time."""
        if offsets[0] < self._read_to:
            return False
        # Half the time of comparing neighbours, and this runs for every batch.
        return sorted(offsets) == offsets and len(set(offsets)) == len(offsets)

    def first_reads(
        self, offsets: list[int], leader_epochs: Iterable[int | None]
    ) -> tuple[list[int], AnotherLog | None]:
        """Return the rows of records that come for the first time, ascending by offset.

        The others repeat what this owner has read. One of a later leader epoch than all that was read is no repetition
        but a record of another log, which is returned as well.
        """
        read_to, newest, first = self._read_to, self.flight.epoch, list[int]()
        for row, (offset, epoch) in enumerate(zip(offsets, leader_epochs, strict=True)):
            if offset >= read_to:
                first.append(row)
                read_to = offset + 1
                newest = epoch if newest is None or epoch is None else max(newest, epoch)
            elif newest is not None and epoch is not None and epoch > newest:
                return first, AnotherLog(None)
        return first, None

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        ids: Ids,
        items: Sequence[Any],
        *,
        discard_unkeyed: bool,
        shows_duplicates: bool = False,
        find: Find | None = None,
    ) -> list[Chunk]:
        """Judge records, ascending by offset; return their chunks in the same order.

        ``shows_duplicates``: nothing is hidden from here on. ``find`` replaces the store's look-up. If it raises, no
        record is admitted.
        """
        if not self.begun:
            self.begin(offsets[0])
        # `now_ms` without its call, because this is done for every batch.
        flight, now_ms = self.flight, int(self._clock() * 1000)
        late: list[Chunk] = []
        if offsets[0] < flight.position:
            cut = int(np.searchsorted(np.asarray(offsets), flight.position))
            late.append(self._late(offsets[:cut], timestamps[:cut], items[:cut]))
            if cut == len(offsets):
                self._read_to = max(self._read_to, offsets[-1] + 1)
                return late
            offsets, timestamps, items = offsets[cut:], timestamps[cut:], items[cut:]
            missing = {index - cut: reason for index, reason in ids.missing.items() if index >= cut}
            ids = Ids(ids.digests[cut:], missing)
        chunk = self.state.admit(
            offsets, timestamps, ids.digests, ids.missing, self.store.find if find is None else find,
            items=items, discard_unkeyed=discard_unkeyed, shows_duplicates=shows_duplicates, now_ms=now_ms,
        )  # fmt: skip
        self._read_to = offsets[-1] + 1
        if flight.reported_ranges:
            self._hide_reported(chunk, flight.take_reported(chunk))
        taken = False
        for gate in self.gates:
            taken = gate.takes(chunk) or taken
        if not taken:
            self.verdicts.count(chunk)
        if flight.settled:
            self._note_due()
        if chunk.open:
            self.has_offered = True
        return [*late, chunk]

    def admit_one(self, offset: int, timestamp_ms: int, digest: bytes, item: Any) -> RecordRef | None:
        """Judge a record that comes by itself; None, and nothing has changed, if `admit` must judge it.

        That is so if anything but its ID decides, or its ID is known. The record is offered.
        """
        flight, memory = self.flight, self.memory
        if (
            not isinstance(memory, LookupMemory)
            or offset < self._read_to
            or offset < flight.position
            or not (self.begun and flight.is_plain)
            or self.writer.fenced
            or self.gates
        ):
            return None
        now_ms = int(self._clock() * 1000)
        place = memory.admit_one(offset, timestamp_ms, digest, item, self.store.find, now_ms=now_ms)
        if place is not None:
            self._read_to = offset + 1
            self.has_offered = True
            self.verdicts.count_settled((place,))
        return place

    def _late(self, offsets: list[int], timestamps: Int64s, items: Sequence[Any]) -> Chunk:
        """Judge records below the position: completed ones, ones in flight, and ones out of order."""
        flight = self.flight
        chunk = Chunk(offsets, timestamps, [None] * len(offsets), items)
        chunk.leave_no_mark(range(len(offsets)))
        for row, offset in enumerate(offsets):
            if flight.is_completed(offset):
                chunk.finish(row, REDELIVERED)
            elif flight.place(offset) is not None:
                chunk.finish(row, HELD_KIND)
                chunk.give_reason(row, "in-flight")
            else:
                chunk.judge(row, UNVERIFIED, "out-of-order")
        self.verdicts.count(chunk)
        return chunk

    def take_due(self) -> list[RecordRef]:
        """Return the due records, ascending by offset, and forget them; deliver those that are offered."""
        due, self.due = self.due, []
        return sorted(due, key=lambda place: place.offset)

    def _note_due(self) -> None:
        """Count held-back records that got their verdict without a completion; they are due."""
        if self.flight.awaits_reported:
            self._hide([], None)
        if self.flight.settled:
            judged = self.judged
            self._settled([])
            self.due += self.judged
            self.judged = judged

    # --- records that another owner completed ----------------------------------------------------------------------

    def tell_completed(
        self, ranges: Iterable[Range], epoch: int | None = None, *, is_exact: bool = True
    ) -> None:
        """Hide records that another owner completed above the watermark; call it before the first record is admitted.

        ``ranges``: half-open offset ranges. ``epoch``: the leader epoch of the last of these records, None if unknown;
        a record of a later epoch is another one. ``is_exact``: the log alone decided their verdicts. Records that end
        together (a unit) are hidden if all of them are in the ranges; else all are delivered.

        Such a record is judged when it is read, like any other, and completed at once instead of being delivered. So it
        leaves its mark in memory, and until then the watermark stays before it. If it counted as completed before, the
        next owner would start behind it without the mark.
        """
        self.flight.report_completed(ranges, epoch)
        if not is_exact and (reported := self.flight.reported_ranges):
            self.memory.note_inexact_below(reported[-1][1])

    def completed_above(self, offset: int) -> Ranges:
        """Return the completed offsets from ``offset`` on, as half-open ranges, ascending.

        Of this owner's completions only those of records that it read; see `committable`.
        """
        here = before_offset(self.flight.completed_above(offset), self._read_to)
        return from_offset(merged([*here, *self.flight.reported]), offset)

    def as_if_completed(self, offsets: Collection[int]) -> tuple[int, Ranges]:
        """Return what the group could commit if the records at these offsets were completed.

        That is the offset, and the completed ranges above it, as those of `committable` and `completed_above`.
        """
        high, above = self.flight.as_if_completed(offsets)
        high = min(high, self._read_to)
        return high, from_offset(merged([*before_offset(above, self._read_to), *self.flight.reported]), high)

    def _hide_reported(self, chunk: Chunk, rows: list[int]) -> None:
        """Complete the records of a chunk that another owner completed, instead of delivering them."""
        self._hide([RecordRef(chunk, row) for row in rows if chunk.states[row] == OFFERED], chunk)
        self.flight.forget_reported(chunk.offsets[row] for row in rows if chunk.states[row] != HELD)

    def _hide(self, offered: Iterable[RecordRef], admitted: Chunk | None) -> None:
        """Complete records that another owner completed: of a chunk that is admitted, and of the settled ones."""
        flight = self.flight
        earlier = flight.take_settled()
        apart = [place for place in earlier if place.chunk.states[place.row] == SINGLE]
        hidden = [place for place in [*offered, *apart] if flight.was_reported(self.memory.together(place))]
        if hidden:
            released = self._complete_as_redelivered(hidden)
            if admitted is not None:
                # Verdicts of the chunk are counted with it.
                flight.drop_settled(admitted)
            offered, judged = self._settled(released), self.judged
            self.due += [*offered, *(place for place in judged if place not in offered)]
        flight.take_settled()
        flight.settle(earlier)

    def _complete_as_redelivered(self, places: Iterable[RecordRef]) -> list[RecordRef]:
        """Complete offered records that were not delivered; return the records that waited for them."""
        rows: dict[int, tuple[Chunk, list[int]]] = {}
        for chunk, row in places:
            chunk.judge(row, REDELIVERED)
            rows.setdefault(id(chunk), (chunk, []))[1].append(row)
        for chunk, each in rows.values() if self.gates else ():
            marked = [row for row in each if chunk.digests[row] is not None and row not in chunk.unmarked]
            digests = b"".join(digest_of(chunk, row) for row in marked)
            for gate in self.gates:
                gate.take_over(Marks(digests, chunk.column[marked], chunk.timestamps[marked]))
        return [place for chunk, each in rows.values() for place in self.state.complete(chunk, each)]

    def _without_reported(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Complete the records that another owner completed; return the rest, and records that waited for these."""
        left: list[RecordRef] = []
        while offered:
            place = offered.pop(0)
            if self.flight.was_reported(self.memory.together(place)):
                offered += self._complete_as_redelivered([place])
            else:
                left.append(place)
        self.flight.forget_reported(place.offset for place in self.flight.settled)
        return left

    # --- records that end ----------------------------------------------------------------------------------------

    def complete_chunk(self, chunk: Chunk) -> list[RecordRef]:
        """Complete all delivered records of a chunk; return the records to deliver next."""
        if self.writer.fenced:
            self._counters.stale += chunk.open
            return []
        if self._handled_from < 0 or chunk.offsets[0] < self._handled_from:
            self._handled_from = chunk.offsets[0]
        if chunk.offsets[-1] >= self._handled_end:
            self._handled_end = chunk.offsets[-1] + 1
        open_before = chunk.open
        offered = self.memory.complete(chunk, None) if open_before else []
        self.own_counters.completed += open_before - chunk.open
        if offered or self.flight.settled:
            offered = self._settled(offered)
        # A reference to a record keeps its chunk alive, and the messages of it.
        self.judged = []
        return offered

    def offered_run(self, items: Sequence[Any]) -> Run | None:
        """Return the first of these items that follow one another in a chunk, and are offered with it; None without."""
        place = self.flight.place(items[0].offset()) if self.started else None
        if place is None or not place.chunk.items:
            return None
        chunk, first = place
        # The rows of the chunk that were offered, from the first item on; by identity, because a record of another log
        # may have the same offset.
        states = chunk.states[first:]
        rows: Sequence[int] = range(first, len(chunk.states))
        offered: Iterable[Any] = chunk.items[first:]
        if states.count(OFFERED) < len(states):
            rows = (np.flatnonzero(np.frombuffer(states, np.uint8) == OFFERED) + first).tolist()
            offered = map(chunk.items.__getitem__, rows)
        most = min(len(items), len(rows))
        count = next(compress(range(most), map(is_not, items, offered)), most)
        return Run(chunk, rows[:count]) if count else None

    def complete_items(self, items: Sequence[Any]) -> tuple[int, list[RecordRef]]:
        """Complete the first of these items that lie in one chunk as columns, at a tenth of the price of single ones.

        Returns how many that were (0 if the first must be completed by `complete`), and the records to deliver next.
        """
        run = None if self.writer.fenced else self.offered_run(items)
        if run is None:
            return 0, []
        chunk, rows = run
        self.own_counters.completed += len(rows)
        # Of the chunk only these: hidden records behind them are nobody's work.
        self._note_handled(chunk.offsets[rows[0]], chunk.offsets[rows[-1]])
        is_whole = len(rows) == chunk.states.count(OFFERED)
        return len(rows), self._settled(self.memory.complete(chunk, None if is_whole else rows))

    def complete(
        self,
        offsets: Iterable[int],
        *,
        states: tuple[int, ...] = (OFFERED, SINGLE),
        quietly: bool = False,
        dead_lettered: bool = False,
    ) -> list[RecordRef]:
        """Complete single records that are in one of ``states``; return the records to deliver next.

        ``quietly``: do not count records that are not in flight as stale. ``dead_lettered``: count them as
        dead-lettered; they are completed like any other.
        """
        rows: dict[int, tuple[Chunk, list[int]]] = {}
        for offset in offsets:
            if self._refuses(1):
                continue
            place = self.flight.place(offset)
            if place is None or place.chunk.states[place.row] == DONE:
                self._counters.stale += not quietly
                continue
            if place.chunk.states[place.row] not in states:
                continue
            rows.setdefault(id(place.chunk), (place.chunk, []))[1].append(place.row)
        offered: list[RecordRef] = []
        for chunk, indexes in rows.values():
            # A record that is named twice counts once.
            self.own_counters.dead_lettered += len({*indexes}) if dead_lettered else 0
            self.own_counters.completed += len({*indexes})
            self._note_handled(chunk.offsets[min(indexes)], chunk.offsets[max(indexes)])
            offered += self.state.complete(chunk, indexes)
        return self._settled(offered)

    def release(self, offsets: Iterable[int]) -> list[RecordRef]:
        """Release records: each is to be delivered again, with its attempt counted up."""
        self.judged = []
        offered: list[RecordRef] = []
        for offset in dict.fromkeys(offsets):
            if self._refuses(1):
                continue
            place = self.flight.place(offset)
            again = self.flight.release(place) if place else []
            self.own_counters.released += len(again)
            self._counters.stale += not again
            offered += again
        return offered

    def _settled(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Count the settled records; return the ones of ``offered`` that gates let through now."""
        if self.flight.awaits_reported:
            offered = self._without_reported(offered)
        self.judged = self.flight.take_settled()
        for gate in self.gates if offered else ():
            offered = gate.before_offer(offered)
            # A record that a gate holds back is counted, and reported to observers, when it is let through.
            self.judged = [place for place in self.judged if place.chunk.states[place.row] != HELD]
        self.verdicts.count_settled(self.judged)
        return offered

    def settle(self, place: RecordRef, *, due: bool) -> None:
        """Count a record that a gate held back, and that has its verdict now; ``due``: it is to be delivered."""
        self.flight.settle([place])
        self._settled([])
        if due:
            self.due.append(place)

    def complete_hidden(self, chunk: Chunk, rows: list[int]) -> None:
        """Complete records that a gate hides; they are not delivered."""
        self._settled(self.state.complete(chunk, rows))

    def _note_handled(self, first: int, last: int) -> None:
        """Extend the range of offsets that the application has completed; offsets between count as handled, too."""
        self._handled_from = first if self._handled_from < 0 else min(self._handled_from, first)
        self._handled_end = max(self._handled_end, last + 1)

    # --- gates ---------------------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether a gate waits for time: call `tick` now and then."""
        return self.started and any(gate.waits for gate in self.gates)

    def tick(self, *, at_end: bool) -> list[bytes]:
        """Tell the gates the time, and whether the log is read to its end; return the names that are overdue."""
        if not self.started or self.writer.fenced:
            return []
        now_ms = self.now_ms()
        return [name for gate in self.gates for name in gate.tick(now_ms, at_end=at_end)]

    def give_up(self, name: bytes, reason: str = "") -> None:
        """Have the gates stop waiting for this name; records that they let through are due."""
        if self.started and not self.writer.fenced:
            for gate in self.gates:
                gate.give_up(name, reason, self.now_ms())
            self._note_due()

    @property
    def needs_more(self) -> bool:
        """Whether more records must be read before the watermark can move."""
        return any(gate.needs_more for gate in self.gates)

    @property
    def stands_still(self) -> bool:
        """Whether no record that comes now may be delivered, because of records that a gate holds back."""
        return any(map(_stands_still, self.gates))

    def resumes_at(self, offset: int, queued: int | None) -> int:
        """Return the offset from which to read on, instead of ``offset``; see `Gate.resumes_at`."""
        for gate in self.gates:
            offset = gate.resumes_at(offset, queued)
        return offset

    # --- folding -------------------------------------------------------------------------------------------------

    def fold(self, offsets: list[int], timestamps: Int64s, digests: Sequence[bytes | None], end: int) -> None:
        """Fold ``[high, end)``, which the group has completed, into the marks, and write it."""
        step = self.state.fold(offsets, timestamps, digests, self.store.find, end, now_ms=self.now_ms())
        for gate in self.gates:
            gate.take_over(step.marks)
        self.writer.append(step.progress, step.marks)

    def skip_to(self, offset: int) -> None:
        """Count all records before ``offset`` as completed, without marks; coverage begins anew if they are needed."""
        if not self.ephemeral:
            self.memory.pass_uncounted(offset - self.flight.high)
            self.memory.forget_all()
        self.fold([], np.empty(0, np.int64), [], offset)

    # --- ending --------------------------------------------------------------------------------------------------

    def note_failure(self) -> None:
        """Note an unexpected error (a bug, not a store's error), which may have left this partition half changed."""
        self.has_failed = True

    def fence(self) -> None:
        """Write nothing from here on: the partition has another owner. Completions are counted as stale."""
        self.writer.fence()

    def _refuses(self, count: int) -> bool:
        self._counters.stale += count if self.writer.fenced else 0
        return self.writer.fenced

    def persist(self) -> None:
        """Write the records completed since the last call, in one atomic step."""
        self.writer.persist()

    def tell_gates(self) -> None:
        """Have the gates told of completions that are not written; only before the partition is closed unwritten."""
        if self.gates and not self.writer.fenced and (step := self.state.take_step()) is not None:
            for gate in self.gates:
                gate.before_persist(step.marks)

    def flush(self) -> None:
        """Turn recent marks into a sorted file, and drop files whose marks have left the window."""
        self.writer.flush()

    def flush_step(self) -> None:
        """Do the next step of a flush; begin one if none is under way."""
        self.writer.flush_step()

    def close(self) -> None:
        """Write completed records, and close the store."""
        try:
            if self.started:
                self.writer.persist()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the store without writing: the partition has another owner."""
        self.writer.drop_flush()
        try:
            for gate in self.gates:
                gate.leave()
        finally:
            self.store.close()


_second = itemgetter(1)

# Almost all records are fresh: counting the few others is cheaper.
_BUT_FRESH: Final = tuple(code for code in range(len(KINDS)) if code != FRESH)


_NAMES: Final = tuple(kind.value for kind in KINDS)


class VerdictCounter:
    """Counts the verdicts of one partition, and calls the observers with each when it is final."""

    def __init__(self, topic: str, partition: int, counters: Counters, observers: Sequence[Observer]) -> None:
        self._topic = topic
        self._partition = partition
        self._counters, self._own_counters = counters, of_partition(counters, topic, partition)
        self._observers = observers

    def count(self, chunk: Chunk) -> None:
        """Count the verdicts of a chunk, but for records that are held back."""
        codes, counts = chunk.verdicts, self._own_counters.verdicts
        fresh = len(codes)
        for code in _BUT_FRESH:
            if total := codes.count(code):
                fresh -= total
                if code != HELD_KIND:
                    counts[_NAMES[code]] += total
                if code == DUPLICATE:
                    self._observe_ages(chunk)
        counts[_NAMES[FRESH]] += fresh
        for row in chunk.reasons:
            if chunk.verdicts[row] != HELD_KIND:
                self._count_reason(chunk, row)
        if self._observers:
            for row, code in enumerate(chunk.verdicts):
                if code != HELD_KIND:
                    self._tell(chunk, row)

    def count_settled(self, settled: Iterable[RecordRef]) -> None:
        """Count records that have their verdict now: held-back ones, and one that came by itself."""
        for chunk, row in settled:
            self._own_counters.verdicts[_NAMES[chunk.verdicts[row]]] += 1
            if row in chunk.seen:
                self._observe_ages(chunk, row)
            if row in chunk.reasons:
                self._count_reason(chunk, row)
            if self._observers:
                self._tell(chunk, row)

    def _count_reason(self, chunk: Chunk, row: int) -> None:
        name = f"{_NAMES[chunk.verdicts[row]]}.{chunk.reasons[row]}"
        reasons = self._own_counters.reasons
        reasons[name] = reasons.get(name, 0) + 1

    def _observe_ages(self, chunk: Chunk, row: int | None = None) -> None:
        """Count how late the duplicates of a chunk come, or the one in a row; not where a timestamp is missing."""
        seen = chunk.seen if row is None else {row: chunk.seen[row]}
        rows = np.fromiter(seen, np.int64, len(seen))
        seen_ms = np.fromiter(map(_second, seen.values()), np.int64, len(seen))
        times_ms = chunk.timestamps[rows]
        counts = (
            (np.frombuffer(chunk.verdicts, np.uint8)[rows] == DUPLICATE) & (seen_ms >= 0) & (times_ms >= 0)
        )
        self._own_counters.ages.observe_all((times_ms[counts] - seen_ms[counts]) / 1_000)

    def _tell(self, chunk: Chunk, row: int) -> None:
        event = VerdictEvent(self._topic, self._partition, chunk.offsets[row], chunk.verdict(row))
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:
                if is_interruption(error):
                    raise
                self._counters.observer_errors += 1
                logger.exception(
                    "an observer failed at %s[%d]@%d; going on",
                    self._topic,
                    self._partition,
                    event.offset,
                    extra={"event": "observer-failed"},
                )


_LONG_AGO_MS = -(2**62)
_JOURNAL_STEPS = 20_000
"""Steps after which a journal is flushed: all of them are read when the store opens."""
_SHARE_OF_WINDOW = 8
WORTH_A_FILE = 50_000
"""The fewest marks that are flushed because they span a share of the window: they leave the disk as one file."""
FLUSH_AT = 250_000
"""With so many recent marks a flush begins: its first step copies them all, which takes some milliseconds."""
_SLIM_BYTES = 64
_PAYLOAD_BYTES = 50
"""Bytes of payload, beyond the slim ones, that count as one mark.

In memory the IDs of a source take three times their stored size."""


class Writer:
    """Writes a partition's completed records to its store, and bounds memory and disk.

    ``tolerates_full_disk``: a full disk raises no error, but sets ``disk_full``. ``unwritten_weight``: the size of the
    refused steps, in marks without a payload. ``gates`` get the marks before they are written. ``is_in_doubt``: whether
    the state may be half changed; nothing is written then, because a progress could pass a mark that is nowhere.
    """

    def __init__(
        self,
        store: PartitionStore,
        window: Window,
        counters: Counters,
        topic: str,
        partition: int,
        *,
        gates: Sequence[Gate] = (),
        tolerates_full_disk: bool,
        is_in_doubt: Callable[[], bool],
    ) -> None:
        self.store = store
        self.window = window
        self.disk_full = False
        self.unwritten_weight = 0
        # With a quota, writing may fail again although there is free space: that is logged once.
        self._told = False
        self.fenced = False
        self._counters, self._own_counters = counters, of_partition(counters, topic, partition)
        self._where = f"{topic}[{partition}]"
        self._gates = gates
        self._tolerates_full_disk, self._is_in_doubt = tolerates_full_disk, is_in_doubt
        self._begun: PartitionState | None = None
        self._flushed_ms = self._flushed_number = 0
        self._flushes: list[tuple[int, int]] = []
        """For each flush whose file may exist: the newest timestamp (ms), and the offset after its last mark."""
        self._steps = 0
        self._journaled = self._journaled_weight = 0
        self.flushing: Generator[None, None, None] | None = None
        """The flush that is under way."""
        self._taken = NO_MARKS
        """The marks of the flush that is under way."""
        self._flush_s = 0.0
        """The time of its steps until now."""
        self._steps_before, self._flushed_before = 0, (0, 0)
        """What the counts of the journal were before it."""
        self.unwritten_steps: list[Marks] = []

    @property
    def _state(self) -> PartitionState:
        if self._begun is None:
            raise AssertionError(f"{self._where} was used before it started")
        return self._begun

    def begin(self, state: PartitionState, *, journaled: Marks = NO_MARKS) -> None:
        """Write for this state from here on; ``journaled``: the marks in the journal. Refused steps are dropped."""
        self._begun = state
        self._forget_steps()
        if len(journaled.offsets):
            self._note_journaled(journaled)
        # Of the store's existing files only this is known: all of their marks are of completed records.
        self._flushes = []
        if self.window.time_ms is not None:
            self._flushes.append((_LONG_AGO_MS, state.progress.completed_end))
        self._note_flush(state)

    def fence(self) -> None:
        """Write nothing from here on: the partition has another owner (``fenced``)."""
        self.fenced = True
        self.drop_flush()

    def persist(self) -> None:
        """Write the records completed since the last call, in one atomic step."""
        if self.fenced or self._is_in_doubt():
            return
        step = self._state.take_step()
        if step is not None:
            for gate in self._gates:
                # Before the local write: an ID that is known here is never asked for elsewhere again.
                gate.before_persist(step.marks)
            self.append(step.progress, step.marks)
        elif self.unwritten_steps and not self.disk_full:
            self.append(self._state.progress, NO_MARKS)

    def append(self, progress: Progress, marks: Marks) -> None:
        """Write a step; if the disk is full, keep it and write it later."""
        if self._is_in_doubt():
            # By another thread, since `persist` has looked.
            return
        # A progress must not be written without its marks, so refused marks go with the next step.
        self.unwritten_steps.append(marks)
        self.unwritten_weight += weight_of(marks)
        if self.disk_full:
            return
        if len(self.unwritten_steps) > 1:
            # The progress of refused steps is missing in the store, too.
            progress, marks = self._state.progress, join_marks(self.unwritten_steps)
        began = perf_counter()
        try:
            self.store.append(progress, marks)
        except StoreUnavailableError as error:
            self._note_disk_full(error)
            return
        self._counters.journal.observe(perf_counter() - began)
        self.unwritten_steps, self.unwritten_weight = [], 0
        self._steps += 1
        self._note_journaled(marks)

    def _note_journaled(self, marks: Marks) -> None:
        self._journaled += len(marks.offsets)
        self._journaled_weight += weight_of(marks)

    def _note_disk_full(self, error: StoreUnavailableError) -> None:
        """Go on without writing, if that is configured; else raise."""
        if not self._tolerates_full_disk:
            raise error
        if not self._told:
            logger.error(
                "%s: completed IDs stay in memory until the store can be written: %s",
                self._where,
                error,
                extra={"event": "store-not-writable"},
            )
        self.disk_full = self._told = True

    def write_again(self) -> bool:
        """Try to write the refused steps; False if the disk is still full. Raises `StoreError` for anything else."""
        self._stop_flush()
        if not self.store.reopen():
            return False
        self.disk_full = False
        self.unwritten_steps.append(NO_MARKS)
        self.persist()
        if not self.disk_full:
            self._told = False
            logger.warning(
                "%s: the store can be written again; all completed IDs are in it",
                self._where,
                extra={"event": "store-writable-again"},
            )
        return not self.disk_full

    @property
    def unwritten(self) -> int:
        """How many marks are in memory only, because the disk is full."""
        return sum(marks.count for marks in self.unwritten_steps)

    def forget_unwritten(self) -> None:
        """Drop the recent marks that a full disk refuses; coverage begins anew."""
        logger.error(
            "%s: disk full: dropped %d unwritten marks; affected IDs are delivered as unverified until the window has "
            "passed", self._where, self.unwritten,
            extra={"event": "unwritten-marks-dropped"},
        )  # fmt: skip
        self._stop_flush()
        self._state.memory.take_recent(self._state.memory.reach.stream_time_ms, self.store.find)
        self._state.memory.forget_all()
        # A record whose mark is gone proves no other log.
        self._state.memory.reach.note_dropped(self._state.progress.completed_end)
        self.unwritten_steps, self.unwritten_weight = [NO_MARKS], 0

    @property
    def recent(self) -> int:
        """The size of the marks that a flush would take out of memory, in marks without a payload."""
        if self._begun is None:
            return 0
        memory = self._begun.memory
        marks = min(memory.recent_count, self._journaled + memory.looked_up)
        return marks * self._journaled_weight // self._journaled if self._journaled else marks

    def flush_due(self, budget: int, recent: int) -> bool:
        """Whether the journal is so long, or spans so much of the window, that it should become a sorted file.

        So should many (``recent``): a flush of more would take longer at once.
        The marks of one file leave the disk together, so a file must not span much time. A share of the window is
        flushed although memory has room: else the disk holds much more than the window (``benchmarks/growth.py
        --windows 3``).
        """
        if self._steps >= _JOURNAL_STEPS or self._journaled_weight >= 4 * budget or recent >= FLUSH_AT:
            return True
        return self._journaled >= min(WORTH_A_FILE, budget) and self._spans_a_share()

    def _spans_a_share(self) -> bool:
        window, count_window = self.window, self._state.memory.reach.count_window
        if self._flushed_ms < 0:
            # No record had come when the partition started.
            self._note_flush(self._state)
        if (
            window.time_ms is not None
            and _SHARE_OF_WINDOW * (self._state.memory.reach.stream_time_ms - self._flushed_ms)
            > window.time_ms
        ):
            return True
        return (
            count_window is not None
            and _SHARE_OF_WINDOW * (count_window.accepted - self._flushed_number) > count_window.size
        )

    def _forget_steps(self) -> None:
        """Note that the journal is empty, and that no step waits to be written."""
        self._steps = self._journaled = self._journaled_weight = 0
        self.unwritten_steps, self.unwritten_weight = [], 0

    def _note_flush(self, state: PartitionState) -> None:
        count_window = state.memory.reach.count_window
        self._flushed_ms, self._flushed_number = (
            state.memory.reach.stream_time_ms,
            0 if count_window is None else count_window.accepted,
        )

    def flush(self) -> None:
        """Turn recent marks into a sorted file, and drop files whose marks have left the window."""
        self.finish_flush()
        self.flush_step()
        self.finish_flush()

    def finish_flush(self) -> None:
        """Do all that is left of a flush that is under way."""
        while self.flushing is not None:
            self.flush_step()

    def flush_step(self) -> None:
        """Do the next step of a flush; begin one if none is under way. Each takes a few milliseconds.

        If it fails, the marks are in memory again.
        """
        if self.flushing is None:
            if self.fenced:
                return
            self.flushing, self._flush_s = self._flush_steps(), 0.0
        began = perf_counter()
        try:
            next(self.flushing)
            self._flush_s += perf_counter() - began
        except BaseException as error:
            self.flushing = None
            if not isinstance(error, StopIteration):
                raise
            self._counters.flush.observe(self._flush_s + perf_counter() - began)

    def drop_flush(self) -> None:
        """Forget a flush that is under way, and its marks: the journal still has them."""
        flush, self.flushing, self._taken = self.flushing, None, NO_MARKS
        if flush is not None:
            flush.close()

    def _stop_flush(self) -> None:
        """Leave a flush that is under way undone; its marks are in memory again."""
        if self.flushing is not None:
            taken = self._taken
            self.drop_flush()
            self._taken = taken
            self._put_back()

    def _put_back(self) -> None:
        taken, self._taken = self._taken, NO_MARKS
        self._state.memory.put_back(taken)
        self._note_journaled(taken)
        self._steps += self._steps_before
        self._flushed_ms, self._flushed_number = self._flushed_before

    def _flush_steps(self) -> Generator[None, None, None]:
        self.persist()
        if self.disk_full or self._is_in_doubt():
            return
        state = self._state
        memory = state.memory
        self._steps_before = self._steps
        self._flushed_before = self._flushed_ms, self._flushed_number
        marks, find = memory.take_recent(memory.reach.completed_ms, self.store.find)
        try:
            self._taken = marks
            self._forget_steps()
            self._note_flush(state)
            yield from self.store.flush_steps(state.progress, marks, find)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._put_back()
            if not isinstance(error, StoreUnavailableError):
                raise
            self._note_disk_full(error)
            return
        self._taken = NO_MARKS
        self._leave_window(marks)

    def _leave_window(self, flushed: Marks) -> None:
        """After a flush, drop files whose marks have left the window."""
        reach = self._state.memory.reach
        # Records were completed since the flush began: a progress must not be written without their marks.
        self.persist()
        if flushed.count and self.window.time_ms is not None:
            self._flushes.append((int(flushed.timestamps.max()), int(flushed.offsets.max()) + 1))
        if reach.count_window is not None:
            number = reach.count_window.accepted - reach.count_window.size
            # Separately: marks beyond the count make no difference later, marks beyond the time do for late records.
            self._drop(lambda: self.store.expire(None, number))
        if self.window.time_ms is not None:
            horizon_ms = reach.horizon_ms(reach.completed_ms)
            dropped_ms = self.store.expires_to_ms(horizon_ms)
            if dropped_ms is not None:
                self._drop(lambda: self.store.expire(horizon_ms), dropped_ms)

    def _drop(self, drop: Callable[[], object], dropped_ms: int | None = None) -> bool:
        """Drop marks by ``drop``; False, and the marks stay, if the disk is full or the state is in doubt.

        ``dropped_ms``: the newest timestamp among the marks, None if the marks make no difference to later records.
        """
        reach = self._state.memory.reach
        if dropped_ms is not None:
            # A timestamp in the future counts as now: it must not make all later records unverified.
            reach.forgot_before(min(dropped_ms, reach.stream_time_ms) + 1)
            self._note_dropped(dropped_ms + 1)
            # First: a crash must not leave a progress that counts on these marks.
            self.append(self._state.progress, NO_MARKS)
        if self._is_in_doubt() or self.disk_full:
            # The progress was not written: the store still counts on these marks.
            return False
        try:
            drop()
        except StoreUnavailableError as error:
            self._note_disk_full(error)
            return False
        return True

    def _note_dropped(self, before_ms: int) -> None:
        """Note the offsets of marks in dropped files, all of which are older than a timestamp (ms)."""
        # All are looked at: a later flush may be older, if only late records were in it.
        dropped = [end for newest_ms, end in self._flushes if newest_ms < before_ms]
        if dropped:
            self._state.memory.reach.note_dropped(max(dropped))
            self._flushes = [each for each in self._flushes if each[0] >= before_ms]

    @property
    def reach_ms(self) -> int:
        """The age of the oldest sorted file in ms, by the partition's newest record; -1 if no file can be dropped."""
        if self._begun is None or self.disk_full:
            return -1
        oldest_ms = self.store.oldest_ms
        return -1 if oldest_ms is None else max(0, self._state.memory.reach.stream_time_ms - oldest_ms)

    def evict(self) -> bool:
        """Drop the oldest sorted file for lack of room, and log it; False if no file was dropped."""
        if self._begun is not None:
            # A progress must not be written without its marks.
            self.persist()
            self.finish_flush()
        dropped_ms = self.store.evicts_to_ms if self.reach_ms >= 0 else None
        if dropped_ms is None or not self._drop(self.store.evict, dropped_ms):
            return False
        self._own_counters.generations_shed += 1
        window_ms = self.effective_window_ms
        logger.warning(
            "%s: the store was above max_disk: dropped its oldest marks; the effective window is %s",
            self._where,
            "the IDs accepted since then"
            if window_ms is None
            else f"{length_text(window_ms, most_units=2)} (window={shown(str(self.window))})",
            extra={"event": "oldest-marks-dropped"},
        )
        return True

    @property
    def effective_window_ms(self) -> int | None:
        """How far back marks are known in ms, at most the window; None for a window by count alone."""
        if self.window.time_ms is None:
            return None
        since_ms = self._state.memory.reach.since_ms
        known_ms = (
            self.window.time_ms
            if since_ms is None
            else max(0, self._state.memory.reach.stream_time_ms - since_ms)
        )
        return min(self.window.time_ms, known_ms)


def weight_of(marks: Marks) -> int:
    """Return the size of marks in memory, in marks without a payload."""
    count = len(marks.offsets)
    if not marks.payloads:
        return count
    return count + max(0, marks.payload_bytes - _SLIM_BYTES * count) // _PAYLOAD_BYTES
