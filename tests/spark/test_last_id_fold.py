"""The fold of compared IDs, without Spark: gaps of the history, when a source leaves, memory, rows that are shuffled.

That it leaves a consumer's marks: `tests/property/test_rebuilt_equals_lived.py`.
"""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from dedup_sdk import Record
from dedup_sdk._core.seen import Candidate
from spark_backfill.last_id_fold import LastIdFold, ShuffledRow
from spark_backfill.last_id_spec import LastIdSpec
from spark_backfill.offset_range import OffsetRange
from spark_backfill.slot_shuffle import SlotShuffle
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


@pytest.mark.parametrize(("last", "known"), [(39, None), (59, 0), (61, 2), (80, None)])
def test_a_source_across_a_gap_of_the_history_is_in_doubt(last: int, known: int | None) -> None:
    """Its memory is right, and not complete.

    Until enough has come that is new, whatever it does not remember is uncovered.
    """
    spec = spec_of(2)
    rule = spec.strategy.rule
    offsets = [*range(40), *range(60, last + 1)]
    rows = [
        ShuffledRow(0, b"l" * 16, at, at, Candidate(b"%d" % at, rule.order.sort_key(b"%d" % at)))
        for at in offsets
    ]
    high, gaps = (60, ((40, 60),)) if last >= 59 else (40, ())
    offset_range = OffsetRange(
        partition=0, low=0, begin=0, high=max(high, last + 1), complete=False, gaps=gaps
    )
    [page] = LastIdFold(rule, offset_range).pages(rows)
    assert page.payloads is not None
    assert rule.restore(page.payloads[0], 0, 0).seen.known == known


def test_a_source_of_any_length_takes_no_more_memory() -> None:
    """All records of a partition may be in one source: its rows stream by, and only its state stays."""
    spec, count = spec_of(128), 60_000
    rule = spec.strategy.rule

    def rows() -> Iterator[ShuffledRow]:
        for number in range(count):
            text = f"{number:060}".encode()
            yield ShuffledRow(0, b"l" * 16, number, number, Candidate(text, rule.order.sort_key(text)))

    fold = LastIdFold(rule, OffsetRange(partition=0, low=0, begin=0, high=count, complete=True))
    tracemalloc.start()
    try:
        [page] = fold.pages(rows())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.offsets.tolist() == [count - 1]
    assert most < 500_000, "60,000 rows are some twenty million bytes"


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
    manifest = rebuild_records(log, offset_range_of(log, spec.reach), spec, folder, ranges=2)
    assert (sources(folder), [offset for offset, _ in looked_up(folder)]) == ([], [1, 2])
    assert manifest.partitions[0].since_ms == 1_001
    rebuild_records(log[:2], offset_range_of(log[:2], spec.reach), spec, folder)
    assert (sources(folder), [offset for offset, _ in looked_up(folder)]) == ([0], [0, 1])


def test_an_id_on_most_records_is_a_row_a_batch() -> None:
    """Of looked-up IDs only the last sighting goes through the shuffle, from where a task read it."""
    spec = spec_of(9, second_ms=WINDOW_MS)
    records = [record(at, str(at), 1_000 + at, other="hot" if at % 10 else "cold") for at in range(100)]
    slots = SlotPlan((Slot(0, 0, 1),))
    shuffle = SlotShuffle(spec=spec, plan=slots)
    rows = [
        (row["offset"], row["timestamp_ms"])
        for batch in shuffle([rows_of(records[:50], spec), rows_of(records[50:], spec)])
        for row in batch.to_pylist()
        if row["id"] is None
    ]
    assert sorted(rows) == [(at, 1_000 + at) for at in (40, 49, 90, 99)]
