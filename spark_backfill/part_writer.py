"""The parts of a run (`spark_backfill.parts`): which are taken over, which are written, and which are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Final

from spark_backfill.archive import Archive
from spark_backfill.base import Base, SameUntil
from spark_backfill.ending import ended_by
from spark_backfill.errors import one_line
from spark_backfill.finder import Finder
from spark_backfill.fold import Packing, write_slots
from spark_backfill.history import History
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.offset_range import OffsetRange, spans
from spark_backfill.options import Options
from spark_backfill.ordered_fold import plan_whole, write_ordered
from spark_backfill.ordered_spec import OrderedSpec
from spark_backfill.parts import WrittenPart, cut_parts, request_digest, still_right, with_taken_over
from spark_backfill.publish import Output
from spark_backfill.rows import Wanted
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan, plan_slots
from spark_backfill.source import read_all_blocks, read_ordered_blocks
from spark_backfill.workers import ReadTasks, Source, Task, Workers

_MOST_IN_A_ROW: Final = 2
"""When so many parts fail one after the other, what they lack is likely to be lacked by all."""


@dataclass(slots=True, kw_only=True)
class PartWriter:
    """Takes over and writes the parts of one run.

    ``history``: that of the run; partitions that are taken over end where they ended then. ``finder``: as in
    `spark_backfill.fold.Packing`; ``around``: as in `spark_backfill.fold.write_slots`; ``now_ms``: when the run began.
    """

    options: Options
    history: History
    archive: Archive | None
    base: Base | None
    output: Output
    finder: Finder | None
    now_ms: int
    around: Callable[[Task], Task]
    say: Callable[[str], None]
    _taken_over: list[WrittenPart] = field(init=False, default_factory=list)
    _rule: str = field(init=False)

    def __post_init__(self) -> None:
        sampling = 0 if self.finder is None else self.finder.sampling
        self._rule = request_digest(self.options, self.history, self.base, findings=sampling)

    @property
    def records_taken_over(self) -> int:
        """How many records earlier runs read."""
        return sum(outcome.tally.records for part in self._taken_over for outcome in part.outcomes)

    def take_over(self) -> None:
        """Take over what earlier runs have kept, with ``--resume``, as far as it is still right.

        Of two runs the last one counts.
        """
        if not self.options.resume:
            return
        options, names, rule = self.options, self.output.names(), self._rule
        texts = list(self.output.kept(names))
        parts = {name: part for name, text in texts if (part := WrittenPart.from_json(text, rule))}
        found: dict[str, WrittenPart] = {}
        partitions = set[int]()
        with ExitStack() as stack:
            same_until: SameUntil = _nobody_knows
            if parts and options.bootstrap:
                log = KafkaLog(options.bootstrap, options.topic, options.client_config)
                same_until = stack.enter_context(log).same_until
            for name, part in parts.items():
                new = part.of(part.partitions - part.lacking(names) - partitions)
                right = still_right(self.history, new, vouched=options.vouched, same_until=same_until)
                if right.partitions:
                    found[name] = right
                    partitions |= right.partitions
        if not found:
            why = "that asked for the same" if texts else "there"
            self.say(
                f"warning: nothing is taken over: no unfinished run {why} has left a partition that can be"
            )
            return
        self.say(f"partitions {spans(sorted(partitions))} are taken over, and not read again")
        self.output.take_over(found)
        self._taken_over = list(found.values())
        self.history = with_taken_over(self.history, self._taken_over)

    def write(self, workers: Workers) -> list[WrittenPart]:
        """Write what is not taken over, part by part; return all parts.

        One that fails costs its own partitions: the others are written nevertheless, unless two in a row fail. Where
        nothing is to be read, the workers are not asked for anything.
        """
        done = {partition for part in self._taken_over for partition in part.partitions}
        ranges = [each for each in self.history.offset_ranges if each.partition not in done]
        written, failed, in_a_row = [*self._taken_over], list[Exception](), 0
        if not any(each.rows for each in ranges):
            return written
        # Marks of one partition may go to all; and an archive is looked through as a whole.
        at_once = self.archive is not None or self.options.reshard is not None
        parts = [tuple(ranges)] if at_once else cut_parts(ranges, self._together(workers))
        for number, part in enumerate(parts, 1):
            told = f"part {number} of {len(parts)} (partitions {spans(each.partition for each in part)})"
            try:
                with workers.watched(sum(each.rows for each in part)):
                    made = self._write_one(workers, part)
            except Exception as error:
                in_a_row += 1
                if ended_by(error) is not None or in_a_row == _MOST_IN_A_ROW or len(parts) == 1:
                    raise
                failed.append(error)
                self.say(f"warning: {told} failed, others go on: {one_line(error, self.options.secrets)}")
                continue
            in_a_row = 0
            written.append(made)
            if len(parts) > 1 or self._taken_over:
                self.output.keep(made.to_json(self._rule))
                self.say(f"{told} is written")
        if failed:
            raise failed[0]
        return written

    def _together(self, workers: Workers) -> int:
        """Return how many partitions a part should have: where each is one slot, as many as tasks run at a time."""
        return 1 if self.options.ordered is None else workers.tasks_at_a_time()

    def _write_one(self, workers: Workers, part: Sequence[OffsetRange]) -> WrittenPart:
        """Read, fold and write one part; raises the errors of its tasks."""
        spec = self.options.ordered
        plan, outcomes = (
            self._looked_up(workers, part) if spec is None else self._in_offset_order(workers, part, spec)
        )
        history = self.history
        written = WrittenPart(tuple(part), history.eras, history.epochs, plan.slots, tuple(outcomes))
        return written.of(written.partitions)

    def _looked_up(self, workers: Workers, part: Sequence[OffsetRange]) -> tuple[SlotPlan, list[SlotOutcome]]:
        options, packing = self.options, self._packing(workers, part)
        outcomes = write_slots(
            workers,
            self._checking_first(read_all_blocks(workers, options, part, packing, self.archive, self.base)),
            packing.plan,
            part,
            self.output.target,
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
        plan = plan_whole(part)
        header = None if self.finder is None else self.finder.producer_header
        wanted = replace(Wanted.of(spec, options.group), producer_header=header)
        outcomes = write_ordered(
            workers,
            self._checking_first(read_ordered_blocks(workers, options, part, plan, wanted, self.archive)),
            plan,
            part,
            spec,
            self.output.target,
            base=self.base,
            finder=self.finder,
            description=_step(options.topic, part),
            now_ms=self.now_ms,
            around=self.around,
        )
        return plan, outcomes

    def _checking_first(self, sources: Sequence[Source]) -> list[Source]:
        """Return the sources, whose tasks check the output first; those of an archive did so when it was surveyed."""
        before = self.output.target.check_before
        return [
            each._replace(run=before(each.run)) if isinstance(each, ReadTasks) else each for each in sources
        ]

    def _packing(self, workers: Workers, part: Sequence[OffsetRange]) -> Packing:
        """Return the slots, and how rows are packed for them."""
        options = self.options
        reshard = None if options.reshard is None else options.reshard.with_cuts(part)
        plan = plan_slots(
            part,
            parallelism=workers.tasks_at_a_time(),
            arriving=0 if reshard is None else 1 + sum(each.offsets for each in part) // reshard.partitions,
        )
        return Packing(
            plan,
            group=options.group,
            finder=self.finder,
            reshard=reshard,
            parallelism=options.parallelism,
        )


def _nobody_knows(_partition: int, _offset: int, _epoch: int) -> int | None:
    """For a run that asks no broker."""
    return None


def _step(topic: str, part: Sequence[OffsetRange]) -> str:
    """Return a description of the job that makes the files, for people who look at the cluster."""
    offsets = sum(each.offsets for each in part)
    # Not those in files that stay.
    taken = sum(each.rows for each in part) - offsets
    sources = [
        *([f"read {topic}[{spans(each.partition for each in part)}]"] if offsets else []),
        *([f"take {taken:,} marks of the base"] if taken else []),
    ]
    return f"{', '.join(sources)}; fold and write marks"
