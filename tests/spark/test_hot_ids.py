"""An ID that half of all records bear: it costs no more than any other, and its last sighting counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dedup_sdk._window import Window
from tests.support.naive_fold import Row, digest_of, live, naive_fold
from tests.support.rebuilding import marks_of, rebuild

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = 3_000


@pytest.mark.parametrize(
    "window", [Window(seconds=10), Window(count=200), Window(seconds=2, count=500)], ids=str
)
def test_half_of_the_records_bear_one_id(tmp_path: Path, window: Window) -> None:
    """The snapshot has what the log leaves, the hot ID once; of the others those that the window reaches."""
    rows = [
        Row(0, offset, 1_000 + 2 * offset, digest_of("hot" if offset % 2 else offset))
        for offset in range(RECORDS)
    ]
    manifest = rebuild(rows, window, tmp_path / "snapshot", high=RECORDS, run_rows=64)
    marks, accepted = naive_fold(rows, window)
    expected = live(marks, window, rows[-1].timestamp_ms, accepted)
    found = marks_of(tmp_path / "snapshot")
    assert {digest: mark.offset for digest, mark in found.items() if digest in expected} == {
        digest: mark.offset for digest, mark in expected.items()
    }
    assert found[digest_of("hot")].offset == RECORDS - 1
    entry = manifest.partition(0)
    assert entry is not None
    assert entry.marks == len(found)
