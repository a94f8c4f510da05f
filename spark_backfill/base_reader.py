"""The marks of a base as blocks: its sorted files are read in tasks, and join the blocks of the rows read.

A base is one more source, so that the fold needs no second way: it merges by the larger offset as ever. Leaving out
marks of a base (below the group's ``low``) moves coverage behind them, because an earlier sighting of the same ID is
not in the base any more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import Marks, cut_marks, join_marks, select_marks
from dedup_sdk._store.manifest import SortedFile
from dedup_sdk._store.snapshot import read_files
from dedup_sdk._store.snapshot_source import RemoteFiles
from spark_backfill.base import Base, copy_from
from spark_backfill.offset_range import OffsetRange
from spark_backfill.publish import own_folder
from spark_backfill.runs import BLOCK_SCHEMA, PIECE_MARKS, RUN_ROWS, Block, Tally, to_batch
from spark_backfill.slots import SlotPlan
from spark_backfill.workers import ReadTasks

_TASK_BYTES: Final = 64 * 2**20


class BaseFile(NamedTuple):
    """One sorted file of a partition."""

    partition: int
    file: SortedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReader:
    """A function for ``mapInArrow``: numbers of tasks in, the blocks of their files out.

    ``files`` are the snapshot's: a folder that all workers see, or what is behind a URL, from which a task fetches its
    own and not the manifest. ``tasks`` are the files of each. Marks of offsets below the partition's in ``floors`` are
    left out.

    Raises in the task:
        SnapshotError: a file differs from the manifest.
    """

    files: Path | RemoteFiles
    tasks: tuple[tuple[BaseFile, ...], ...]
    plan: SlotPlan
    floors: Mapping[int, int]
    run_rows: int = RUN_ROWS

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the files."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for partition, file in self.tasks[number]:
                    yield from map(to_batch, self.blocks(partition, file))

    def blocks(self, partition: int, file: SortedFile) -> Iterator[Block]:
        """Read one file, check it on the way, and yield its marks slot by slot."""
        pending: list[Marks] = []
        place = f"{self.files if isinstance(self.files, Path) else 'base'}/{partition}"
        with own_folder() as room:
            for page in read_files([file], copy_from(self.files, partition), place=place, temp_dir=room):
                pending.append(page)
                if sum(each.count for each in pending) >= self.run_rows:
                    yield from self._packed(partition, join_marks(pending))
                    pending = []
        yield from self._packed(partition, join_marks(pending))

    def _packed(self, partition: int, marks: Marks) -> Iterator[Block]:
        if not marks.count:
            return
        out = marks.offsets < self.floors[partition]
        forgotten_ms = int(marks.timestamps[out].max()) if out.any() else None
        kept = select_marks(marks, np.flatnonzero(~out)) if out.any() else marks
        kept = Marks(kept.digests, kept.offsets, kept.timestamps)
        if forgotten_ms is not None:
            yield Block(self.plan.ranges(partition).start, Tally(), forgotten_ms=forgotten_ms)
        for slot, start, end in self.plan.cut(partition, kept.digests, PIECE_MARKS):
            yield Block(slot, Tally(), cut_marks(kept, start, end))


def base_tasks(
    base: Base, offset_ranges: Sequence[OffsetRange], plan: SlotPlan, *, parallelism: int
) -> ReadTasks | None:
    """Return the tasks that give the blocks of the marks that the offset ranges take from the base, None for none.

    ``parallelism``: how many tasks run at a time.
    """
    floors = {
        each.partition: each.base.floor
        for each in offset_ranges
        if each.base is not None and each.base.staying is None
    }
    files = [
        BaseFile(entry.partition, file)
        for entry in base.manifest.partitions
        if entry.partition in floors
        for file in entry.files
    ]
    if not files:
        return None
    tasks = share_out(files, parallelism=parallelism)
    reader = BaseReader(files=base.files, tasks=tasks, plan=plan, floors=floors)
    return ReadTasks(len(tasks), reader, BLOCK_SCHEMA)


def share_out(files: Sequence[BaseFile], *, parallelism: int) -> tuple[tuple[BaseFile, ...], ...]:
    """Deal files out to tasks of about equal size: as many as run at a time, more where they would be large."""
    count = min(len(files), max(parallelism, -(-sum(each.file.bytes for each in files) // _TASK_BYTES)))
    tasks: list[list[BaseFile]] = [[] for _ in range(count)]
    smallest = [(0, number) for number in range(count)]
    for each in sorted(files, key=lambda each: each.file.bytes, reverse=True):
        size, number = smallest[0]
        tasks[number].append(each)
        heapq.heapreplace(smallest, (size + each.file.bytes, number))
    return tuple(map(tuple, tasks))
