"""The fold of a time window, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._window import Window
from spark_backfill import time_fold
from spark_backfill.time_fold import TimeFold
from tests.support.folding import add_rows
from tests.support.known_marks import newest_marks
from tests.support.naive_fold import Row, digest_of, naive_fold

if TYPE_CHECKING:
    from dedup_sdk._marks import Marks

WINDOW = Window(milliseconds=40)
ROWS = st.lists(st.tuples(st.integers(0, 9), st.integers(-1, 200)), max_size=60)


def fold(rows: list[Row], keep_from_ms: int | None, batch: int) -> time_fold.Folded:
    """Fold rows, so many a batch."""
    folding = TimeFold(keep_from_ms)
    add_rows(folding, rows, batch)
    return folding.finish()


@given(ROWS, st.randoms(use_true_random=False), st.integers(1, 20))
def test_equals_a_loop_over_the_log(drawn: list[tuple[int, int]], random: object, batch: int) -> None:
    """Whatever the order of the rows and however they are cut, each ID has the mark of its last record."""
    rows = [Row(0, offset, time, digest_of(name)) for offset, (name, time) in enumerate(drawn)]
    expected, _ = naive_fold(rows, WINDOW)
    random.shuffle(rows)  # type: ignore[attr-defined]
    folded = fold(rows, None, batch)
    assert {d: m._replace(number=0) for d, m in expected.items()} == newest_marks([folded.marks])
    assert folded.forgotten_ms is None


@given(ROWS, st.integers(-1, 150))
def test_leaves_out_only_what_is_older(drawn: list[tuple[int, int]], keep_from_ms: int) -> None:
    """A horizon drops exactly the marks before it, and the newest of them is told."""
    rows = [Row(0, offset, time, digest_of(name)) for offset, (name, time) in enumerate(drawn)]
    marks, _ = naive_fold(rows, WINDOW)
    folded = fold(rows, keep_from_ms, 7)
    old = [mark.timestamp_ms for mark in marks.values() if mark.timestamp_ms < keep_from_ms]
    assert set(newest_marks([folded.marks])) == {
        d for d, m in marks.items() if m.timestamp_ms >= keep_from_ms
    }
    assert folded.forgotten_ms == max(old, default=None)


def test_memory_is_bounded_by_distinct_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single ID in a million rows never keeps more than the bound of rows, and its last record wins."""
    monkeypatch.setattr(time_fold, "PENDING_ROWS", 100)
    most = 0

    def counted(rows: Marks) -> Marks:
        """The marks kept are folded when they are at their most."""
        nonlocal most
        most = max(most, rows.count)
        return newest_per_digest(rows)

    monkeypatch.setattr(time_fold, "newest_per_digest", counted)
    folding = TimeFold(None)
    for start in range(0, 10_000, 50):
        offsets = np.arange(start, start + 50, dtype=np.int64)
        folding.add(digest_of("hot") * 50, offsets, offsets)
    assert newest_marks([folding.finish().marks])[digest_of("hot")].offset == 9_999
    assert 100 < most <= 200


def test_marks_ascend_as_unsigned_bytes() -> None:
    """Digests come out in RocksDB's order, where 0x80 lies above 0x7f."""
    digests = [bytes([first]) * 16 for first in (255, 128, 0, 127, 1)]
    rows = [Row(0, offset, 5, digest) for offset, digest in enumerate(digests)]
    assert list(newest_marks([fold(rows, None, 2).marks])) == sorted(digests)
