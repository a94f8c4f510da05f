"""Packing rows before the shuffle: nothing is lost, doubled or changed on the way, whatever the order and the cuts."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dedup_sdk._marks import DIGEST_BYTES, Marks
from spark_backfill.duplicate_offsets import watch_bits
from spark_backfill.finder import Finder
from spark_backfill.findings.sightings import SIGHTINGS
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.runs import PIECE_BYTES, Block, Rows, RunPacker, Tally, from_batch, to_batch
from spark_backfill.slots import Slot, SlotPlan

PARTITIONS = {0: 1, 3: 4}
PLAN = SlotPlan(
    tuple(Slot(partition, number, n) for partition, n in PARTITIONS.items() for number in range(n))
)

Row = tuple[int, int, int, int | None]
rows = st.lists(
    st.tuples(
        st.sampled_from(sorted(PARTITIONS)),
        st.integers(0, 60),
        st.integers(-1, 1_000),
        st.none() | st.integers(0, 9),
    ),
    max_size=80,
    unique_by=lambda row: row[:2],
)


def digest(name: int | None) -> bytes | None:
    """The digest of an ID, none without one."""
    return None if name is None else hashlib.sha256(bytes([name])).digest()[:DIGEST_BYTES]


def batch_of(taken: list[Row]) -> pa.RecordBatch:
    """Rows as Spark gives them."""
    columns = list(zip(*taken, strict=True)) or [(), (), (), ()]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns[0], pa.int32()),
            pa.array(columns[1], pa.int64()),
            pa.array(columns[2], pa.int64()),
            pa.array(list(map(digest, columns[3])), pa.binary()),
        ],
        ["partition", "offset", "timestamp_ms", "digest"],
    )


def packed(taken: list[Row], cut: int, *, run_rows: int) -> list[Block]:
    """The pieces of rows that come in two batches, on the other side of the shuffle."""
    packer = RunPacker(PLAN, run_rows=run_rows)
    blocks: list[Block] = []
    for part in (taken[:cut], taken[cut:]):
        # As a slice of a larger batch, whose buffers begin elsewhere.
        whole = batch_of([(0, 99, 0, 1), *part])
        for partition, columns in rows_of_batch(whole.slice(1)):
            blocks += packer.add(partition, columns)
    blocks += packer.finish()
    return [back for block in blocks for back in from_batch(to_batch(block))]


def last_of(marks: list[Marks]) -> dict[bytes, tuple[int, int]]:
    """Of each digest the offset and timestamp of its mark with the highest offset."""
    found: dict[bytes, tuple[int, int]] = {}
    for page in marks:
        for at in range(page.count):
            each = page.digests[DIGEST_BYTES * at : DIGEST_BYTES * (at + 1)]
            found[each] = max(found.get(each, (-1, -1)), (int(page.offsets[at]), int(page.timestamps[at])))
    return found


@given(rows, st.integers(0, 80), st.integers(1, 100))
@settings(deadline=None)
def test_pieces_hold_the_last_mark_of_each_id(taken: list[Row], cut: int, run_rows: int) -> None:
    """In the slot of its digest; every row is counted once."""
    blocks = packed(taken, cut, run_rows=run_rows)
    for partition, ranges in PARTITIONS.items():
        ours = [each for each in blocks if PLAN.slots[each.slot].partition == partition]
        mine = [(o, t, digest(n)) for p, o, t, n in taken if p == partition]
        expected: dict[bytes, tuple[int, int]] = {}
        for offset, stamp, name in mine:
            if name is not None:
                expected[name] = max(expected.get(name, (-1, -1)), (offset, stamp))
        assert last_of([each.marks for each in ours]) == expected
        total = Tally()
        for each in ours:
            total.add(each.tally)
            prefixes = np.frombuffer(each.marks.digests, ">u2")[:: DIGEST_BYTES // 2].astype(int)
            assert (prefixes * ranges // 65536 == PLAN.slots[each.slot].range).all()
        assert (total.records, total.unkeyed) == (len(mine), sum(name is None for _, _, name in mine))
        if mine:
            first = min(mine)
            assert (total.first_offset, total.first_ms) == first[:2]
            assert total.newest_ms == max(stamp for _, stamp, _ in mine)


def test_a_damaged_piece_is_an_error() -> None:
    """Columns of different lengths would become wrong marks."""
    marks = Marks(digest(1) or b"", np.array([1], np.int64), np.array([2, 3], np.int64))
    with pytest.raises(ValueError, match="run the job again"):
        list(from_batch(to_batch(Block(0, Tally(), marks))))


def test_no_row_is_large() -> None:
    """However long a run is."""
    count = 300_000
    digests = random.Random(1).randbytes(DIGEST_BYTES * count)
    run = Rows(np.arange(7, 7 + count), np.arange(count), digests)
    packer = RunPacker(PLAN, told=Finder(now_ms=0).told, watch={0: watch_bits(count)})
    batches = [to_batch(block) for block in [*packer.add(0, run), *packer.finish()]]
    assert max(batch.get_total_buffer_size() for batch in batches) < PIECE_BYTES + 4096
    blocks = [block for batch in batches for block in from_batch(batch)]
    offsets = np.concatenate([block.marks.offsets for block in blocks])
    assert np.sort(offsets).tolist() == list(range(7, 7 + count))
    told = [block.told.partition(b"\n")[2] for block in blocks if block.told is not None]
    assert len(np.frombuffer(b"".join(told), SIGHTINGS)) == count
