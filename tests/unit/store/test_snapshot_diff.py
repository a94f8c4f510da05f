from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dedup_sdk._marks import Marks, select_marks
from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.snapshot_check import diff_snapshots, lines
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk.errors import SnapshotError
from tests.support.marks import IDENTITY, digest, marks, random_marks, write_snapshot


def source(folder: Path, held: Marks, *, cuts: tuple[int, ...] = (), partition: int = 3) -> SnapshotSource:
    """A snapshot of these marks."""
    identity = replace(IDENTITY, partition=partition)
    return SnapshotSource(
        place=str(folder), manifest=write_snapshot(folder, held, cuts=cuts, identity=identity, high=10**6)
    )


def as_lines(left: SnapshotSource, right: SnapshotSource) -> list[str]:
    """All differences."""
    return [line for found in diff_snapshots(left, right) for line in lines(found)]


def test_each_kind_of_difference_has_its_line(tmp_path: Path) -> None:
    """Only here, only there, another offset, another time: partition, digest and both sides' values.

    Equal marks are counted.
    """
    left = source(tmp_path / "a", marks(("same", 1, 10), ("ours", 2, 20), ("moved", 3, 30), ("later", 4, 40)))
    right = source(
        tmp_path / "b", marks(("same", 1, 10), ("theirs", 5, 50), ("moved", 6, 30), ("later", 4, 41))
    )
    assert sorted(as_lines(left, right)) == sorted(
        [
            f"< 3 {digest('ours').hex()} 2 20",
            f"> 3 {digest('theirs').hex()} 5 50",
            f"! 3 {digest('moved').hex()} 3 30 6 30",
            f"! 3 {digest('later').hex()} 4 40 4 41",
        ]
    )
    assert sum(found.same for found in diff_snapshots(left, right)) == 1


def test_files_and_pages_make_no_difference(tmp_path: Path) -> None:
    """Large snapshots that are cut differently are compared mark by mark.

    Changed marks are found, and no others.
    """
    held = random_marks(130_000, 5)
    changed = replace(held, offsets=held.offsets.copy())
    changed.offsets[::10_000] += 500_000
    kept = select_marks(changed, np.flatnonzero(np.arange(130_000) % 1_000 != 1))
    left = source(tmp_path / "a", held, cuts=(1, 60_000))
    right = source(tmp_path / "b", kept, cuts=(90_000,))
    found = list(diff_snapshots(left, right))
    assert sum(each.only_left.count for each in found) == 130
    assert sum(each.only_right.count for each in found) == 0
    assert sum(each.left.count for each in found) == 13
    assert sum(each.same for each in found) == 130_000 - 130 - 13
    assert max(each.only_left.count + each.same for each in found) <= 50_000
    assert as_lines(left, source(tmp_path / "c", held, cuts=(7, 100_000))) == []


def test_a_partition_of_one_side_only_differs_as_a_whole(tmp_path: Path) -> None:
    """Partitions are compared by number."""
    left = source(tmp_path / "a", marks(("x", 1, 10)), partition=3)
    right = source(tmp_path / "b", marks(("x", 1, 10)), partition=4)
    assert as_lines(left, right) == [f"< 3 {digest('x').hex()} 1 10", f"> 4 {digest('x').hex()} 1 10"]


def test_acceptance_numbers_are_compared(tmp_path: Path) -> None:
    """In a count window an ID's rank is part of its mark."""
    left = source(tmp_path / "a", marks(("x", 1, 10, 7)))
    right = source(tmp_path / "b", marks(("x", 1, 10, 8)))
    assert len(as_lines(left, right)) == 1


def test_payloads_are_compared(tmp_path: Path) -> None:
    """Two marks of one offset and time differ if their payloads do, and the line has their sizes and checksums."""
    held = marks(("same", 1, 10), ("longer", 2, 20), ("other", 3, 30), ("lost", 4, 40))
    ours, theirs = b"nine here", b"nine gone"
    left = source(tmp_path / "a", replace(held, payloads=[ours, ours, ours, ours]))
    right = source(tmp_path / "b", replace(held, payloads=[ours, ours + b".", theirs, b""]))
    told = {line.split()[2]: line.split()[3:] for line in as_lines(left, right)}
    assert {key: [each.split(":")[0] for each in line] for key, line in told.items()} == {
        digest("longer").hex(): ["2", "20", "payload=9", "2", "20", "payload=10"],
        digest("other").hex(): ["3", "30", "payload=9", "3", "30", "payload=9"],
        digest("lost").hex(): ["4", "40", "payload=9", "4", "40"],
    }
    other = told[digest("other").hex()]
    assert other[2] != other[5]
    assert other[2] == told[digest("lost").hex()][2]
    plain = source(tmp_path / "c", held)
    assert len(as_lines(left, plain)) == 4
    assert as_lines(left, source(tmp_path / "d", replace(held, payloads=[ours] * 4), cuts=(2,))) == []


def test_snapshots_of_two_topics_are_not_compared(tmp_path: Path) -> None:
    """Their digests mean different things; one line says so."""
    left = source(tmp_path / "a", marks(("x", 1, 10)))
    source(tmp_path / "b", marks(("x", 1, 10)))
    other = replace(read_manifest(tmp_path / "b"), topic="payments")
    write_manifest(tmp_path / "b", other)
    with pytest.raises(SnapshotError, match=r"topic='orders', .* of 'payments'"):
        as_lines(left, SnapshotSource(place=str(tmp_path / "b"), manifest=other))
