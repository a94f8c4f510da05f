"""Snapshots of sources and units: shuffled, sorted, folded and written by the backfill's own tasks, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from dedup_sdk.ids import RecordFields
from dedup_sdk.store.manifest import Manifest, write_manifest
from dedup_sdk.window import Window
from spark_backfill.history import History
from spark_backfill.last_id_writer import writer_of
from spark_backfill.output import Output
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_shuffle import SHUFFLED_SCHEMA, SlotShuffle, rows_batch
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.snapshot import make_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dedup_sdk.record import Record
    from spark_backfill.last_id_spec import OrderedSpec
    from spark_backfill.stretch import Stretch

NAMES = [column.split()[0] for column in SHUFFLED_SCHEMA.split(", ")]
_NO_TIME = 2**63 - 1


def shuffled_and_sorted(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """What a slot's task gets: rows by slot, source, offset and time, any time before none."""
    table = pa.Table.from_batches(batches)
    columns = [table.column(name).to_pylist() for name in NAMES]
    rows = sorted(
        zip(*columns, strict=True), key=lambda row: (*row[:3], _NO_TIME if row[3] < 0 else row[3], row[4])
    )
    arrays = [
        pa.array(values, kind)
        for values, kind in zip(zip(*rows, strict=True), table.schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, NAMES)


def rows_of(records: Sequence[Record], spec: OrderedSpec) -> pa.RecordBatch:
    """Records as a reader returns them, at least one."""
    return rows_batch(
        pa.array([each.partition for each in records], pa.int32()),
        np.asarray([each.offset for each in records], np.int64),
        np.asarray([each.timestamp_ms for each in records], np.int64),
        spec.keys.digests(RecordFields(records)).digests,
    )


def rebuild_shuffled(
    records: Sequence[Record],
    stretch: Stretch,
    spec: OrderedSpec,
    folder: Path,
    *,
    ranges: int = 1,
    task_records: int = 7,
    batch_rows: int = 5,
    watched: bool = False,
    now_ms: int = 10**9,
) -> Manifest:
    """Make the snapshot of one stretch, read by tasks of so many records, in any order; ``watched``: as an archive with twins."""
    slots = SlotPlan(tuple(Slot(stretch.partition, number, ranges) for number in range(ranges)))
    bounds = {stretch.partition: (stretch.begin, stretch.high)}
    shuffle = SlotShuffle(spec=spec, plan=slots)
    if watched:
        shuffle = shuffle.of_archive(bounds, twins=True)
    shuffled = [
        batch
        for start in range(0, len(records), task_records)
        for batch in shuffle([rows_of(records[start : start + task_records], spec)])
    ]
    with Output(folder, overwrite=True) as output:
        writer = writer_of(spec, slots, [stretch], output.attempts, now_ms=now_ms)
        rows = shuffled_and_sorted(shuffled)
        cut = [rows.slice(start, batch_rows) for start in range(0, rows.num_rows, batch_rows)]
        outcomes = [
            SlotOutcome.from_json(text) for batch in writer(cut) for text in batch.column(0).to_pylist()
        ]
        output.take(slots, outcomes)
        manifest = make_manifest(
            History(cluster="c", topic="t", topic_id="", stretches=(stretch,)),
            slots,
            outcomes,
            spec=spec,
            window=Window.parse(spec.window),
            group="g",
            isolation="read_committed",
            created_ms=1,
        )
        write_manifest(output.folder, manifest)
        output.publish()
    return manifest
