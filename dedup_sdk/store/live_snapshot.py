"""A snapshot of a store, whether its consumer runs or not: each partition as it is at one moment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dedup_sdk.errors import ConfigurationError, SnapshotError, StoreError
from dedup_sdk.marks import Marks
from dedup_sdk.progress import Progress
from dedup_sdk.store.frozen import freeze
from dedup_sdk.store.manifest import Manifest, PartitionManifest, write_manifest
from dedup_sdk.store.paths import PartitionFolder
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.read_only import ReadOnlyPartition, read_partition
from dedup_sdk.store.snapshot_folder import new_snapshot
from dedup_sdk.store.snapshot_source import scratch
from dedup_sdk.store.sorted_file import SORTED_SUFFIX, SortedFile, SortedFileWriter

_MARKS_PER_FILE: Final = 4_000_000
_SAME: Final = ("cluster", "group", "topic", "topic_id", "id_spec", "digest", "isolation")


def snapshot_store(partitions: Sequence[PartitionFolder], store: Path, output: Path) -> Manifest:
    """Make a snapshot of some partitions (of one group and topic) of a store's folder; a consumer that has it open goes on.

    A partition's cut is the watermark up to which its group has completed everything, which may be ahead of what is committed:
    a consumer takes the snapshot once the group has committed that far. What was completed above the cut is not in it.

    Raises:
        ConfigurationError: the partitions are of several groups, topics or ID specs, or the output is no path.
        SnapshotError: the output is not empty or cannot be written, or no partition has begun.
        StoreError: a partition cannot be read.
    """
    with new_snapshot(output) as folder, scratch(store) as room:
        created_ms = time.time_ns() // 1_000_000
        made = [
            part
            for found in partitions
            for part in [_partition(found, room, folder / str(found.partition))]
            if part is not None
        ]
        if not made:
            raise SnapshotError(
                f"no partition of {store} has completed anything yet; make the snapshot later"
            )
        (identity, window, _), *others = made
        for other, _, _ in others:
            for name in _SAME:
                if getattr(other, name) != getattr(identity, name):
                    raise ConfigurationError(
                        f"{store} has partitions of {name}={getattr(identity, name)!r} and {getattr(other, name)!r}; "
                        "say which topic and group"
                    )
        manifest = Manifest.of_store(identity, window, created_ms, tuple(part for _, _, part in made))
        write_manifest(folder, manifest)
    return manifest


def _partition(
    found: PartitionFolder, room: Path, target: Path
) -> tuple[Identity, str, PartitionManifest] | None:
    frozen = room / str(found.partition)
    try:
        freeze(found.path, frozen)
    except OSError as error:
        raise StoreError(
            f"store {found.path} cannot be copied to {room}: {error.strerror}; is there room, and may you read it?"
        ) from None
    with read_partition(frozen) as opened:
        if opened.progress is None or not opened.progress.begun:
            return None
        target.mkdir(mode=0o700)
        return opened.identity, opened.window, _written(opened, opened.progress, target)


def _written(opened: ReadOnlyPartition, progress: Progress, target: Path) -> PartitionManifest:
    files = tuple(_files(opened.scan_all(below=progress.high), target))
    return PartitionManifest(
        partition=opened.identity.partition,
        low=progress.low,
        high=progress.high,
        since_ms=progress.since_ms,
        accepted=progress.accepted,
        since_number=max(progress.since_number or 0, progress.floor_number) or progress.since_number,
        newest_ms=progress.newest_ms,
        marks=sum(file.marks for file in files),
        files=files,
        committed=progress.committed,
        era=progress.era,
        epoch=progress.epoch,
    )


def _files(pages: Iterator[Marks], target: Path) -> Iterator[SortedFile]:
    # One iterator in both loops: the outer one goes on behind the file that the inner one filled.
    for number, first in enumerate(pages):
        with SortedFileWriter(target / f"{number:05d}{SORTED_SUFFIX}") as writer:
            writer.add(first)
            held = first.count
            while held < _MARKS_PER_FILE and (page := next(pages, None)) is not None:
                writer.add(page)
                held += page.count
            yield writer.finish()
