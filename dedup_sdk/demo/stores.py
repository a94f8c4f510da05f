"""Whether the rebuilt key store is the lived one: the same marks, partition by partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dedup_sdk.marks import select_marks
from dedup_sdk.store.fingerprint import fingerprint
from dedup_sdk.store.manifest import read_manifest
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.read_only import read_partition
from dedup_sdk.store.snapshot_reader import read_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from dedup_sdk.marks import Marks
    from dedup_sdk.window import Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``marks``: how many the rebuilt store has. ``differing``: the partitions whose marks are not the lived ones."""

    marks: int
    differing: tuple[int, ...]

    @property
    def equal(self) -> bool:
        """Whether both stores remember the same IDs, with the same offsets and timestamps."""
        return not self.differing


class LiveMarks(NamedTuple):
    """The marks of one partition inside the window, and the fingerprint of all their digests, offsets and timestamps."""

    marks: int
    fingerprint: str


def compare(lived: Path, snapshot: Path, window: Window) -> Comparison:
    """Compare what the snapshot would call a duplicate at its cut with what the lived store would.

    Args:
        lived: the store's folder that the workers of one group wrote for one topic.
        snapshot: the folder of the backfill.
        window: of both.

    Raises:
        SnapshotError: the snapshot cannot be read.
        StoreError: the store cannot be read.
    """
    old, new = _lived(lived, window), _rebuilt(snapshot, window)
    return Comparison(
        marks=sum(each.marks for each in new.values()),
        differing=tuple(
            sorted(number for number in old.keys() | new.keys() if old.get(number) != new.get(number))
        ),
    )


def _lived(store: Path, window: Window) -> dict[int, LiveMarks]:
    found = {}
    for entry in list_partitions(store):
        with read_partition(entry.path) as opened:
            if opened.progress is not None:
                found[entry.partition] = _live(opened.scan_all(), opened.progress.newest_ms, window)
    return found


def _rebuilt(snapshot: Path, window: Window) -> dict[int, LiveMarks]:
    entries = read_manifest(snapshot).partitions
    return {
        entry.partition: _live(read_snapshot(snapshot, entry), entry.newest_ms, window) for entry in entries
    }


def _live(pages: Iterable[Marks], newest_ms: int, window: Window) -> LiveMarks:
    """Take the marks inside the window, which is measured back from the partition's newest record."""
    inside = [_inside(page, newest_ms, window) for page in pages]
    return LiveMarks(sum(page.count for page in inside), fingerprint(inside))


def _inside(page: Marks, newest_ms: int, window: Window) -> Marks:
    if window.time_ms is None:
        return page
    inside = newest_ms - page.timestamps <= window.time_ms
    return select_marks(page, np.flatnonzero(inside))
