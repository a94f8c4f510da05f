"""Rows that several groups share: each group gets what it would get of its own offsets alone, for one fold of all of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk.marks import DIGEST_BYTES, Marks
from dedup_sdk.store.mark_sort import newest_per_digest
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.runs import Piece, RunPacker, Tally, from_batch, to_batch
from spark_backfill.shared_runs import SharedPacker, Taker
from spark_backfill.slots import Slot, SlotPlan
from tests.property.test_runs import Row, batch_of, last_of, rows

GROUPS = 3
RANGES = ({0: 1, 3: 4}, {0: 2, 3: 1}, {0: 3, 3: 3})
PLAN = SlotPlan(
    tuple(
        Slot(partition, number, ranges, group)
        for group, partitions in enumerate(RANGES)
        for partition, ranges in partitions.items()
        for number in range(ranges)
    )
)
ONE_SLOT = SlotPlan(tuple(Slot(partition, 0, 1, group) for group in range(GROUPS) for partition in (0, 3)))

bounds = st.tuples(st.integers(0, 60), st.integers(1, 61)).map(lambda pair: (min(pair), max(pair) + 1))
takers = st.builds(
    Taker,
    given_up=st.dictionaries(st.sampled_from([0, 3]), st.lists(st.integers(0, 60), unique=True).map(sorted)),
    bounds=st.dictionaries(st.sampled_from([0, 3]), bounds),
)
groups = st.lists(takers, min_size=GROUPS, max_size=GROUPS)


def inside(taker: Taker, row: Row) -> bool:
    """Whether a group takes a row."""
    begin, end = taker.bounds.get(row[0], (0, 0))
    return begin <= row[1] < end


def shared(taken: list[Row], found: list[Taker], cut: int, run_rows: int, *, ordered: bool) -> list[Piece]:
    """The pieces of rows that come in two batches, on the other side of the shuffle."""
    packer = SharedPacker(ONE_SLOT if ordered else PLAN, found, ordered=ordered, run_rows=run_rows)
    pieces: list[Piece] = []
    for part in (taken[:cut], taken[cut:]):
        for partition, columns in rows_of_batch(batch_of(part)):
            pieces += packer.add(partition, columns)
    pieces += packer.finish()
    return [back for piece in pieces for back in from_batch(to_batch(piece))]


def alone(taken: list[Row], taker: Taker, *, ordered: bool) -> list[Piece]:
    """The pieces of a run for that group alone."""
    plan = SlotPlan((Slot(0, 0, 1), Slot(3, 0, 1)))
    packer = RunPacker(plan, ordered=ordered, given_up=taker.given_up)
    mine = [row for row in taken if inside(taker, row)]
    pieces = [
        piece
        for partition, columns in rows_of_batch(batch_of(mine))
        for piece in packer.add(partition, columns)
    ]
    return [*pieces, *packer.finish()]


def total(pieces: list[Piece]) -> Tally:
    """What was counted of all of them."""
    tally = Tally()
    for each in pieces:
        tally.add(each.tally)
    return tally


@given(rows, groups, st.integers(0, 80), st.integers(1, 100))
@settings(deadline=None)
def test_each_group_gets_its_own(taken: list[Row], found: list[Taker], cut: int, run_rows: int) -> None:
    """Marks and counts are those of a run for that group alone, each in a slot of its own."""
    pieces = shared(taken, found, cut, run_rows, ordered=False)
    for group, taker in enumerate(found):
        own = alone(taken, taker, ordered=False)
        for partition, ranges in RANGES[group].items():
            ours = [each for each in pieces if PLAN.slots[each.slot][0::3] == (partition, group)]
            expected = [each for each in own if each.slot == (0 if partition == 0 else 1)]
            assert last_of([each.marks for each in ours]) == last_of([each.marks for each in expected])
            assert total(ours) == total(expected)
            for each in ours:
                prefixes = np.frombuffer(each.marks.digests, ">u2")[:: DIGEST_BYTES // 2].astype(int)
                assert (prefixes * ranges // 65536 == PLAN.slots[each.slot].range).all()


@given(rows, groups, st.integers(0, 80), st.integers(1, 100))
@settings(deadline=None)
def test_a_count_window_gets_every_row_in_order(
    taken: list[Row], found: list[Taker], cut: int, run_rows: int
) -> None:
    """Sorted by their first offsets, as Spark does, a group's pieces have its rows one after the other."""
    taken = [row for row in sorted(taken) if row[0] == 0]
    pieces = shared(taken, found, cut, run_rows, ordered=True)
    for group, taker in enumerate(found):
        slot = ONE_SLOT.slots.index(Slot(0, 0, 1, group))
        ours = sorted(
            (each for each in pieces if each.slot == slot), key=lambda each: each.tally.first_offset
        )
        own = alone(taken, taker, ordered=True)
        assert b"".join(each.marks.digests for each in ours) == b"".join(each.marks.digests for each in own)
        assert [o for each in ours for o in each.marks.offsets.tolist()] == [
            o for each in own for o in each.marks.offsets.tolist()
        ]
        assert total(ours) == total(own)


@pytest.mark.parametrize(("given_up", "folds"), [({}, 1), ({0: [2]}, 2), ({0: [9], 3: [2]}, 1)])
def test_what_groups_share_is_folded_once(
    given_up: dict[int, list[int]], folds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that gave something up in a run has a fold of its own for it; one that gave up something elsewhere has not."""
    counted: list[int] = []

    def counting(marks: Marks) -> Marks:
        counted.append(marks.count)
        return newest_per_digest(marks)

    monkeypatch.setattr("spark_backfill.shared_runs.newest_per_digest", counting)
    found = [Taker({}, {0: (0, 5)}), Taker(given_up, {0: (0, 5)}), Taker({}, {0: (0, 5)})]
    pieces = shared([(0, at, at, at % 2) for at in range(5)], found, 2, 100, ordered=False)
    assert len(counted) == folds
    assert {PLAN.slots[each.slot].group for each in pieces} == {0, 1, 2}
