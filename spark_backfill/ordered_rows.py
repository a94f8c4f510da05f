"""Rows for a fold in offset order: packed into blocks of consecutive rows, which the one shuffle sorts.

A *block* has rows of one partition in offset order, each offset once, as an Arrow stream of about `PIECE_BYTES`. No
other block has rows between them, so that blocks sorted by their first offset give the rows of a partition in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import Int64s
from spark_backfill.duplicate_offsets import two_records
from spark_backfill.runs import PIECE_BYTES
from spark_backfill.slots import SlotPlan
from spark_backfill.workers import Task, collecting_rarely

ORDERED_SCHEMA: Final = "slot int, first_offset long, rows binary"
BLOCK_ORDER: Final = ("slot", "first_offset")
_NAMES: Final = [column.split()[0] for column in ORDERED_SCHEMA.split(", ")]
_TYPES: Final = [pa.int32(), pa.int64(), pa.binary()]
_BEFORE_ALL: Final = -1


@dataclass(frozen=True, slots=True)
class OrderedBlocks:
    """A function for ``mapInArrow``: batches, read by ``read`` as rows (`spark_backfill.rows`), as blocks.

    A task has the rows of a partition by offset, and no other task has any between them. Where an offset comes more
    than once, the first of its rows counts. A partition is one slot of the plan.

    Raises in the task:
        BackfillError: an offset comes with two IDs.
    """

    plan: SlotPlan
    read: Task = iter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows and pack them."""
        pending: dict[int, _Pending] = {}
        with collecting_rarely():
            for batch in self.read(batches):
                partitions = batch.column("partition").to_numpy()
                for partition in np.unique(partitions).tolist() if batch.num_rows else ():
                    mine = partitions == partition
                    rows = batch if mine.all() else batch.filter(pa.array(mine))
                    held = pending.setdefault(partition, _Pending(partition))
                    held.add(rows.drop_columns(["partition"]))
                    if held.size > PIECE_BYTES:
                        yield from self._blocks(held)
        for held in pending.values():
            yield from self._blocks(held)

    def begin(self, _batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield an empty block for each partition, before all others: it is folded also where no row comes."""
        for number in range(len(self.plan.slots)):
            yield _row(number, _BEFORE_ALL, b"")

    def _blocks(self, held: _Pending) -> Iterator[pa.RecordBatch]:
        slot = self.plan.ranges(held.partition).start
        for rows in held.take():
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            yield _row(slot, rows.column("offset")[0].as_py(), sink.getvalue().to_pybytes())


@dataclass(slots=True)
class _Pending:
    """The rows of a partition that are in no block yet: ``size`` is about their bytes."""

    partition: int
    size: int = 0
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _last: tuple[int, bytes | None] = (-1, None)

    def add(self, rows: pa.RecordBatch) -> None:
        """Take rows by offset, at or above those before; those of offsets that were there are left out."""
        offsets: Int64s = rows.column("offset").to_numpy()
        steps = np.diff(offsets, prepend=self._last[0])
        again = np.flatnonzero(steps == 0)
        if (steps < 0).any():
            raise ValueError(
                f"rows of partition {self.partition} do not come by offset: run the job again, and report it if that "
                "does not help"
            )
        if len(again):
            self._check_same(rows, offsets, again.tolist())
            rows = rows.filter(pa.array(steps > 0))
        if rows.num_rows:
            self._last = rows.column("offset")[-1].as_py(), rows.column("digest")[-1].as_py()
            self._batches.append(rows)
            self.size += rows.nbytes

    def take(self) -> Iterator[pa.Table]:
        """Yield the rows in pieces of about `PIECE_BYTES`, and forget them."""
        if self._batches:
            rows = pa.Table.from_batches(self._batches)
            step = max(rows.num_rows * PIECE_BYTES // max(self.size, PIECE_BYTES), 1)
            self._batches, self.size = [], 0
            yield from (rows.slice(start, step) for start in range(0, rows.num_rows, step))

    def _check_same(self, rows: pa.RecordBatch, offsets: Int64s, again: list[int]) -> None:
        """Check that an offset that comes again has the same ID, or none."""
        for row in again:
            key = rows.column("digest")[row].as_py()
            first = int(np.searchsorted(offsets, offsets[row]))
            known = self._last[1] if offsets[row] == self._last[0] else rows.column("digest")[first].as_py()
            if key is not None and key != known:
                raise two_records(self.partition, int(offsets[row]))


def rows_in(block: bytes) -> pa.Table | None:
    """Return the rows of a block without their partition, None where it has none."""
    if not block:
        return None
    with pa.ipc.open_stream(block) as reader:
        return reader.read_all()


def _row(slot: int, first_offset: int, rows: bytes) -> pa.RecordBatch:
    columns = [
        pa.array([value], kind) for value, kind in zip((slot, first_offset, rows), _TYPES, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, _NAMES)
