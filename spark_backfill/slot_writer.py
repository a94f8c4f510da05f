"""The task: folds the rows of its slots and writes one sorted file for each, into a folder of this attempt alone.

A task may run twice, or be killed half way. What it writes lies where only the driver looks, and the driver takes only
the folders that successful tasks name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup_sdk.marks import DIGEST_BYTES, Int64s, Marks
from dedup_sdk.store.mark_sort import select
from dedup_sdk.store.sorted_file import SORTED_SUFFIX, SortedFile, SortedFileWriter
from dedup_sdk.window import Window
from spark_backfill.count_fold import CountFold
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot
from spark_backfill.time_fold import TimeFold

_PAGE_MARKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWriter:
    """A function for ``mapInArrow``: rows ``slot, digest, offset, timestamp_ms`` in, a JSON `SlotOutcome` a slot out.

    ``keep_from_ms`` is the horizon of each partition. With a count window the rows have to come in offset order.
    """

    folder: str
    slots: tuple[Slot, ...]
    window: Window
    keep_from_ms: dict[int, int | None]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold all batches, then write."""
        states: dict[int, _SlotState] = {}
        for batch in batches:
            for number, rows in _by_slot(batch):
                if number not in states:
                    states[number] = _SlotState(self._fold(self.slots[number]))
                states[number].add(rows)
        outcomes = [self._write(number, state).to_json() for number, state in sorted(states.items())]
        if outcomes:
            yield pa.RecordBatch.from_arrays([pa.array(outcomes, pa.string())], ["outcome"])

    def _fold(self, slot: Slot) -> TimeFold | CountFold:
        keep_from_ms = self.keep_from_ms[slot.partition]
        if self.window.count is None:
            return TimeFold(keep_from_ms)
        return CountFold(self.window, keep_from_ms)

    def _write(self, number: int, state: _SlotState) -> SlotOutcome:
        slot = self.slots[number]
        folded = state.fold.finish()
        folder = tempfile.mkdtemp(prefix=f"{slot.partition}-{slot.range}-", dir=self.folder)
        path = Path(folder) / f"{slot.range:05d}{SORTED_SUFFIX}"
        return SlotOutcome(
            slot=number,
            folder=folder,
            records=state.records,
            unkeyed=state.unkeyed,
            first_offset=state.first_offset,
            first_ms=state.first_ms,
            newest_ms=state.newest_ms,
            accepted=folded.accepted,
            forgotten_ms=folded.forgotten_ms,
            forgotten_number=folded.forgotten_number,
            file=write_marks(path, folded.marks),
        )


class _Rows:
    """The rows of one slot in a batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.offsets: Int64s = batch.column("offset").to_numpy()
        self.timestamps: Int64s = batch.column("timestamp_ms").to_numpy()
        column = batch.column("digest")
        self.keyed = None
        if column.null_count:
            self.keyed = np.asarray(column.is_valid())
            column = column.drop_null()
        self.digests = _joined(column)


class _SlotState:
    """A fold, and what is counted beside it."""

    def __init__(self, fold: TimeFold | CountFold) -> None:
        self.fold = fold
        self.records = self.unkeyed = 0
        self.first_offset, self.first_ms, self.newest_ms = 2**63 - 1, -1, -1

    def add(self, rows: _Rows) -> None:
        first = int(rows.offsets.argmin())
        if rows.offsets[first] < self.first_offset:
            self.first_offset, self.first_ms = int(rows.offsets[first]), int(rows.timestamps[first])
        self.newest_ms = max(self.newest_ms, int(rows.timestamps.max()))
        self.records += len(rows.offsets)
        offsets, timestamps = rows.offsets, rows.timestamps
        if rows.keyed is not None:
            offsets, timestamps = offsets[rows.keyed], timestamps[rows.keyed]
            self.unkeyed += len(rows.offsets) - len(offsets)
        self.fold.add(rows.digests, offsets, timestamps)


def write_marks(path: Path, marks: Marks) -> SortedFile | None:
    """Write marks that ascend by digest as one sorted file; None, and no file, when there are none."""
    if not marks.count:
        return None
    with SortedFileWriter(path) as writer:
        for start in range(0, marks.count, _PAGE_MARKS):
            writer.add(select(marks, np.arange(start, min(start + _PAGE_MARKS, marks.count))))
        return writer.finish()


def _by_slot(batch: pa.RecordBatch) -> Iterator[tuple[int, _Rows]]:
    if not batch.num_rows:
        return
    slots = batch.column("slot").to_numpy()
    if slots[0] == slots[-1] and (slots == slots[0]).all():
        yield int(slots[0]), _Rows(batch)
        return
    for number in np.unique(slots).tolist():
        yield number, _Rows(batch.filter(pa.array(slots == number)))


def _joined(column: pa.Array) -> bytes:
    """The bytes of all digests of a column without nulls, one after the other."""
    _, ends, data = column.buffers()
    count = len(column)
    if not count:
        return b""
    edges = np.frombuffer(ends, np.int32)[column.offset : column.offset + count + 1]
    joined = data[int(edges[0]) : int(edges[-1])].to_pybytes()
    if len(joined) != DIGEST_BYTES * count:
        raise ValueError(f"{len(joined)} bytes of {count} digests: a digest has {DIGEST_BYTES}")
    return bytes(joined)
