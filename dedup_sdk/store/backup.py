"""Snapshots of a store that is in use, and stores made of snapshots.

A store becomes a snapshot whether its consumer runs or not: each partition as it is at one moment (`freeze`). RocksDB's own checkpoint is for the
process that has the database open. What it does can be done from outside: sorted files never change, so that a link keeps one however soon
it is merged away; the list of files and the log are copied. That list must not have changed meanwhile: else a file that it names may be
missing, or what was taken out of the log be in no file yet.

A snapshot becomes a store folder of its own: all partitions, or nothing (`restore_snapshot`).
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from dedup_sdk.errors import (
    ConfigurationError,
    SnapshotError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
)
from dedup_sdk.marks import Marks, Progress
from dedup_sdk.store.manifest import Manifest, PartitionManifest, SortedFile, read_manifest, write_manifest
from dedup_sdk.store.paths import PartitionFolder, new_snapshot, usable
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.read_only import ReadOnlyPartition, read_partition
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.snapshot import SORTED_SUFFIX, SortedFileWriter
from dedup_sdk.store.snapshot_source import scratch, whole_snapshot
from dedup_sdk.window import Window

_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.02
_CURRENT: Final = "CURRENT"
_MANIFEST: Final = re.compile(rb"MANIFEST-\d{1,20}")
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def freeze(database: Path, folder: Path) -> None:
    """Make ``folder`` a copy of a partition's database as it is at one moment, to be read; nobody is disturbed.

    It takes the room of the log (32 MB at most) where ``folder`` is on the same disk, else as much as the database.
    Raises `StoreLockedError` when the database changed at every attempt, `StoreCorruptError` when it is damaged, OSError when it cannot be
    read.
    """
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)
        folder.mkdir(mode=0o700)
        try:
            if _frozen(database, folder):
                return
        except FileNotFoundError:
            if not (database / _CURRENT).exists():
                raise
        shutil.rmtree(folder)
    raise StoreLockedError(f"store {database} changed at each of {_ATTEMPTS} attempts to copy it; try again")


def _frozen(database: Path, folder: Path) -> bool:
    """Copy once; return whether the list of files stayed as it was."""
    before = _list_of_files(database)
    current, size, logs = before
    for path in database.glob("*.sst"):
        _link(path, folder / path.name)
    with (database / current).open("rb") as source:
        (folder / current).write_bytes(source.read(size))
    for name in logs:
        # The last one grows on: what is copied of it ends with a whole step, or with a torn one, which counts for nothing.
        shutil.copyfile(database / name, folder / name)
    (folder / _CURRENT).write_text(f"{current}\n")
    return _list_of_files(database) == before


def _list_of_files(database: Path) -> tuple[str, int, list[str]]:
    """The name and size of RocksDB's list of files, and the names of its logs, ascending."""
    current = (database / _CURRENT).read_bytes().strip()
    if not _MANIFEST.fullmatch(current):
        raise StoreCorruptError(
            f"store {database} is damaged: {_CURRENT} names {current[:80]!r}, which is no list of files; rebuild it from a snapshot or the topic"
        )
    logs = sorted((path.name for path in database.glob("*.log")), key=lambda name: (len(name), name))
    name = current.decode()
    return name, (database / name).stat().st_size, logs


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(path, target)


_MARKS_PER_FILE: Final = 4_000_000
_SAME: Final = ("cluster", "group", "topic", "topic_id", "id_spec", "digest", "isolation")


def snapshot_store(partitions: Sequence[PartitionFolder], store: Path, output: Path) -> Manifest:
    """Make a snapshot of some partitions (of one group and topic) of a store's folder; a consumer that has it open goes on.

    A partition's cut is the watermark up to which its group has completed everything, which may be ahead of what is committed:
    a consumer takes the snapshot once the group has committed that far. What was completed above the cut is not in it.

    Marks at or above the cut are left out *before* the newest mark of each ID is chosen: an older one of the same ID,
    if the store has one, takes its place.

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


def restore_snapshot(
    snapshot: str | Path, store: Path, *, group: str | None = None, assume_processed: bool = False
) -> tuple[Manifest, str]:
    """Install a snapshot in a new store folder, and return its manifest and the group it is for.

    All files are verified on their way in; the folder is there whole, by one rename, or not at all.

    Args:
        snapshot: the folder with the manifest, one that holds several (then the newest), or a URL.
        store: the folder to make; it may exist if it is empty.
        group: whose store it will be; None = the manifest's own group.
        assume_processed: the caller vouches that this group processed everything that the snapshot covers. Needed for
            one that was made without a group, because what is covered counts as processed: for a group that has not
            got so far, messages would be hidden.

    Raises:
        ConfigurationError: the group, or the vouching for it, is missing; or the path is none for a new folder.
        SnapshotError: the snapshot is unreadable, or of another group.
        StoreError: the folder is not empty, or cannot be made.
    """
    _refuse_unfit(store)
    with whole_snapshot(str(snapshot), group, store) as (folder, ours):
        return _restore(folder, str(snapshot), store, group, assume_processed=assume_processed, move=ours)


def _restore(
    snapshot: Path, place: str, store: Path, group: str | None, *, assume_processed: bool, move: bool
) -> tuple[Manifest, str]:
    manifest = read_manifest(snapshot)
    owner = _owner(manifest, place, group, assume_processed=assume_processed)
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise StoreError(f"{store} is not empty: restore into a new folder, and let store= name that one")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(mkdtemp(prefix=f"{store.name}.partial-", dir=store.parent))
    except OSError as error:
        raise StoreError(
            f"{store} cannot be made: {error.strerror}; give a folder you may write to"
        ) from None
    try:
        opened = RocksStore(partial)
        try:
            for entry in manifest.partitions:
                _install(opened, snapshot, manifest, entry, owner, move=move)
        finally:
            opened.close()
        try:
            partial.rename(store)
        except OSError as error:
            raise StoreError(
                f"{store} cannot become the store: {error.strerror}; give a folder that does not exist yet"
            ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest, owner


def _refuse_unfit(store: Path) -> None:
    usable(store)
    if store.name in {"", ".."}:
        raise ConfigurationError(f"store={str(store)!r} names no new folder; give e.g. 'var/dedup'")
    if store.is_symlink():
        raise StoreError(
            f"{store} is a symbolic link, and the store comes into place by a rename: name the folder itself"
        )


def _owner(manifest: Manifest, snapshot: str, group: str | None, *, assume_processed: bool) -> str:
    owner = group or manifest.group
    if owner is None:
        raise ConfigurationError(
            f"snapshot {snapshot} was made without a group: give --group and --assume-processed"
        )
    if manifest.group not in {None, owner}:
        raise SnapshotError(
            f"snapshot {snapshot} is of group {manifest.group!r}, not {owner!r}: make one of that group"
        )
    if manifest.vouched and not assume_processed:
        raise ConfigurationError(
            f"snapshot {snapshot} does not say what group {owner!r} processed: add --assume-processed if all of it"
        )
    return owner


def _install(
    store: RocksStore, snapshot: Path, manifest: Manifest, entry: PartitionManifest, owner: str, *, move: bool
) -> None:
    identity = Identity(
        cluster=manifest.cluster,
        group=owner,
        topic=manifest.topic,
        partition=entry.partition,
        topic_id=manifest.topic_id,
        id_spec=manifest.id_spec,
        digest=manifest.digest,
        isolation=manifest.isolation,
    )
    window = Window.parse(manifest.window)
    progress = Progress(
        low=entry.low,
        high=entry.high,
        committed=None if manifest.vouched else entry.committed,
        era=entry.era,
        since_ms=entry.since_ms,
        accepted=entry.accepted,
        since_number=entry.since_number,
        newest_ms=entry.newest_ms,
        floor_number=max(0, entry.accepted - window.count) if window.count else 0,
    )
    store.open(identity, window).install(str(snapshot), progress, move=move)
