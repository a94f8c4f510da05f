"""Snapshots made by the backfill's own parts, without Spark.

Of rows of looked-up IDs, and of records that are folded in offset order.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dedup_sdk._store.manifest import Manifest, read_manifest
from dedup_sdk._store.snapshot_source import find_snapshots
from dedup_sdk._window import Window
from dedup_sdk.ids import RecordFields, id_spec
from spark_backfill.base import Base, resumable
from spark_backfill.base_reader import BaseReader
from spark_backfill.history import History
from spark_backfill.offset_range import OffsetRange
from spark_backfill.ordered_fold import plan_whole, writer_of
from spark_backfill.ordered_rows import BLOCK_ORDER, OrderedBlocks
from spark_backfill.ordered_spec import CountSpec
from spark_backfill.publish import IfExists, Output, Target
from spark_backfill.range_plan import LogPart, horizons, plan_on_base, plan_range
from spark_backfill.rows import ROWS_SCHEMA
from spark_backfill.runs import Rows, RunPacker, to_batch
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import Slot, SlotPlan, plan_slots
from spark_backfill.snapshot import make_manifest
from tests.support.naive_fold import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from dedup_sdk._record import Record
    from spark_backfill.ordered_spec import OrderedSpec, Spec
    from spark_backfill.runs import Block

    Write = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

NOW_MS = 10**9
_ROW_NAMES = [column.split()[0] for column in ROWS_SCHEMA.split(", ")]
_ROW_TYPES = (pa.int32(), pa.int64(), pa.int64(), pa.binary())


def plan(
    rows: Sequence[Row],
    window: Window,
    *,
    low: int,
    high: int,
    base: Manifest | None = None,
    start: int = 0,
) -> OffsetRange:
    """Plan the history ``[low, high)`` of partition 0.

    It is as Kafka's answers would have it when its log begins at ``start``.
    """
    inside = [row for row in rows if low <= row.offset < high]
    limits = horizons(window, inside[-1].timestamp_ms if inside else None, NOW_MS)
    keep = limits.keep_from_ms
    kept = [
        row.offset
        for row in rows
        if keep is not None and row.timestamp_ms >= keep > 0 and row.offset >= start
    ]
    entry = None if base is None else base.partition(0)
    entry = resumable(entry, low=low, high=high, vouched=False, window=window)
    begin = low if entry is None else entry.high
    part = LogPart(begin, high, start, complete=True, first_kept=kept[0] if kept else None)
    if entry is None:
        return plan_range(0, part, None, window=window, limits=limits)
    return plan_on_base(entry, part, None, low=low, window=window, limits=limits)


def rebuild(
    rows: Sequence[Row],
    window: Window,
    folder: Path,
    *,
    high: int,
    low: int = 0,
    base: Path | None = None,
    run_rows: int = 7,
    start: int = 0,
) -> Manifest:
    """Make the snapshot of ``[low, high)`` of partition 0 in ``folder``, on top of that in ``base``.

    Return its manifest.
    """
    known = None if base is None else read_manifest(base)
    return write(
        plan(rows, window, low=low, high=high, base=known, start=start),
        rows,
        window,
        folder,
        base=base,
        run_rows=run_rows,
    )


def write(
    offset_range: OffsetRange,
    rows: Sequence[Row],
    window: Window,
    folder: Path,
    *,
    base: Path | None = None,
    run_rows: int = 7,
) -> Manifest:
    """Make the snapshot of one stretch."""
    read = [row for row in rows if offset_range.begin <= row.offset < offset_range.high]
    history = History(cluster="c", topic="orders", topic_id="t", offset_ranges=(offset_range,))
    if window.count is not None:
        return _write_counted(history, read, window, folder, base=base, run_rows=run_rows)
    slots = plan_slots([offset_range], parallelism=2)
    packer = RunPacker(slots, run_rows=run_rows)
    blocks = [block for row in read for block in packer.add(0, _columns(row))]
    blocks += packer.finish()
    if offset_range.base is not None and base is not None:
        blocks += _of_base(base, slots, offset_range, run_rows=run_rows)
    blocks.sort(key=lambda block: block.slot)

    def writer(target: Target) -> Write:
        return SlotWriter(target=target, slots=slots.slots, keep_from_ms={0: offset_range.keep_from_ms})

    return _published(
        folder, slots, writer, map(to_batch, blocks), history, id_spec("key"), window, group="billing"
    )


def _write_counted(
    history: History, rows: Sequence[Row], window: Window, folder: Path, *, base: Path | None, run_rows: int
) -> Manifest:
    """Make the snapshot of a window by count; tasks read ``run_rows`` rows each."""
    slots, spec = plan_whole(history.offset_ranges), CountSpec("key", str(window))
    read = [
        pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip(zip(*part, strict=True), _ROW_TYPES, strict=True)
            ],
            _ROW_NAMES,
        )
        for start in range(0, len(rows), run_rows)
        if (part := rows[start : start + run_rows])
    ]
    found = None if base is None else Base(find_snapshots([str(base)])[0][0])
    return _published(
        folder,
        slots,
        lambda target: writer_of(spec, slots, history.offset_ranges, target, base=found, now_ms=NOW_MS),
        _in_order([OrderedBlocks(slots).begin([]), *(OrderedBlocks(slots)([batch]) for batch in read)]),
        history,
        spec,
        window,
        group="billing",
    )


def rebuild_records(
    records: Sequence[Record],
    offset_range: OffsetRange,
    spec: OrderedSpec,
    folder: Path,
    *,
    task_records: int = 7,
    batch_rows: int = 5,
    watched: bool = False,
    now_ms: int = NOW_MS,
) -> Manifest:
    """Make the snapshot of one stretch whose records are folded in offset order; return its manifest.

    They are read by tasks of ``task_records`` records each. ``watched``: by one, as an archive in which an offset may
    come twice.
    """
    slots = SlotPlan((Slot(offset_range.partition, 0, 1),))
    rows = _sorted_rows([rows_of(records, spec)])
    read = [rows] if watched else _sliced(rows, task_records)
    blocks = [OrderedBlocks(slots).begin([])]
    blocks += [OrderedBlocks(slots)(_sliced(batch, batch_rows)) for batch in read]
    return _published(
        folder,
        slots,
        lambda target: writer_of(spec, slots, [offset_range], target, now_ms=now_ms),
        _in_order(blocks),
        History(cluster="c", topic="t", topic_id="", offset_ranges=(offset_range,)),
        spec,
        Window.parse(spec.window),
        group="g",
    )


def rows_of(records: Sequence[Record], spec: OrderedSpec) -> pa.RecordBatch:
    """Return records, at least one, as the rows of a reader."""
    columns = [
        pa.array([each.partition for each in records], pa.int32()),
        pa.array([each.offset for each in records], pa.int64()),
        pa.array([each.timestamp_ms for each in records], pa.int64()),
        pa.array(spec.keys.digests(RecordFields(records)).digests, pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, [column.split()[0] for column in ROWS_SCHEMA.split(", ")])


def _sliced(batch: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    return [batch.slice(start, rows) for start in range(0, batch.num_rows, rows)]


def _sorted_rows(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return rows by offset; of those of one offset the one with an ID and the earlier time first, any before none."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    rows.sort(
        key=lambda row: (row["offset"], row["digest"] is None, row["timestamp_ms"] < 0, row["timestamp_ms"])
    )
    return pa.RecordBatch.from_pylist(rows, batches[0].schema)


def _in_order(tasks: Sequence[Iterable[pa.RecordBatch]]) -> list[pa.RecordBatch]:
    """Return the blocks of tasks as the fold reads them."""
    blocks = [batch for task in tasks for batch in task]
    return sorted(blocks, key=lambda batch: tuple(batch.column(name)[0].as_py() for name in BLOCK_ORDER))


def _published(
    folder: Path,
    slots: SlotPlan,
    writer: Callable[[Target], Write],
    rows: Iterable[pa.RecordBatch],
    history: History,
    spec: Spec,
    window: Window,
    *,
    group: str,
) -> Manifest:
    """Write the files of all slots, and publish them as a snapshot; ``writer`` gets the run's target."""
    with Output(str(folder), IfExists.REPLACED) as output:
        written = list(writer(output.target)(rows))
        outcomes = [SlotOutcome.from_json(text) for batch in written for text in batch.column(0).to_pylist()]
        manifest = make_manifest(
            history,
            slots,
            outcomes,
            spec=spec,
            window=window,
            group=group,
            isolation="read_committed",
            created_ms=NOW_MS,
        )
        output.publish(manifest, {})
    return manifest


def _columns(row: Row) -> Rows:
    keyed = None if row.digest is not None else np.zeros(1, np.bool_)
    return Rows(np.array([row.offset]), np.array([row.timestamp_ms]), row.digest or b"", keyed)


def _of_base(
    base: Path,
    plan: SlotPlan,
    offset_range: OffsetRange,
    *,
    run_rows: int,
) -> Iterator[Block]:
    assert offset_range.base is not None
    reader = BaseReader(
        files=base,
        tasks=(),
        plan=plan,
        floors={0: offset_range.base.floor},
        run_rows=run_rows,
    )
    entry = read_manifest(base).partition(0)
    assert entry is not None
    for file in entry.files:
        yield from reader.blocks(0, file)
