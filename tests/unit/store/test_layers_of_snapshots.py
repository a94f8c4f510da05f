"""Snapshots whose partitions have several layers: everybody sees the last mark of each ID."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from dedup_sdk._cli.snapshot_load import Place, load_files
from dedup_sdk._marks import join_marks
from dedup_sdk._store.manifest import Manifest, read_manifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot import read_snapshot, verify_snapshot
from dedup_sdk._store.snapshot_check import check_snapshot, diff_snapshots
from dedup_sdk._store.snapshot_copy import copy_snapshot
from dedup_sdk._store.snapshot_source import SnapshotSource
from dedup_sdk.errors import SnapshotError
from dedup_sdk.shared import MemoryClaimStore
from tests.support.marks import progress, random_marks, rows, write_snapshot
from tests.support.steps import installing
from tests.support.stored import open_store

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dedup_sdk._marks import Marks

EACH = 3_000


def layer(number: int) -> Marks:
    """Marks of one layer: a third of its IDs are in the layer before, another third in all of them."""
    ever, before = random_marks(EACH // 3, 99), random_marks(EACH // 3, 10 + number)
    held = random_marks(EACH, 50 + number, offset=EACH * number)
    new = random_marks(EACH // 3, 11 + number)
    return replace(held, digests=ever.digests + before.digests + new.digests)


def layered(folder: Path, layers: int = 3) -> tuple[Manifest, dict[bytes, tuple[int, int]]]:
    """A snapshot of so many layers, each of two files, and the marks it has."""
    parts = [layer(number) for number in range(layers)]
    wholes = [
        write_snapshot(folder / f"layer{number}", held, high=EACH * layers, cuts=(1_000,))
        for number, held in enumerate(parts)
    ]
    files = []
    for number, whole in enumerate(wholes):
        for file in whole.partitions[0].files:
            name = f"{number}-{file.name}"
            (folder / "3").mkdir(exist_ok=True)
            for suffix in (".sst", ".filter"):
                (folder / f"layer{number}" / "3" / f"{file.name}{suffix}").rename(
                    folder / "3" / f"{name}{suffix}"
                )
            files.append(replace(file, name=name, layer=number))
    entry = replace(
        wholes[-1].partitions[0], files=tuple(files[::-1]), marks=sum(file.marks for file in files)
    )
    manifest = replace(wholes[-1], partitions=(entry,))
    write_manifest(folder, manifest)
    return read_manifest(folder), rows([newest_per_digest(join_marks(parts))])


def test_all_readers_merge_the_layers(tmp_path: Path) -> None:
    """Marks are read ascending, each ID once, and as they are in a snapshot of one layer."""
    manifest, expected = layered(tmp_path / "a")
    assert len(manifest.partitions[0].layers) == 3
    assert manifest.marks == 3 * EACH > len(expected)
    assert rows(read_snapshot(tmp_path / "a", manifest.partitions[0])) == expected
    verify_snapshot(tmp_path / "a")
    source = SnapshotSource(place=str(tmp_path / "a"), manifest=manifest)
    assert [checked.problems for checked in check_snapshot(source)] == 6 * [()]
    whole = newest_per_digest(join_marks([layer(number) for number in range(3)]))
    other = SnapshotSource(
        place=str(tmp_path / "b"), manifest=write_snapshot(tmp_path / "b", whole, high=3 * EACH)
    )
    assert not any(found.differs for found in diff_snapshots(source, other))
    copy_snapshot(source, str(tmp_path / "c"))
    assert rows(read_snapshot(tmp_path / "c", manifest.partitions[0])) == expected


def test_a_store_installs_each_layer_as_a_generation(tmp_path: Path, root: Path) -> None:
    """Look-ups and scans find the last mark of each ID; what is flushed later counts before all layers."""
    _, expected = layered(tmp_path / "a")
    store = open_store(root)
    for _ in installing(store, tmp_path / "a", progress(3 * EACH)):
        pass
    assert store.stats().details["generations"] == 3
    assert rows(store.scan()) == expected
    found = store.find(b"".join(expected), len(expected))
    assert found.offsets == [offset for offset, _ in expected.values()]
    store.close()
    store = open_store(root)
    assert rows(store.scan()) == expected
    again = random_marks(EACH // 3, 99)
    later = replace(again, offsets=again.offsets + 9 * EACH)
    store.flush(progress(10 * EACH), later)
    assert store.find(again.digests, again.count).offsets == later.offsets.tolist()
    store.close()


def test_a_shared_store_is_told_each_id_once(tmp_path: Path) -> None:
    """With the time of its last layer, whatever file is read first."""
    manifest, expected = layered(tmp_path / "a")
    told: list[int] = []

    class Told(MemoryClaimStore):
        """Notes the times."""

        def load(self, ids: Sequence[bytes], *, timestamps_ms: Sequence[int], window_ms: int) -> None:
            """Load."""
            told.extend(timestamps_ms)
            super().load(ids, timestamps_ms=timestamps_ms, window_ms=window_ms)

    source = SnapshotSource(place=str(tmp_path / "a"), manifest=manifest)
    assert load_files(source, Told(), Place("topic", "g", None, "", None)) == len(expected)
    assert sorted(told) == sorted(timestamp_ms for _, timestamp_ms in expected.values())


def test_verify_finds_layers_in_another_order(tmp_path: Path) -> None:
    """Readers would merge them by the offsets, and a store would look into the wrong one first."""
    manifest, _ = layered(tmp_path / "a")
    entry = manifest.partitions[0]
    turned = tuple(replace(file, layer=2 - file.layer) for file in entry.files)
    write_manifest(tmp_path / "a", replace(manifest, partitions=(replace(entry, files=turned),)))
    source = SnapshotSource(place=str(tmp_path / "a"), manifest=read_manifest(tmp_path / "a"))
    problems = [line for checked in check_snapshot(source) for line in checked.problems]
    assert len(problems) == 4
    assert "are not inside" in problems[0]


def test_a_layers_number_has_a_bound(tmp_path: Path) -> None:
    """Nobody writes so many, and each is a generation of a store."""
    manifest, _ = layered(tmp_path / "a")
    entry = manifest.partitions[0]
    files = tuple(replace(file, layer=2**40 + file.layer) for file in entry.files)
    write_manifest(tmp_path / "a", replace(manifest, partitions=(replace(entry, files=files),)))
    with pytest.raises(SnapshotError, match="layer"):
        read_manifest(tmp_path / "a")


def test_ranges_may_overlap_between_layers_alone(tmp_path: Path) -> None:
    """Within a layer they may not: a look-up reads one page."""
    manifest, _ = layered(tmp_path / "a")
    entry = manifest.partitions[0]
    write_manifest(
        tmp_path / "a",
        replace(
            manifest,
            partitions=(replace(entry, files=tuple(replace(file, layer=0) for file in entry.files)),),
        ),
    )
    with pytest.raises(SnapshotError, match="their digest ranges overlap"):
        read_manifest(tmp_path / "a")
