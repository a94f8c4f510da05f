"""The fold of last sightings, in any order: from rows to blocks, and from blocks to sorted files, in one shuffle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own documentation writes it so)

from dedup_sdk.ids import IdSpec
from spark_backfill.duplicate_offsets import watch_bits
from spark_backfill.finder import Finder
from spark_backfill.offset_order import OffsetOrder, order_columns
from spark_backfill.offset_range import Bounds, OffsetRange
from spark_backfill.parallelism import tasks_at_a_time
from spark_backfill.publish import Target
from spark_backfill.reshard import Reshard
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.rows import Wanted
from spark_backfill.runs import BLOCK_SCHEMA, RunPacker, to_batch
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import SlotPlan, placement_column
from spark_backfill.workers import Folding, Source, Task, Workers, collecting_rarely

_BLOCK_BITS: Final = 18
"""Rows that may come twice are sorted in blocks of so many offsets, which are dealt out to tasks."""
_TASKS_A_CORE: Final = 4


@dataclass(frozen=True, slots=True)
class Packing:
    """How tasks pack the rows they read for the slots of the plan; see `RunPacker`.

    ``group``: whose redrive headers are part of an ID; None: the history is that of nobody in particular.
    ``finder``: who finds out what a report shows, None where none was asked for.
    ``reshard``: marks go to the partition of their record's key, too. ``has_duplicates``: some rows certainly come
    twice, so that they are sorted by offset and each counts once. ``watch``: the bits by which offsets of a
    partition are watched (`spark_backfill.duplicate_offsets`), where they may. ``parallelism``: see `tasks_at_a_time`.
    ``archived``: the rows are those of an archive.
    """

    plan: SlotPlan
    group: str | None = None
    finder: Finder | None = None
    reshard: Reshard | None = None
    has_duplicates: bool = False
    watch: Mapping[int, int] = field(default_factory=dict)
    parallelism: int | None = None
    archived: bool = False

    @property
    def marks_redriven(self) -> bool:
        """Whether a record with a redrive header leaves two marks, one as the group that the header names knows it."""
        return self.group is None

    @property
    def by_offset(self) -> bool:
        """Whether rows have to come by offset, each offset once."""
        return self.finder is not None or self.has_duplicates

    def of_archive(self, bounds: Bounds, *, has_duplicates: bool) -> Packing:
        """Return it for an archive of which these offsets are read.

        ``has_duplicates``: some of them certainly come twice.
        """
        # Rows sorted by offset are compared as a whole.
        watch = (
            {}
            if self.by_offset or has_duplicates
            else {partition: watch_bits(end - begin) for partition, (begin, end) in bounds.items()}
        )
        return replace(self, has_duplicates=has_duplicates, watch=watch, archived=True)

    def wanted(self, spec: IdSpec) -> Wanted:
        """Return the rows that are packed."""
        return Wanted(
            spec=str(spec),
            group=self.group,
            producer_header=None if self.finder is None else self.finder.producer_header,
            with_keys=self.reshard is not None,
            with_redriven=self.marks_redriven,
        )

    def packer(self) -> RunPacker:
        """Return a packer for one task."""
        return RunPacker(
            self.plan,
            told=None if self.finder is None else self.finder.told,
            reshard=self.reshard,
            watch=self.watch,
            archived=self.archived,
        )


@dataclass(frozen=True, slots=True)
class PackedRows:
    """A function for ``mapInArrow``: the batches, read by ``read`` as rows (`spark_backfill.rows`), as blocks.

    Where the packing goes by offset a task has the rows of a partition by offset, and no other task has any between
    them.
    """

    packing: Packing
    read: Task = iter

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the rows and pack them."""
        packer, order = self.packing.packer(), OffsetOrder()
        with collecting_rarely():
            for batch in self.read(batches):
                for partition, found in rows_of_batch(batch, self.packing.reshard):
                    # An archive may have a record twice; that is one sighting.
                    taken = order.once(partition, found) if self.packing.by_offset else found
                    yield from map(to_batch, packer.add(partition, taken))
        yield from map(to_batch, packer.finish())


def pack_rows(rows: DataFrame, packing: Packing) -> DataFrame:
    """Return the blocks of rows (`spark_backfill.rows`), which may come in any order."""
    if packing.finder is not None:
        rows = by_offset(rows, packing.plan)
    elif packing.has_duplicates:
        rows = rows.repartition(
            _TASKS_A_CORE * tasks_at_a_time(rows.sparkSession, packing.parallelism),
            "partition",
            F.shiftright("offset", _BLOCK_BITS),
        ).sortWithinPartitions(*order_columns())
    return rows.mapInArrow(PackedRows(packing), BLOCK_SCHEMA)


def by_offset(rows: DataFrame, plan: SlotPlan) -> DataFrame:
    """Return rows (`spark_backfill.rows`) so that one task has those of a partition, in the order of `OffsetOrder`."""
    count = 1 + max((slot.partition for slot in plan.slots), default=0)
    placed = rows.repartition(count, placement_column(rows["partition"], count))
    return placed.sortWithinPartitions(*order_columns())


def write_slots(
    workers: Workers,
    sources: Sequence[Source],
    plan: SlotPlan,
    offset_ranges: Sequence[OffsetRange],
    target: Target,
    *,
    description: str = "fold and write marks",
    finder: Finder | None = None,
    resharded: bool = False,
    around: Callable[[Task], Task] = lambda task: task,
) -> list[SlotOutcome]:
    """Fold the blocks of all sources and write the marks to ``target``; return the outcome of each slot with a row.

    ``finder``: as in `Packing`. ``resharded``: blocks may have marks of other partitions. ``around`` wraps the task,
    for tests that let it fail.
    """
    if not plan.slots:
        return []
    task = SlotWriter(
        target=target,
        slots=plan.slots,
        keep_from_ms={each.partition: each.keep_from_ms for each in offset_ranges},
        finder=finder,
        resharded=resharded,
    )
    written = workers.fold(sources, Folding(around(task), len(plan.slots)), description)
    return list(map(SlotOutcome.from_json, written))
