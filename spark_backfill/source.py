"""All that a run reads: from the topic, from an archive, and from a base."""

from __future__ import annotations

from collections.abc import Sequence

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.base_reader import base_tasks
from spark_backfill.client_reader import ClientRows, plan_ranges
from spark_backfill.fold import PackedRows, Packing
from spark_backfill.offset_range import Bounds, OffsetRange, archive_bounds, log_bounds
from spark_backfill.options import Options
from spark_backfill.ordered_rows import ORDERED_SCHEMA, OrderedBlocks
from spark_backfill.rows import Wanted
from spark_backfill.runs import BLOCK_SCHEMA
from spark_backfill.slots import SlotPlan
from spark_backfill.workers import ReadTasks, Source, Workers


def read_all_blocks(
    workers: Workers,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    packing: Packing,
    archive: Archive | None,
    base: Base | None = None,
) -> list[Source]:
    """Return the sources of the blocks (`spark_backfill.runs`) of offset ranges that are to be read."""
    sources = list[Source]()
    if in_log := log_bounds(offset_ranges):
        task = _of_topic(workers, options, in_log, packing.wanted(options.id))
        sources.append(ReadTasks(len(task.ranges), PackedRows(packing, task), BLOCK_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        sources.append(archive.blocks(in_archive, packing))
    if base is not None:
        kept = base_tasks(
            base,
            offset_ranges,
            packing.plan,
            parallelism=workers.tasks_at_a_time(),
        )
        sources += [] if kept is None else [kept]
    return sources


def read_ordered_blocks(
    workers: Workers,
    options: Options,
    offset_ranges: Sequence[OffsetRange],
    plan: SlotPlan,
    wanted: Wanted,
    archive: Archive | None,
) -> list[Source]:
    """Return the sources of the blocks (`spark_backfill.ordered_rows`) of those offset ranges."""
    sources = list[Source]([ReadTasks(1, OrderedBlocks(plan).begin, ORDERED_SCHEMA)])
    if in_log := log_bounds(offset_ranges):
        task = _of_topic(workers, options, in_log, wanted)
        sources.append(ReadTasks(len(task.ranges), OrderedBlocks(plan, task), ORDERED_SCHEMA))
    if archive is not None and (in_archive := archive_bounds(offset_ranges)):
        sources.append(archive.ordered_blocks(in_archive, plan, wanted))
    return sources


def _of_topic(workers: Workers, options: Options, bounds: Bounds, wanted: Wanted) -> ClientRows:
    """Return the task that reads these bounds; each of its ranges is one of its numbers."""
    return ClientRows(
        settings=options.client_settings,
        topic=options.topic,
        wanted=wanted,
        ranges=plan_ranges(bounds, workers.tasks_at_a_time()),
    )
