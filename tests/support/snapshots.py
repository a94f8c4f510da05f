"""Snapshots as the backfill writes them, made without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dedup_sdk._marks import Known, Marks
from dedup_sdk._store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._store.snapshot import SortedFileWriter

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_snapshot(
    folder: Path, partitions: Mapping[int, Marks], *, group: str | None = "billing", window: str = "7d"
) -> Path:
    """Write a snapshot of topic ``orders``, each partition cut behind its highest offset, and return its folder.

    Without a group it is one that somebody vouches for.
    """
    manifest = Manifest(
        cluster="c1",
        topic="orders",
        topic_id="t1",
        id_spec="header:dedup-id",
        digest="sha256-16",
        isolation="read_committed",
        window=window,
        group=group,
        vouched=group is None,
        created_ms=0,
        partitions=tuple(
            _partition(folder, number, marks, known=group is not None) for number, marks in partitions.items()
        ),
    )
    write_manifest(folder, manifest)
    return folder


def _partition(folder: Path, number: int, marks: Marks, *, known: bool) -> PartitionManifest:
    (folder / str(number)).mkdir(parents=True)
    entry = PartitionManifest(
        partition=number, low=0, high=0, known=Known(), marks=0, committed=0 if known else None
    )
    if not marks.count:
        return entry
    with SortedFileWriter(folder / str(number) / "part.sst") as writer:
        writer.add(newest_per_digest(marks))
        file = writer.finish()
    return replace(
        entry,
        low=int(marks.offsets.min()),
        high=int(marks.offsets.max()) + 1,
        known=replace(entry.known, newest_ms=int(marks.timestamps.max())),
        marks=file.marks,
        files=(file,),
        committed=int(marks.offsets.max()) + 1 if known else None,
    )
