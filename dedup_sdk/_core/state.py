"""One partition's decisions: its flight joined to its memory. Fed in offset order, it answers in columns.

It knows no Kafka and no RocksDB, and reads no clock (``now_ms`` is given). Older marks come from ``find``, a
function of digests, and completed work leaves it as a `JournalStep` that the key store writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dedup_sdk._core.flight import Chunk, Flight, RecordRef
from dedup_sdk._core.memory import JournalStep, Memory
from dedup_sdk._core.ranges import Range, merged
from dedup_sdk._marks import NO_MARKS, Coverage, Find, Int64s, Progress


class PartitionState:
    """One partition for one group: ``flight`` has the records in flight, ``memory`` the marks of completed ones."""

    def __init__(self, memory: Memory) -> None:
        self.flight: Flight = memory.flight
        self.memory = memory

    # --- queries -------------------------------------------------------------------------------------------

    @property
    def coverage(self) -> Coverage:
        """The range of time and offsets that the marks cover."""
        flight, reach = self.flight, self.memory.reach
        known = reach.known(reach.since_ms)
        return Coverage(low=flight.low, high=flight.high, since_ms=known.since_ms, complete=known.is_complete)

    @property
    def progress(self) -> Progress:
        """The whole state, to be written beside marks."""
        return self._progress(self.flight.done_ranges())

    def _progress(self, done: tuple[Range, ...], *, delta: bool = False) -> Progress:
        flight = self.flight
        return Progress(
            low=flight.low, high=flight.high, done=done, committed=flight.committed, era=flight.era,
            known=self.memory.reach.known(self.memory.written_since_ms), epoch=flight.epoch, delta=delta,
            witness=flight.witness(),
        )  # fmt: skip

    # --- records that come, and end ------------------------------------------------------------------------

    def admit(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        missing: dict[int, str],
        find: Find,
        *,
        items: Sequence[Any] = (),
        discard_unkeyed: bool = False,
        shows_duplicates: bool = False,
        now_ms: int,
    ) -> Chunk:
        """Judge records at or above the position, ascending by offset; the chunk has their verdicts.

        ``missing`` has, for every index without a digest, the reason; timestamps later than ``now_ms`` lie in the
        future. Duplicates are completed already, unless the flight ``shows_duplicates``. When ``find`` raises,
        nothing has changed.
        """
        chunk = Chunk(offsets, timestamps, digests, items)
        if self.flight.restored:
            self.flight.hide_restored(chunk)
        known = self.memory.look_up(chunk, missing, find, discard=discard_unkeyed, now_ms=now_ms)
        self.memory.reach.note_times(timestamps, now_ms)
        self._judge(chunk, known, shows_duplicates=shows_duplicates)
        return chunk

    def _judge(self, chunk: Chunk, known: Any, *, shows_duplicates: bool = False) -> None:
        self.flight.take_in(chunk, shows_duplicates=shows_duplicates)
        self.memory.judge(chunk, known)
        if chunk.open < len(chunk.offsets):
            self.flight.advance(chunk)

    def complete_chunk(self, chunk: Chunk) -> list[RecordRef]:
        """Complete every record that was offered with its chunk; return the records to offer next."""
        return self.memory.complete(chunk, None) if chunk.open else []

    def complete(self, chunk: Chunk, rows: Iterable[int]) -> list[RecordRef]:
        """Complete some records of a chunk; return the records to offer next. Records held back stay so."""
        return self.memory.complete(chunk, rows)

    # --- marks to keep -------------------------------------------------------------------------------------

    def take_step(self) -> JournalStep | None:
        """Return the completions since the last call for the caller to write, None when there are none.

        Its progress is a delta: the ranges above the watermark that earlier steps wrote are not repeated.
        """
        written, moved = self.memory.marks(), self.flight.take_moved()
        if written is None:
            return JournalStep(self._progress((), delta=True), NO_MARKS) if moved else None
        return JournalStep(self._progress(merged(written.done), delta=True), written.marks)

    # --- records completed elsewhere -----------------------------------------------------------------------

    def fold(
        self,
        offsets: list[int],
        timestamps: Int64s,
        digests: Sequence[bytes | None],
        find: Find,
        end: int,
        *,
        now_ms: int,
    ) -> JournalStep:
        """Take over records ``[high, end)`` that the group completed elsewhere; return the step to write.

        Only while nothing is in flight. ``offsets`` ascending; records without an ID have None; holes are not passed.
        """
        if offsets:
            self.memory.reach.note_times(timestamps, now_ms)
        chunk = Chunk(offsets, timestamps, digests)

        def live(offsets: list[int], timestamps: Int64s, digests: Sequence[bytes | None]) -> None:
            missing = {row: "absent" for row, digest in enumerate(digests) if digest is None}
            part = Chunk(offsets, timestamps, digests)
            if self.flight.restored:
                self.flight.hide_restored(part)
            self._judge(part, self.memory.look_up(part, missing, find, discard=False, now_ms=now_ms))
            offered = self.complete_chunk(part)
            while offered:
                place = offered.pop()
                offered += self.complete(place.chunk, [place.row])

        last = self.memory.fold(chunk, find, live, end, now_ms=now_ms)
        if offsets:
            self.memory.reach.note_completed(int(timestamps.max()))
        self.flight.pass_to(end, last)
        marks = self.memory.folded(chunk)
        # The step has the whole progress: the next one need not repeat the move.
        self.flight.take_moved()
        return JournalStep(self.progress, marks)
