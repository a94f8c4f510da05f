"""What of a partition survives: steps in the store's journal, and marks in its sorted files.

disk_full
    the store's disk is full: what is completed stays in memory, and is written when there is room (`Writer.write_again`). Commits
    may go on meanwhile, because what a store lacks up to the committed offset is read from the topic again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

from dedup_sdk.core.state import PartitionState
from dedup_sdk.engine.gates import Gate
from dedup_sdk.errors import StoreUnavailableError
from dedup_sdk.marks import NO_MARKS, Marks, join_marks
from dedup_sdk.observe import Counters
from dedup_sdk.progress import Progress
from dedup_sdk.store.protocol import PartitionStore
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")

_LONG_AGO_MS = -(2**62)
_JOURNAL_STEPS = 20_000
"""So many steps make a journal worth flushing: each is read back when the store opens."""
_SHARE_OF_WINDOW = 8
_WORTH_A_FILE = 50_000
"""Marks that span a share of the window are flushed when there are so many: what is in one file leaves the disk at one time."""
_SLIM_BYTES = 64
_PAYLOAD_BYTES = 50
"""So many bytes of payload above the slim ones weigh as much as a mark: in memory the IDs of a source take three times what is stored of them."""


class Writer:
    """Writes what a partition completes to its store, and keeps memory and disk in bounds.

    ``bears_full_disk``: no room is no error, but makes it `disk_full`. ``unwritten_weight`` is what a full disk refused, in marks without a
    payload. ``gates`` are told what is completed before it is written.
    """

    def __init__(
        self,
        store: PartitionStore,
        window: Window,
        counters: Counters,
        *,
        where: str,
        gates: Sequence[Gate] = (),
        bears_full_disk: bool,
    ) -> None:
        self.store = store
        self.window = window
        self.disk_full = False
        self.unwritten_weight = 0
        # A quota may refuse again what the free space promised: that is no news.
        self._told = False
        self._fenced = False
        self._counters = counters
        self._where = where
        self._gates = gates
        self._bears_full_disk = bears_full_disk
        self._begun: PartitionState | None = None
        self._flushed_ms = self._flushed_number = 0
        self._flushes: deque[tuple[int, int]] = deque()
        """Of each flush whose marks may be in the store: their newest timestamp (ms), and the offset after their last one."""
        self._steps = 0
        self._journaled = self._journaled_weight = 0
        self._unwritten: list[Marks] = []

    @property
    def _state(self) -> PartitionState:
        if self._begun is None:
            raise AssertionError(f"{self._where} was used before it started")
        return self._begun

    def begin(self, state: PartitionState, *, journaled: Marks = NO_MARKS) -> None:
        """Write for this state from here on; ``journaled``: the marks of the store's journal. Steps that were refused before do not belong to it."""
        self._begun = state
        self._forget_steps()
        if len(journaled.offsets):
            self._note_journaled(journaled)
        # The store has files of which only this is known: all of their marks are of completed records.
        self._flushes.clear()
        if self.window.time_ms is not None:
            self._flushes.append((_LONG_AGO_MS, state.flight.high))
        self._note_flush()

    def fence(self) -> None:
        """Write nothing from here on: the partition has another owner."""
        self._fenced = True

    def persist(self) -> None:
        """Write what was completed since the last call, in one atomic step."""
        if self._fenced:
            return
        step = self._state.take_step()
        if step is not None:
            for gate in self._gates:
                # First the others, then here: what is known here is asked of nobody any more.
                gate.before_persist(step.marks)
            self.append(step.progress, step.marks)
        elif self._unwritten and not self.disk_full:
            self.append(self._state.progress, NO_MARKS)

    def append(self, progress: Progress, marks: Marks) -> None:
        """Write a step; one that a full disk refuses is kept, and written later."""
        # A progress must not be written without the marks that belong to it, so that refused ones go with the next.
        self._unwritten.append(marks)
        self.unwritten_weight += weight_of(marks)
        if self.disk_full:
            return
        if len(self._unwritten) > 1:
            # What a step that was refused says of completed offsets is missing in the store.
            progress, marks = self._state.progress, join_marks(self._unwritten)
        try:
            self.store.append(progress, marks)
        except StoreUnavailableError as error:
            self._note_disk_full(error)
            return
        self._unwritten, self.unwritten_weight = [], 0
        self._steps += 1
        self._note_journaled(marks)

    def _note_journaled(self, marks: Marks) -> None:
        self._journaled += len(marks.offsets)
        self._journaled_weight += weight_of(marks)

    def _note_disk_full(self, error: StoreUnavailableError) -> None:
        """Go on without writing where that is wanted, else raise."""
        if not self._bears_full_disk:
            raise error
        if not self._told:
            logger.error(
                "%s: what is completed stays in memory until the store can be written: %s", self._where, error
            )
        self.disk_full = self._told = True

    def write_again(self) -> bool:
        """Try to write what the store refused; False when it still cannot be written. Raises `StoreError` for anything else."""
        if not self.store.reopen():
            return False
        self.disk_full = False
        self._unwritten.append(NO_MARKS)
        self.persist()
        if not self.disk_full:
            self._told = False
            logger.warning("%s: the store can be written again, and everything is", self._where)
        return not self.disk_full

    @property
    def unwritten(self) -> int:
        """How many marks a full disk refused, which are in memory only."""
        return sum(marks.count for marks in self._unwritten)

    def forget_unwritten(self) -> None:
        """Give up the recent marks that a full disk keeps from being written; coverage begins anew."""
        logger.error(
            "%s: disk full: dropped %d unwritten marks; affected IDs are delivered as unverified until the window has passed",
            self._where, self.unwritten,
        )  # fmt: skip
        self._state.memory.take_recent(self._state.stream_time_ms, self.store.find)
        self._state.memory.forget_all()
        self._unwritten, self.unwritten_weight = [NO_MARKS], 0

    @property
    def recent(self) -> int:
        """What a flush would take out of memory, in marks without a payload: those of records in flight stay."""
        if self._begun is None:
            return 0
        memory = self._begun.memory
        marks = min(memory.recent_count, self._journaled + memory.looked_up)
        return marks * self._journaled_weight // self._journaled if self._journaled else marks

    def flush_due(self, budget: int) -> bool:
        """Whether the journal has grown so long, or spans so much of the window, that it should become a sorted file.

        Marks in one file leave the disk together. So a file must not span much time, and a share of the window is
        flushed even where memory has room: else the disk holds much more than the window (``benchmarks/growth.py
        --windows 3``).
        """
        if self._steps >= _JOURNAL_STEPS or self._journaled_weight >= 4 * budget:
            return True
        return self._journaled >= min(_WORTH_A_FILE, budget) and self._spans_a_share()

    def _spans_a_share(self) -> bool:
        window, count_window = self.window, self._state.memory.reach.count_window
        if self._flushed_ms < 0:
            # Nothing had come yet when the partition started.
            self._note_flush()
        if (
            window.time_ms is not None
            and _SHARE_OF_WINDOW * (self._state.stream_time_ms - self._flushed_ms) > window.time_ms
        ):
            return True
        return (
            count_window is not None
            and _SHARE_OF_WINDOW * (count_window.accepted - self._flushed_number) > count_window.size
        )

    def _forget_steps(self) -> None:
        """Note that the journal is empty, and that nothing is to be written to it."""
        self._steps = self._journaled = self._journaled_weight = 0
        self._unwritten, self.unwritten_weight = [], 0

    @property
    def _completed_ms(self) -> int:
        """By what time marks leave the store: that of what is completed, which is written with them.

        A process that starts again knows no later time. What it finds gone inside the window by that time, it takes for another log.
        """
        return min(self._state.memory.reach.newest_ms, self._state.stream_time_ms)

    def _note_flush(self) -> None:
        state = self._state
        count_window = state.memory.reach.count_window
        self._flushed_ms, self._flushed_number = (
            state.stream_time_ms,
            0 if count_window is None else count_window.accepted,
        )

    def flush(self) -> None:
        """Turn recent marks into a sorted file, and drop, in bulk, what left the window."""
        self.persist()
        if self.disk_full:
            return
        state = self._state
        memory, reach = state.memory, state.memory.reach
        marks = memory.take_recent(self._completed_ms, self.store.find)
        try:
            self.store.flush(state.progress, marks)
        except StoreUnavailableError as error:
            memory.put_back(marks)
            self._note_disk_full(error)
            return
        except BaseException:
            memory.put_back(marks)
            raise
        self._forget_steps()
        self._note_flush()
        if marks.count and self.window.time_ms is not None:
            self._flushes.append((int(marks.timestamps.max()), int(marks.offsets.max()) + 1))
        before = reach.since_ms, reach.since_number
        if reach.count_window is not None:
            # By itself, because it makes no difference to this window: what went for its age does, to records that come late.
            self.store.expire(None, reach.count_window.accepted - reach.count_window.size)
        if self.window.time_ms is not None:
            horizon_ms = reach.horizon_ms(self._completed_ms)
            dropped_ms = self.store.expire(horizon_ms)
            if dropped_ms is not None:
                reach.forgot_before(min(dropped_ms + 1, horizon_ms))
                self._note_dropped(horizon_ms)
        if before != (reach.since_ms, reach.since_number):
            self.append(state.progress, NO_MARKS)

    def _note_dropped(self, before_ms: int) -> None:
        """Note which offsets had marks in files that were dropped: all of these lie before a timestamp."""
        while self._flushes and self._flushes[0][0] < before_ms:
            self._state.memory.reach.note_dropped(self._flushes.popleft()[1])

    @property
    def reach_ms(self) -> int:
        """How far its oldest sorted file lies behind its own newest records, in ms; -1 when it has none that could be dropped."""
        if self._begun is None or self.disk_full:
            return -1
        oldest_ms = self.store.oldest_ms
        return -1 if oldest_ms is None else max(0, self._state.stream_time_ms - oldest_ms)

    def evict(self) -> bool:
        """Drop the oldest marks for want of room, with a line in the log; False when there is nothing to drop."""
        if self._begun is not None:
            # A progress must not be written without the marks that belong to it.
            self.persist()
        dropped_ms = self.store.evict() if self.reach_ms >= 0 else None
        if dropped_ms is None:
            return False
        # A record from the future counts as now: it must not make everything to come look unknown.
        self._state.memory.reach.forgot_before(min(dropped_ms, self._state.stream_time_ms) + 1)
        self._note_dropped(dropped_ms + 1)
        self.append(self._state.progress, NO_MARKS)
        self._counters.generations_shed += 1
        window_ms = self.effective_window_ms
        logger.warning(
            "%s: the store is above max_disk, its oldest marks were dropped; the effective window is %s",
            self._where,
            "what came since" if window_ms is None else f"{window_ms / 1000:,.0f} s of {self.window}",
        )
        return True

    @property
    def effective_window_ms(self) -> int | None:
        """How far back marks are known, at most the window; None for a window by count alone."""
        if self.window.time_ms is None:
            return None
        since_ms = self._state.memory.reach.since_ms
        known_ms = self.window.time_ms if since_ms is None else max(0, self._state.stream_time_ms - since_ms)
        return min(self.window.time_ms, known_ms)


def weight_of(marks: Marks) -> int:
    """Return what marks take of memory, in marks without a payload."""
    count = len(marks.offsets)
    if not marks.payloads:
        return count
    return count + max(0, marks.payload_bytes - _SLIM_BYTES * count) // _PAYLOAD_BYTES
