"""Which files of a base stay, and that nothing is published which lists files that are gone."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._store.manifest import Manifest, PartitionManifest, read_manifest, write_manifest
from spark_backfill.errors import BackfillError
from spark_backfill.layers import MOST_LAYERS, most_layers, on_layers
from spark_backfill.offset_range import BasePart, OffsetRange
from spark_backfill.publish import IfExists, Output
from spark_backfill.snapshot import kept_entries
from tests.support.marks import random_marks, write_snapshot

if TYPE_CHECKING:
    from pathlib import Path

DAY_MS = 86_400_000


def base(folder: Path, *newest_days: tuple[int, ...]) -> Manifest:
    """A snapshot whose layers have files with these newest days; what else they say is of one file."""
    manifest = write_snapshot(folder, random_marks(30, 1), high=100)
    (file,) = manifest.partitions[0].files
    files = tuple(
        replace(file, name=f"{layer}-{number}", layer=layer, newest_ms=DAY_MS * day)
        for layer, days in enumerate(newest_days)
        for number, day in enumerate(days)
    )
    return replace(manifest, partitions=(replace(manifest.partitions[0], files=files),))


def planned(manifest: Manifest, *, keep_from_day: int | None, floor: int = 0) -> OffsetRange:
    """The range that is read on top of it, up to offset 120."""
    part = BasePart(marks=30, floor=floor, accepted=0, since_number=None, newest_ms=0)
    keep_from_ms = None if keep_from_day is None else DAY_MS * keep_from_day
    offset_range = OffsetRange(
        partition=3, low=floor, begin=100, high=120, complete=True, keep_from_ms=keep_from_ms, base=part
    )
    [found] = on_layers([offset_range], manifest)
    return found


def stays(found: OffsetRange) -> list[tuple[str, int]]:
    """Names and layers of the files that stay."""
    assert found.base is not None
    assert found.base.staying is not None
    return [(file.name, file.layer) for file in found.base.staying.files]


def test_partitions_are_not_all_written_anew_in_one_night() -> None:
    """Each has a number of its own, and none more than the most."""
    numbers = [most_layers(partition) for partition in range(8)]
    assert numbers == [8, 7, 6, 5] * 2
    assert max(numbers) == MOST_LAYERS


def test_what_has_expired_is_left_out_from_the_oldest_layer_on(tmp_path: Path) -> None:
    """A later layer keeps its files: they may have the newer mark of an ID whose older one has a newer timestamp."""
    manifest = base(tmp_path / "base", (1, 2), (1, 9), (1, 9))
    found = planned(manifest, keep_from_day=5)
    assert stays(found) == [("1-1", 0), ("2-0", 1), ("2-1", 1)]
    assert found.base is not None
    assert found.base.staying is not None
    assert (found.base.staying.forgotten_ms, found.keep_from_ms) == (2 * DAY_MS, None)
    assert found.rows == 20
    assert stays(planned(manifest, keep_from_day=None)) == [
        ("0-0", 0), ("0-1", 0), ("1-0", 1), ("1-1", 1), ("2-0", 2), ("2-1", 2),
    ]  # fmt: skip
    assert stays(planned(manifest, keep_from_day=10)) == []


def test_a_base_is_read_where_its_files_cannot_stay(tmp_path: Path) -> None:
    """The history begins behind the base's, or there are too many layers."""
    manifest = base(tmp_path / "base", (9,), (9,))
    many = base(tmp_path / "many", *[(9,)] * MOST_LAYERS)
    for found in (planned(manifest, keep_from_day=1, floor=1), planned(many, keep_from_day=1)):
        assert found.base is not None
        assert (found.base.staying, found.keep_from_ms) == (None, DAY_MS)


def published(folder: Path, change: Any) -> None:
    """Add nothing to a snapshot, which is changed meanwhile."""
    manifest = read_manifest(folder)
    with Output(str(folder), IfExists.REPLACED) as output:
        change()
        output.publish(replace(manifest, created_ms=1), {})


def test_nothing_is_published_that_lists_files_which_are_gone(tmp_path: Path) -> None:
    """Somebody has removed a file, or the snapshot, since the run began."""
    folder = tmp_path / "snap"
    manifest = write_snapshot(folder, random_marks(30, 1), high=100)
    published(folder, lambda: None)
    assert read_manifest(folder).created_ms == 1
    with pytest.raises(BackfillError, match=r"lacks manifest\.json, which this run"):
        published(folder, (folder / "manifest.json").unlink)
    write_manifest(folder, manifest)
    with pytest.raises(BackfillError, match=r"lacks 3/0000\.sst, which this run"):
        published(folder, (folder / "3" / "0000.sst").unlink)
    assert read_manifest(folder) == manifest


def test_files_whose_manifest_is_gone_are_not_swept_by_a_run_that_adds(tmp_path: Path) -> None:
    """They may be the snapshot that it was to add to; a run that makes a new one removes them."""
    with Output(str(tmp_path)) as output:
        file = f"3/00000-{output.target.run}-01234567.sst"
    (tmp_path / "3").mkdir(parents=True)
    (tmp_path / file).touch()
    with pytest.raises(BackfillError, match=rf"holds {file} and other files, but no manifest\.json"):
        Output(str(tmp_path), IfExists.ADDED_TO)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [file[2:]]
    with Output(str(tmp_path), IfExists.REPLACED):
        assert not (tmp_path / file).exists()


def test_a_partition_that_the_run_skips_stays_as_it_was(tmp_path: Path) -> None:
    """With ``--add`` alone: a new snapshot has what its own history says."""
    manifest = base(tmp_path / "base", (9,))
    history: Any = SimpleNamespace(skipped={3: "no commit"})

    def kept(*, stays: bool) -> list[PartitionManifest]:
        found: Any = SimpleNamespace(manifest=manifest, stays=stays)
        return kept_entries(history, found)

    assert kept(stays=True) == [*manifest.partitions]
    assert kept(stays=False) == []
