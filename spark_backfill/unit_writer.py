"""The task where records belong to units.

Folds each of its partitions and writes its marks as one sorted file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

import pyarrow as pa

from spark_backfill.arrow_columns import bytes_list
from spark_backfill.offset_range import OffsetRange
from spark_backfill.publish import Target, own_folder
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import write_pages
from spark_backfill.slots import Slot
from spark_backfill.unit_fold import UnitFold, UnitRow
from spark_backfill.unit_spec import UnitSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitWriter:
    """A function for ``mapInArrow``: shuffled rows in, sorted by slot, fold key and offset.

    A JSON `SlotOutcome` a slot out. ``offset ranges`` are those of the run by partition; ``now_ms`` is when the
    run began. Files go to ``target`` as those of `spark_backfill.slot_writer.SlotWriter`; the store of the fold is on
    this worker's disk.
    """

    target: Target
    slots: tuple[Slot, ...]
    offset_ranges: Mapping[int, OffsetRange]
    spec: UnitSpec
    now_ms: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold and write one slot after the other."""
        for number, rows in groupby(_rows(batches), key=itemgetter(0)):
            outcome = self._write(number, self.slots[number], rows).to_json()
            yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.string())], ["outcome"])

    def _write(self, number: int, slot: Slot, rows: Iterable[UnitRow]) -> SlotOutcome:
        offset_range = self.offset_ranges[slot.partition]
        with own_folder() as room:
            fold = UnitFold(self.spec, offset_range, room, now_ms=self.now_ms)
            file = self.target.put(
                slot.partition, slot.range, lambda path: write_pages(path, fold.pages(rows))
            )
        cut = fold.progress.high
        return SlotOutcome(
            slot=number,
            records=fold.tally.records,
            unkeyed=fold.tally.unkeyed,
            first_offset=fold.tally.first_offset,
            first_ms=fold.tally.first_ms,
            newest_ms=fold.tally.newest_ms if cut == offset_range.high else fold.progress.newest_ms,
            accepted=fold.progress.accepted,
            forgotten_ms=fold.forgotten_ms,
            forgotten_number=fold.forgotten_number,
            file=file,
            cut=cut,
        )


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[UnitRow]:
    for batch in batches:
        plain = (batch.column(name).to_pylist() for name in ("offset", "timestamp_ms"))
        slots, fold_keys = batch.column("slot").to_pylist(), bytes_list(batch.column("fold_key"))
        yield from map(UnitRow, slots, fold_keys, *plain, bytes_list(batch.column("id")))
