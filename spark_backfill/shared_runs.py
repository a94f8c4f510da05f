"""Runs that several groups share: each row is read, digested and folded once, and packed for every group that processed it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.marks import Int64s, cut_marks, join_marks
from dedup_sdk.store.mark_sort import newest_per_digest
from spark_backfill.offset_twins import check_one_record, watched_marks
from spark_backfill.runs import RUN_ROWS, Piece, Rows, Tally, by_partition
from spark_backfill.slots import SlotPlan
from spark_backfill.stretch import Bounds


@dataclass(frozen=True, slots=True)
class Taker:
    """What a group takes of the rows of a source: those inside its bounds, without the IDs at offsets that it gave up (ascending)."""

    given_up: Mapping[int, Sequence[int]]
    bounds: Bounds = field(default_factory=dict)


class _Section(NamedTuple):
    """Offsets of a partition that the same groups take."""

    partition: int
    number: int


class SharedPacker:
    """Does as `RunPacker` for several groups, by their places in the run; no report, and no re-shard.

    A partition falls into sections, at the offsets where one of the groups begins or ends. A run of a section is folded once for all
    groups that take it, and once more for each that gave up something in it.
    """

    def __init__(
        self,
        plan: SlotPlan,
        takers: Sequence[Taker],
        *,
        ordered: bool,
        watch: Mapping[int, int] | None = None,
        run_rows: int = RUN_ROWS,
    ) -> None:
        self._plan = plan
        self._watch = watch or {}
        self._takers = takers
        self._ordered = ordered
        self._run_rows = run_rows
        self._rows = 0
        self._pending: dict[_Section, list[Rows]] = {}
        self._edges: dict[int, Int64s] = {}

    def add(self, partition: int, rows: Rows) -> Iterator[Piece]:
        """Take rows; yields pieces when a run is long enough."""
        if not len(rows.offsets):
            return
        for number, part in by_partition(self._sections(partition, rows.offsets), rows):
            self._pending.setdefault(_Section(partition, number), []).append(part)
        self._rows += len(rows.offsets)
        if self._rows >= self._run_rows:
            yield from self.finish()

    def finish(self) -> Iterator[Piece]:
        """Yield what is left."""
        self._rows = 0
        while self._pending:
            section, parts = self._pending.popitem()
            yield from self._folded(section, parts)

    def _folded(self, section: _Section, parts: Sequence[Rows]) -> Iterator[Piece]:
        together: list[int] = []
        for group in self._groups(section):
            given_up = self._given_up(group, section.partition, parts)
            if given_up is None:
                together.append(group)
            else:
                own = [part.without(given_up) for part in parts]
                yield from self._pieces(section.partition, own, [group])
        if together:
            yield from self._pieces(section.partition, parts, together)

    def _pieces(self, partition: int, parts: Sequence[Rows], groups: Sequence[int]) -> Iterator[Piece]:
        whole = Tally()
        for part in parts:
            whole.add(part.tally(partition))
        marks = join_marks([part.marks() for part in parts])
        if not self._ordered:
            check_one_record(partition, marks)
        watched = watched_marks(marks, self._watch[partition]) if partition in self._watch else None
        if not self._ordered:
            marks = newest_per_digest(marks)
        for group in groups:
            tally, seen = whole, watched
            for slot, start, end in self._plan.cut(partition, marks.digests, group):
                yield Piece(slot, tally, cut_marks(marks, start, end), watched=seen)
                tally, seen = Tally(), None

    def _given_up(self, group: int, partition: int, parts: Sequence[Rows]) -> Int64s | None:
        """What a group gave up of these rows, None where that is nothing."""
        offsets = np.asarray(self._takers[group].given_up.get(partition, ()), np.int64)
        if not offsets.size or not any(np.isin(part.offsets, offsets).any() for part in parts):
            return None
        return offsets

    def _sections(self, partition: int, offsets: Int64s) -> NDArray[np.intp]:
        """The section of each offset: how many edges lie at or below it."""
        if partition not in self._edges:
            bounds = [taker.bounds[partition] for taker in self._takers if partition in taker.bounds]
            self._edges[partition] = np.unique(np.asarray(bounds, np.int64))
        return np.searchsorted(self._edges[partition], offsets, side="right")

    def _groups(self, section: _Section) -> list[int]:
        """Who takes a section; none do outside the first and the last edge, and between two groups that are apart."""
        edges = self._edges[section.partition]
        if not 0 < section.number < len(edges):
            return []
        at = int(edges[section.number - 1])
        nowhere = (0, 0)
        return [
            group
            for group, taker in enumerate(self._takers)
            if (bounds := taker.bounds.get(section.partition, nowhere))[0] <= at < bounds[1]
        ]
