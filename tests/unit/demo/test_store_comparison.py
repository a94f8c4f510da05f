from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from dedup_sdk._demo.oracle import StoreComparison, compare_stores
from dedup_sdk._marks import Known, Marks, Progress
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._window import Window
from dedup_sdk.ids import digest_one
from tests.support.snapshots import write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

WINDOW = Window(seconds=10)
NEWEST_MS = 1_000_000


def marks(*ids: str, offset: int = 0, timestamp_ms: int = NEWEST_MS) -> Marks:
    """Marks of these IDs from an offset on, all with the same timestamp."""
    offsets = np.arange(offset, offset + len(ids), dtype=np.int64)
    return Marks(
        b"".join(digest_one(each.encode()) for each in ids), offsets, np.full(len(ids), timestamp_ms)
    )


def live(folder: Path, *steps: Marks) -> Path:
    """The store of a partition that was written in these steps."""
    store = RocksStore(folder)
    opened = store.open(Identity(cluster="c1", group="billing", topic="orders", partition=0), WINDOW)
    for step in steps:
        opened.append(Progress(low=0, high=int(step.offsets[-1]) + 1, known=Known(newest_ms=NEWEST_MS)), step)
    store.close()
    return folder


def test_the_same_marks_are_equal_however_they_came(tmp_path: Path) -> None:
    """A store that was written step by step, a duplicate among them, equals the fold of the same log."""
    lived = live(tmp_path / "store", marks("a", "b"), marks("c", "a", offset=2))
    rebuilt = write_snapshot(tmp_path / "snapshot", {0: marks("b", "c", "a", offset=1)})
    assert compare_stores(lived, rebuilt, WINDOW) == StoreComparison(marks=3, differing=())


@pytest.mark.parametrize(
    "other",
    [
        marks("a"),
        marks("a", "x"),
        marks("a", "b", "c"),
        marks("a", "b", offset=1),
        marks("a", "b", timestamp_ms=NEWEST_MS - 1),
    ],
)
def test_any_other_mark_is_a_difference(tmp_path: Path, other: Marks) -> None:
    """A mark too few, another ID, one too many, another offset or timestamp: the partition is named."""
    lived = live(tmp_path / "store", marks("a", "b"))
    comparison = compare_stores(lived, write_snapshot(tmp_path / "snapshot", {0: other}), WINDOW)
    assert comparison.differing == (0,)
    assert not comparison.equal


def test_a_partition_that_only_one_side_has_is_a_difference(tmp_path: Path) -> None:
    """A partition without a counterpart is named."""
    lived = live(tmp_path / "store", marks("a"))
    rebuilt = write_snapshot(tmp_path / "snapshot", {0: marks("a"), 3: marks("b")})
    assert compare_stores(lived, rebuilt, WINDOW).differing == (3,)


def test_what_is_outside_the_window_does_not_count(tmp_path: Path) -> None:
    """A lived store may keep expired marks a while longer; a mark exactly at the window's edge is still inside."""
    expired = marks("old", timestamp_ms=NEWEST_MS - 10_001)
    edge = marks("edge", offset=1, timestamp_ms=NEWEST_MS - 10_000)
    newest = marks("a", offset=2)
    lived = live(tmp_path / "store", expired, edge, newest)
    inside = Marks(
        edge.digests + newest.digests,
        np.concatenate([edge.offsets, newest.offsets]),
        np.concatenate([edge.timestamps, newest.timestamps]),
    )
    rebuilt = write_snapshot(tmp_path / "snapshot", {0: inside})
    assert compare_stores(lived, rebuilt, WINDOW) == StoreComparison(marks=2, differing=())
