"""One part of a run: its history is read, packed, shuffled once, folded, and written to the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spark_backfill.archive import Archive
from spark_backfill.base import Base
from spark_backfill.finder import Finder
from spark_backfill.fold import Packing, write_slots
from spark_backfill.history import History
from spark_backfill.last_id_spec import LastIdSpec, OrderedSpec
from spark_backfill.last_id_writer import write_ordered
from spark_backfill.offset_range import OffsetRange
from spark_backfill.options import Options
from spark_backfill.parts import Written
from spark_backfill.publish import Target
from spark_backfill.session import spans
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_shuffle import SlotShuffle
from spark_backfill.slots import SlotPlan, plan_slots
from spark_backfill.source import read_all_blocks, read_shuffled_rows
from spark_backfill.workers import Task, Workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """Writes parts of one run.

    ``finder``: as in `spark_backfill.fold.Packing`; ``around``: as in `spark_backfill.fold.write_slots`; ``now_ms``:
    when the run began.
    """

    options: Options
    archive: Archive | None
    base: Base | None
    target: Target
    finder: Finder | None
    now_ms: int
    around: Callable[[Task], Task]

    def together(self, workers: Workers) -> int:
        """Return how many partitions a part should have: where each is one slot, as many as tasks run at a time."""
        ordered, counts = self.options.ordered, self.options.window.count is not None
        splits = not counts if ordered is None else _splits(ordered)
        return 1 if splits else workers.tasks_at_a_time()

    def write(self, workers: Workers, part: Sequence[OffsetRange], history: History) -> Written:
        """Read, fold and write the offset ranges of a part of a history; raises the errors of its tasks."""
        spec = self.options.ordered
        plan, outcomes = (
            self._looked_up(workers, part) if spec is None else self._in_offset_order(workers, part, spec)
        )
        written = Written(tuple(part), history.eras, history.epochs, plan.slots, tuple(outcomes))
        return written.of({each.partition for each in part})

    def _looked_up(self, workers: Workers, part: Sequence[OffsetRange]) -> tuple[SlotPlan, list[SlotOutcome]]:
        options, packing = self.options, self._packing(workers, part)
        outcomes = write_slots(
            workers,
            read_all_blocks(workers, options, part, packing, self.archive, self.base),
            packing.plan,
            part,
            options.window,
            self.target,
            description=_step(options.topic, part),
            finder=self.finder,
            resharded=packing.reshard is not None,
            around=self.around,
        )
        return packing.plan, outcomes

    def _in_offset_order(
        self, workers: Workers, part: Sequence[OffsetRange], spec: OrderedSpec
    ) -> tuple[SlotPlan, list[SlotOutcome]]:
        options = self.options
        plan = plan_slots(part, split=_splits(spec), parallelism=workers.tasks_at_a_time())
        shuffle = SlotShuffle(spec=spec, plan=plan, group=options.group)
        outcomes = write_ordered(
            workers,
            read_shuffled_rows(workers, options, part, shuffle, self.archive),
            plan,
            part,
            spec,
            self.target,
            description=_step(options.topic, part),
            now_ms=self.now_ms,
            around=self.around,
        )
        return plan, outcomes

    def _packing(self, workers: Workers, part: Sequence[OffsetRange]) -> Packing:
        """Return the slots, and how rows are packed for them."""
        options = self.options
        ordered = options.window.count is not None
        reshard = None if options.reshard is None else options.reshard.with_cuts(part)
        plan = plan_slots(
            part,
            split=not ordered,
            parallelism=workers.tasks_at_a_time(),
            arriving=0 if reshard is None else 1 + sum(each.offsets for each in part) // reshard.partitions,
        )
        return Packing(
            plan,
            ordered,
            group=options.group,
            finder=self.finder,
            reshard=reshard,
            parallelism=options.parallelism,
        )


def _splits(spec: OrderedSpec) -> bool:
    """Whether a partition that is folded in offset order may have several slots.

    Not where the partition is one source without a second opinion, which leaves one mark; nor where there are
    units, which are judged in the order of their ends.
    """
    return isinstance(spec, LastIdSpec) and (spec.source, spec.otherwise) != (None, None)


def _step(topic: str, part: Sequence[OffsetRange]) -> str:
    """Return what the job does that makes the files, for people who look at the cluster."""
    offsets = sum(each.offsets for each in part)
    # Not those in files that stay.
    taken = sum(each.rows for each in part) - offsets
    sources = [
        *([f"read {topic}[{spans(each.partition for each in part)}]"] if offsets else []),
        *([f"take {taken:,} marks of the base"] if taken else []),
    ]
    return f"{', '.join(sources)}; fold and write marks"
