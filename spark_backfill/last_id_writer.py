"""From rows to sorted files where rows are folded in offset order.

One shuffle, which Spark sorts on disk where memory is short, folded as it streams by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Final

import pyarrow as pa

from dedup_sdk._core.seen import Candidate
from dedup_sdk.orders import Order
from spark_backfill.arrow_columns import bytes_list
from spark_backfill.last_id_fold import SIGHTED, LastIdFold, ShuffledRow
from spark_backfill.last_id_spec import LastIdSpec, OrderedSpec
from spark_backfill.offset_range import OffsetRange
from spark_backfill.publish import Target
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import write_pages
from spark_backfill.slots import Slot, SlotPlan
from spark_backfill.unit_writer import UnitWriter
from spark_backfill.workers import Folding, Source, Task, Workers

_ORDER: Final = ("slot", "fold_key", "offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class LastIdWriter:
    """A function for ``mapInArrow``: shuffled rows in, sorted by slot, fold key and offset.

    A JSON `SlotOutcome` a slot out. ``offset ranges`` are those of the run by partition. Files go to ``target`` as
    those of `spark_backfill.slot_writer.SlotWriter`.
    """

    target: Target
    slots: tuple[Slot, ...]
    offset_ranges: Mapping[int, OffsetRange]
    spec: LastIdSpec

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold and write one slot after the other."""
        rule = self.spec.strategy.rule
        for number, rows in groupby(_rows(batches, rule.order), key=itemgetter(0)):
            slot = self.slots[number]
            fold = LastIdFold(rule, self.offset_ranges[slot.partition])
            outcome = self._write(number, slot, fold, rows).to_json()
            yield pa.RecordBatch.from_arrays([pa.array([outcome], pa.string())], ["outcome"])

    def _write(self, number: int, slot: Slot, fold: LastIdFold, rows: Iterable[ShuffledRow]) -> SlotOutcome:
        file = self.target.put(slot.partition, slot.range, lambda path: write_pages(path, fold.pages(rows)))
        return SlotOutcome(
            slot=number,
            records=fold.tally.records,
            unkeyed=fold.tally.unkeyed,
            first_offset=fold.tally.first_offset,
            first_ms=fold.tally.first_ms,
            newest_ms=fold.tally.newest_ms,
            accepted=0,
            forgotten_ms=fold.forgotten_ms,
            forgotten_number=None,
            file=file,
            malformed=fold.malformed,
        )


def write_ordered(
    workers: Workers,
    sources: Sequence[Source],
    plan: SlotPlan,
    offset_ranges: Sequence[OffsetRange],
    spec: OrderedSpec,
    target: Target,
    *,
    description: str,
    now_ms: int,
    around: Callable[[Task], Task],
) -> list[SlotOutcome]:
    """Fold shuffled rows and write their marks to ``target``; return the outcome of each slot that had a row.

    ``around`` as in `spark_backfill.fold.write_slots`. ``now_ms`` is when
    the run began.
    """
    if not plan.slots:
        return []
    task = writer_of(spec, plan, offset_ranges, target, now_ms=now_ms)
    folding = Folding(around(task), len(plan.slots), _ORDER, repeats=True)
    return list(map(SlotOutcome.from_json, workers.fold(sources, folding, description)))


def writer_of(
    spec: OrderedSpec, plan: SlotPlan, offset_ranges: Sequence[OffsetRange], target: Target, *, now_ms: int
) -> LastIdWriter | UnitWriter:
    """Return the task that folds and writes; all as in `write_ordered`."""
    by_partition = {each.partition: each for each in offset_ranges}
    if isinstance(spec, LastIdSpec):
        return LastIdWriter(target=target, slots=plan.slots, offset_ranges=by_partition, spec=spec)
    return UnitWriter(target=target, slots=plan.slots, offset_ranges=by_partition, spec=spec, now_ms=now_ms)


def _rows(batches: Iterable[pa.RecordBatch], order: Order) -> Iterator[ShuffledRow]:
    for batch in batches:
        candidates = _candidates(bytes_list(batch.column("id")), order)
        plain = (batch.column(name).to_pylist() for name in ("offset", "timestamp_ms"))
        slots, fold_keys = batch.column("slot").to_pylist(), bytes_list(batch.column("fold_key"))
        yield from map(ShuffledRow, slots, fold_keys, *plain, candidates)


def _candidates(column: Sequence[bytes | None], order: Order) -> Iterable[Candidate]:
    """Return each ID with its place, `SIGHTED` where there is none."""
    ids = [each for each in column if each is not None]
    places = order.sort_keys(ids)
    if len(ids) == len(column):
        return map(Candidate, ids, places)
    compared = zip(ids, places, strict=True)
    return [SIGHTED if each is None else Candidate(*next(compared)) for each in column]
