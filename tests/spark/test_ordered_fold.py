"""The fold in offset order, without Spark: when a source leaves, how long what is looked up stays, and memory.

That it leaves a consumer's marks: `tests/property/test_rebuilt_equals_lived.py`.
"""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa

from dedup_sdk import Record
from spark_backfill.offset_range import OffsetRange
from spark_backfill.ordered_fold import OrderedFold
from spark_backfill.ordered_rows import OrderedBlocks, rows_in
from spark_backfill.ordered_spec import LastIdSpec
from spark_backfill.runs import PIECE_BYTES
from spark_backfill.slots import Slot, SlotPlan
from tests.support.lives import in_snapshot, offset_range_of
from tests.support.rebuilding import rebuild_records, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WINDOW_MS = 160


def spec_of(depth: int, *, second_ms: int | None = None) -> LastIdSpec:
    """Integers in the header ``seq``; a second opinion, where it has a window, looks up ``other``."""
    return LastIdSpec(
        id="header:seq",
        order="integer",
        source=None,
        window=f"{WINDOW_MS}ms",
        reorder_depth=depth,
        otherwise=None if second_ms is None else "header:other",
        otherwise_window=None if second_ms is None else f"{second_ms}ms",
    )


def record(offset: int, ident: str, timestamp_ms: int, *, other: str) -> Record:
    """A record of partition 0."""
    named = {"seq": ident, "other": other}
    headers = [(name, text.encode()) for name, text in named.items()]
    return Record("t", 0, offset, timestamp_ms, headers=headers)


def looked_up(folder: Path) -> list[tuple[int, int]]:
    """Offset and timestamp of each ID that is looked up, sorted."""
    return sorted(mark[:2] for mark in in_snapshot(folder).marks.values() if not mark.payload)


def sources(folder: Path) -> list[int]:
    """The last offset of each source, sorted."""
    return sorted(mark.offset for mark in in_snapshot(folder).marks.values() if mark.payload)


def test_a_source_of_any_length_takes_no_more_memory(tmp_path: Path) -> None:
    """All records of a partition may be in one source: its rows are on disk, and only its state stays."""
    spec, count = spec_of(128), 60_000

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, count, 1_000):
            numbers = range(start, start + 1_000)
            yield rows_of([record(at, f"{at:060}", at, other="") for at in numbers], spec)

    blocks = [
        block["rows"]
        for batch in OrderedBlocks(SlotPlan((Slot(0, 0, 1),)))(batches())
        for block in batch.to_pylist()
    ]
    assert len(blocks) > 1
    fold = OrderedFold(
        spec, OffsetRange(partition=0, low=0, begin=0, high=count, complete=True), tmp_path, now_ms=10**9
    )
    tracemalloc.start()
    try:
        [page] = fold.pages(iter(blocks))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.offsets.tolist() == [count - 1]
    assert most < 3 * max(map(len, blocks))


def test_no_block_is_large() -> None:
    """However long the IDs of one batch are; each offset is in one block, in order."""
    names = [f"{at:02}".encode() * 50_000 for at in range(100)]
    rows = pa.RecordBatch.from_pydict(
        {"partition": pa.array([0] * 100, pa.int32()), "offset": range(7, 107), "timestamp_ms": range(100),
         "digest": pa.array(names, pa.binary())}
    )  # fmt: skip
    blocks = [batch.to_pylist()[0] for batch in OrderedBlocks(SlotPlan((Slot(0, 0, 1),)))([rows])]
    assert max(len(block["rows"]) for block in blocks) < PIECE_BYTES + 4_096
    read = [(block["first_offset"], rows_in(block["rows"])) for block in blocks]
    assert [found.column("offset")[0].as_py() for _, found in read if found] == [first for first, _ in read]
    assert [at for _, found in read if found for at in found.column("offset").to_pylist()] == list(
        range(7, 107)
    )


def test_a_source_lives_as_long_as_what_is_looked_up(tmp_path: Path) -> None:
    """By the longer of the windows, as in the consumer.

    Older marks leave, and coverage says from when on all is known.
    """
    spec, folder = spec_of(9, second_ms=10 * WINDOW_MS), tmp_path / "s"
    assert spec.reach.time_ms == 10 * WINDOW_MS
    assert spec_of(9, second_ms=1).reach.time_ms == WINDOW_MS
    log = [
        record(0, "5", 1_000, other="a"),
        record(1, "?", 1_000 + WINDOW_MS, other="b"),
        record(2, "?", 1_000 + 11 * WINDOW_MS, other="c"),
    ]
    manifest = rebuild_records(log, offset_range_of(log, spec.reach), spec, folder)
    assert (sources(folder), [offset for offset, _ in looked_up(folder)]) == ([], [1, 2])
    assert manifest.partitions[0].known.since_ms == 1_001
    rebuild_records(log[:2], offset_range_of(log[:2], spec.reach), spec, folder)
    assert (sources(folder), [offset for offset, _ in looked_up(folder)]) == ([0], [0, 1])
