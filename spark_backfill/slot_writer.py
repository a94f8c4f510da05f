"""The task: folds the blocks of its slots and puts one sorted file for each to the output.

A task may run twice, or be killed half way: its files have names of this attempt alone, and the manifest lists those of
attempts whose results Spark kept (`spark_backfill.publish`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup_sdk._marks import Marks, join_marks, select_marks
from dedup_sdk._store.manifest import SortedFile
from dedup_sdk._store.snapshot import SortedFileWriter
from spark_backfill.duplicate_offsets import check_one_record
from spark_backfill.finder import Finder
from spark_backfill.offset_range import largest
from spark_backfill.publish import Target
from spark_backfill.reshard_fold import ReshardFold
from spark_backfill.runs import Block, Tally, from_batch
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import Slot
from spark_backfill.time_fold import TimeFold

_PAGE_MARKS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWriter:
    """A function for ``mapInArrow``: blocks in, a JSON `SlotOutcome` a slot out.

    ``keep_from_ms`` has the horizon of each partition. ``finder`` makes the findings of what blocks tell for a report,
    None where none was asked for. ``resharded``: there may be marks of other partitions.
    """

    target: Target
    slots: tuple[Slot, ...]
    keep_from_ms: Mapping[int, int | None]
    finder: Finder | None = None
    resharded: bool = False

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fold all blocks, then write."""
        states: dict[int, _SlotState] = {}
        for batch in batches:
            for block in from_batch(batch):
                if block.slot not in states:
                    states[block.slot] = _SlotState(self._fold(self.slots[block.slot]))
                states[block.slot].add(block)
        # Popped, so that a slot that is written takes no memory beside the next one.
        outcomes = [self._write(number, states.pop(number)).to_json() for number in sorted(states)]
        if outcomes:
            yield pa.RecordBatch.from_arrays([pa.array(outcomes, pa.string())], ["outcome"])

    def _fold(self, slot: Slot) -> TimeFold | ReshardFold:
        keep_from_ms = self.keep_from_ms[slot.partition]
        return ReshardFold(keep_from_ms) if self.resharded else TimeFold(keep_from_ms)

    def _write(self, number: int, state: _SlotState) -> SlotOutcome:
        slot = self.slots[number]
        state.check_watched(slot.partition)
        folded = state.fold.finish()
        return SlotOutcome(
            slot=number,
            tally=state.tally,
            accepted=0,
            forgotten_ms=largest((folded.forgotten_ms, state.forgotten_ms)),
            forgotten_number=None,
            file=self.target.put(slot.partition, slot.range, lambda path: write_marks(path, folded.marks)),
            findings=self.finder.merged(slot, state.told) if self.finder and state.told else None,
        )


class _SlotState:
    """A fold, and the counts beside it."""

    def __init__(self, fold: TimeFold | ReshardFold) -> None:
        self.fold = fold
        self.tally = Tally()
        self.forgotten_ms: int | None = None
        self.told: list[bytes] = []
        self._watched: list[Marks] = []

    def check_watched(self, partition: int) -> None:
        """Check that all tasks saw the same records at the offsets that are watched."""
        if len(self._watched) > 1:
            check_one_record(partition, join_marks(self._watched))

    def add(self, block: Block) -> None:
        if block.told is not None:
            self.told.append(block.told)
        if block.watched is not None:
            self._watched.append(block.watched)
        self.forgotten_ms = largest((self.forgotten_ms, block.forgotten_ms))
        self.tally.add(block.tally)
        self.fold.add(block.marks.digests, block.marks.offsets, block.marks.timestamps)


def write_marks(path: Path, marks: Marks) -> SortedFile | None:
    """Write marks that ascend by digest as one sorted file; None, and no file, when there are none."""
    return write_pages(
        path,
        (
            select_marks(marks, np.arange(start, min(start + _PAGE_MARKS, marks.count)))
            for start in range(0, marks.count, _PAGE_MARKS)
        ),
    )


def write_pages(path: Path, pages: Iterator[Marks]) -> SortedFile | None:
    """Write pages of marks, none of them empty, that ascend by digest as one sorted file.

    None, and no file, when there are none.
    """
    first = next(pages, None)
    if first is None:
        return None
    with SortedFileWriter(path) as writer:
        for page in chain([first], pages):
            writer.add(page)
        return writer.finish()
