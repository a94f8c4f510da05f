"""The fold of a partition whose records belong to units: the consumer's own engine, over a temporary store of the task.

The marks of a unit depend on the IDs that are known at its end. So the consumer's code judges the rows in offset
order, as in a replay of the whole history, and the marks of its store are written. Before that all rows are
written to a file, because where the last units end is known only when all rows were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import groupby, islice
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from dedup_sdk._core.reach import plan_start
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition
from dedup_sdk._marks import Marks, Progress, select_marks
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._units.memory import UnitMemory
from spark_backfill.count_fold import later
from spark_backfill.duplicate_offsets import each_once
from spark_backfill.offset_range import OffsetRange
from spark_backfill.runs import Tally
from spark_backfill.slot_shuffle import TALLIES, read_tally
from spark_backfill.unit_ends import Ends, UnitEnds
from spark_backfill.unit_spec import UnitSpec

_SLICE_RECORDS: Final = 5_000
_NOBODY: Final = "backfill"
_TOPIC: Final = "units"
_SPOOLED: Final = pa.schema([("offset", pa.int64()), ("timestamp_ms", pa.int64()), ("key", pa.binary())])


class UnitRow(NamedTuple):
    """A row of `spark_backfill.slot_shuffle`, whose ID is a unit key."""

    slot: int
    fold_key: bytes
    offset: int
    timestamp_ms: int
    key: bytes


class UnitFold:
    """Folds the rows of one partition, sorted by fold key and offset, in an empty folder of its own.

    ``tally``, ``progress`` (that of the store), ``forgotten_ms`` and ``forgotten_number`` (the newest timestamp
    and the highest number of IDs not known any more, None: all is) are known when all pages were taken. In
    memory are a few slices of rows, units that are open, and a consumer's own state.
    """

    progress: Progress

    def __init__(self, spec: UnitSpec, offset_range: OffsetRange, room: Path, *, now_ms: int) -> None:
        self.tally = Tally()
        self.forgotten_ms: int | None = None
        self.forgotten_number: int | None = None
        self._spec = spec
        self._keys = spec.keys
        self._offset_range = offset_range
        self._room = room
        self._now_ms = now_ms

    def pages(self, rows: Iterable[UnitRow]) -> Iterator[Marks]:
        """Yield the marks of all IDs, ascending by digest.

        Raises:
            BackfillError: an offset comes with two records.
            StoreError: there is no room for the rows, or the store.
        """
        spooled = self._room / "rows.arrow"
        ends = self._put_down(rows, spooled)
        self._fold(spooled, ends)
        spooled.unlink()
        (found,) = list_partitions(self._room)
        with read_partition(found.path) as opened:
            if opened.progress is None:
                raise AssertionError(f"{found.path} has no progress")
            self.progress = opened.progress
            self._note_progress(opened.progress)
            for page in opened.scan_all(below=opened.progress.high):
                kept = self._young(page)
                if kept.count:
                    yield kept

    def _put_down(self, rows: Iterable[UnitRow], path: Path) -> Ends:
        ends = UnitEnds(self._keys)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, _SPOOLED) as writer:
            for fold_key, records in groupby(rows, key=itemgetter(1)):
                if fold_key == TALLIES:
                    for row in records:
                        self.tally.add(read_tally(row.offset, row.timestamp_ms, row.key))
                    continue
                once = each_once(records, self._offset_range.partition, attrgetter("key"))
                while several := tuple(islice(once, _SLICE_RECORDS)):
                    _, _, offsets, timestamps, keys = zip(*several, strict=True)
                    ends.add(offsets, keys)
                    columns = [
                        pa.array(column, kind)
                        for column, kind in zip((offsets, timestamps, keys), _SPOOLED.types, strict=True)
                    ]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SPOOLED))
        return ends.finish(self._offset_range.high)

    def _fold(self, path: Path, ends: Ends) -> None:
        store = RocksStore(self._room)
        with Deduplicator(
            self._spec.strategy, store, cluster=_NOBODY, group=_NOBODY, clock=lambda: self._now_ms / 1_000
        ) as engine:
            held = engine.attach(_TOPIC, self._offset_range.partition)
            plan = plan_start(
                None, committed=ends.cut, low=self._offset_range.begin, complete=self._offset_range.complete
            )
            since_ms = self._offset_range.since_ms(self.tally.begin_ms, None)
            held.start(replace(plan, progress=replace(plan.progress, since_ms=since_ms)))
            with pa.OSFile(str(path), "rb") as file, closing(pa.ipc.open_stream(file)) as reader:
                for batch in reader:
                    self._fold_slice(held, batch, ends)
                    engine.trim()
            # A unit left open ends nowhere below the cut.
            held.fold([], np.empty(0, np.int64), [], ends.cut)

    def _fold_slice(self, held: Partition, batch: pa.RecordBatch, ends: Ends) -> None:
        below = int(np.searchsorted(batch.column("offset").to_numpy(), ends.cut))
        if not below:
            return
        part = batch.slice(0, below)
        offsets: list[int] = part.column("offset").to_pylist()
        keys: list[bytes | None] = part.column("key").to_pylist()
        if ends.unfinished:
            self._pass_unfinished(held, part, keys, ends)
        held.fold(offsets, part.column("timestamp_ms").to_numpy(), keys, offsets[-1] + 1)

    def _pass_unfinished(
        self, held: Partition, part: pa.RecordBatch, keys: list[bytes | None], ends: Ends
    ) -> None:
        """Take the keys from records whose unit never ends.

        Each may have been handled by itself, or not, so that it leaves doubt and no mark.
        """
        memory = held.memory
        if not isinstance(memory, UnitMemory):
            raise TypeError(f"{memory} has no units")
        columns = part.column("offset").to_pylist(), part.column("timestamp_ms").to_pylist()
        for row, (offset, timestamp_ms) in enumerate(zip(*columns, strict=True)):
            if offset in ends.unfinished:
                memory.doubt.note([self._keys.name_of(keys[row])], timestamp_ms)
                keys[row] = None

    def _note_progress(self, progress: Progress) -> None:
        if progress.since_ms is not None:
            self.forgotten_ms = progress.since_ms - 1
        if self._spec.strategy.window_of(_TOPIC).count is not None:
            self.forgotten_number = max(progress.since_number or 0, progress.floor_number) or None

    def _young(self, page: Marks) -> Marks:
        keep_from_ms = self._offset_range.keep_from_ms
        if keep_from_ms is None:
            return page
        young = page.timestamps >= keep_from_ms
        if young.all():
            return page
        self.forgotten_ms = later(self.forgotten_ms, int(page.timestamps[~young].max()))
        return select_marks(page, np.flatnonzero(young))
