"""A store with one partition, snapshots made from a consumer's store, and the marks of a store, for comparing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dedup_sdk._marks import Known, Marks
from dedup_sdk._store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk._store.paths import list_partitions
from dedup_sdk._store.read_only import read_partition
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._store.snapshot import SortedFileWriter
from dedup_sdk._window import Window
from tests.support.marks import IDENTITY

if TYPE_CHECKING:
    from pathlib import Path

    from dedup_sdk._marks import Progress
    from dedup_sdk._store.rocks import RocksPartition


def open_store(root: Path, **settings: int) -> RocksPartition:
    """Open the partition of `IDENTITY`, with a window of a week."""
    return RocksStore(root, **settings).open(IDENTITY, Window(days=7))  # type: ignore[arg-type]


def only_folder(root: Path) -> Path:
    """Return the folder of the only partition."""
    (entry,) = list_partitions(root)
    return entry.path


def stored_marks(disk: Path, partition: int = 0) -> list[tuple[str, int, int]]:
    """The marks of a partition in a machine's store: digest, offset and timestamp of each mark, ascending."""
    folder = next(entry.path for entry in list_partitions(disk) if entry.partition == partition)
    with read_partition(folder) as store:
        return [
            (page.digests[16 * row : 16 * row + 16].hex(), int(page.offsets[row]), int(page.timestamps[row]))
            for page in store.scan_all()
            for row in range(page.count)
        ]


def stored_progress(disk: Path, partition: int = 0) -> Progress | None:
    """How far a machine's store is with a partition."""
    folder = next(entry.path for entry in list_partitions(disk) if entry.partition == partition)
    with read_partition(folder) as store:
        return store.progress


def snapshot_of(disk: Path, target: Path, **changes: Any) -> Path:
    """Write a snapshot of partition 0 as a machine's store has it, up to its watermark; return its folder.

    `changes` replace fields of the manifest: ``group``, ``vouched``, ``id_spec``, ..., and ``low`` and ``high`` of the
    partition (marks at or above ``high`` are left out).
    """
    folder = next(entry.path for entry in list_partitions(disk) if entry.partition == 0)
    with read_partition(folder) as store:
        identity, progress = store.identity, store.progress
    assert progress is not None
    high = changes.pop("high", progress.high)
    rows = [row for row in stored_marks(disk) if row[1] < high]
    (target / "0").mkdir(parents=True)
    with SortedFileWriter(target / "0" / "000001.sst") as writer:
        writer.add(
            Marks(
                b"".join(bytes.fromhex(digest) for digest, _, _ in rows),
                np.array([offset for _, offset, _ in rows], np.int64),
                np.array([timestamp for _, _, timestamp in rows], np.int64),
            )
        )
        file = writer.finish()
    part = PartitionManifest(
        partition=0,
        low=changes.pop("low", progress.low),
        high=high,
        known=Known(newest_ms=max(row[2] for row in rows)),
        marks=len(rows),
        files=(file,),
    )
    manifest = Manifest.of_store(identity, "7d", 0, (part,))
    write_manifest(target, replace(manifest, **changes))
    return target
