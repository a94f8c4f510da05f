from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dedup_sdk._store.manifest import read_manifest, write_manifest
from dedup_sdk._store.snapshot_source import (
    SnapshotSource,
    find_snapshots,
    newest_first,
    removable_snapshots,
    remove_snapshot,
    snapshots_of_one_group,
)
from dedup_sdk.errors import SnapshotError
from tests.support.marks import random_marks, write_snapshot

DAY_MS = 86_400_000


def make(folder: Path, day: int, *, topic: str = "orders", group: str | None = "billing") -> Path:
    """A snapshot made on some day."""
    write_snapshot(folder, random_marks(10, day), group=group, vouched=group is None)
    write_manifest(folder, replace(read_manifest(folder), created_ms=day * DAY_MS, topic=topic))
    return folder


def sources(place: Path) -> list[SnapshotSource]:
    """The snapshots below a folder."""
    return find_snapshots([str(place)])[0]


def names(found: list[SnapshotSource]) -> list[str]:
    """Their folders' names."""
    return [Path(each.place).name for each in found]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Four snapshots of one family, out of order."""
    for name, day in (("b", 2), ("d", 4), ("a", 1), ("c", 3)):
        make(tmp_path / name, day)
    return tmp_path


def test_the_newest_stay(place: Path) -> None:
    """Those beyond the newest so many go; with an age only if older as well."""
    family = snapshots_of_one_group(sources(place))
    assert names(newest_first(family)) == ["d", "c", "b", "a"]
    assert names(removable_snapshots(family, 3)) == ["a"]
    assert names(removable_snapshots(family, 1)) == ["c", "b", "a"]
    assert names(removable_snapshots(family, 1, before_ms=2 * DAY_MS)) == ["a"]
    assert removable_snapshots(family, 4) == []
    with pytest.raises(SnapshotError, match="keep=0"):
        removable_snapshots(family, 0)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_snapshot_that_was_replaced_meanwhile_stays(place: Path, scheme: str) -> None:
    """It is not the one that was chosen."""
    ((old,), _) = find_snapshots([f"{scheme}{place / 'a'}"])
    write_manifest(place / "a", replace(read_manifest(place / "a"), created_ms=9 * DAY_MS))
    with pytest.raises(SnapshotError, match="holds another snapshot since it was looked at, which stays"):
        remove_snapshot(old)
    assert read_manifest(place / "a").created_ms == 9 * DAY_MS


def test_several_topics_or_groups_have_to_be_told_apart(place: Path) -> None:
    """Snapshots of another topic or group are never among those that go, nor do they count as kept."""
    make(place / "other", 9, topic="payments")
    make(place / "nobody", 8, group=None)
    with pytest.raises(SnapshotError, match="topic: orders, payments; select one with --topic"):
        snapshots_of_one_group(sources(place))
    with pytest.raises(SnapshotError, match="group: None, billing; select one with --group"):
        snapshots_of_one_group(sources(place), "orders")
    assert names(snapshots_of_one_group(sources(place), "orders", "billing")) == ["d", "c", "b", "a"]
    assert names(snapshots_of_one_group(sources(place), "orders", "")) == ["nobody"]
    with pytest.raises(SnapshotError, match="no such snapshot, only snapshots of orders of billing"):
        snapshots_of_one_group(sources(place), "stock")


def test_a_snapshot_goes_and_nothing_else(place: Path) -> None:
    """Its folder is gone; of one that holds other files those stay and are named; so do other folders."""
    (place / "a" / "notes.txt").write_text("mine")
    for name in ("report.json", "findings.json"):
        (place / "b" / name).write_text("{}")
    (place / "loose").mkdir()
    (place / "loose" / "0000.sst").write_text("no manifest")
    for each in removable_snapshots(snapshots_of_one_group(sources(place)), 2):
        assert remove_snapshot(each) == (["notes.txt"] if each.place.endswith("/a") else [])
    left = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    assert [name for name in left if name[0] not in "cd"] == ["a/notes.txt", "loose/0000.sst"]
    assert names(newest_first(sources(place))) == ["d", "c"]


def test_one_that_is_being_made_is_not_seen(place: Path) -> None:
    """Folders that begin with a dot are nobody's snapshot yet, even with a manifest in them."""
    make(place / ".e.partial-x", 5)
    assert names(newest_first(sources(place))) == ["d", "c", "b", "a"]
