"""Snapshots of a store that may be in use, and stores restored from snapshots.

`snapshot_store` reads each partition from a hard-link checkpoint, which is consistent as of one moment
(`checkpoint`). RocksDB's own checkpoint needs the process that has the database open; the same can be done
from outside. Sorted files never change, so a hard link keeps one even if it is merged away meanwhile. The
MANIFEST (RocksDB's list of files) and the logs are copied. If the MANIFEST changed during the copy, a file
that it lists may be missing, or data removed from the log may be in no file yet; then the checkpoint is
made again.

`restore_snapshot` makes a new store folder with all partitions of a snapshot, or nothing.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from dedup_sdk._marks import Marks, Progress
from dedup_sdk._masking import shown, shown_location
from dedup_sdk._store.manifest import Manifest, PartitionManifest, SortedFile, read_manifest, write_manifest
from dedup_sdk._store.paths import PartitionFolder, checked_store_path, new_snapshot
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.rate_limit import RateLimit
from dedup_sdk._store.read_only import ReadOnlyPartition, read_partition
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._store.snapshot import SORTED_SUFFIX, SortedFileWriter
from dedup_sdk._store.snapshot_source import open_newest, scratch
from dedup_sdk._window import Window
from dedup_sdk.errors import (
    ConfigurationError,
    SnapshotError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
)

ATTEMPTS: Final = 100
PAUSE_S: Final = 0.02
_CURRENT: Final = "CURRENT"
_MANIFEST: Final = re.compile(rb"MANIFEST-\d{1,20}")
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})


def checkpoint(database: Path, folder: Path) -> None:
    """Make ``folder`` a readable copy of a partition's database as of one moment, without disturbing its owner.

    It takes the size of the log (at most 32 MB) where ``folder`` is on the same disk, else the size of the
    database. Raises `StoreLockedError` when the database changed at every attempt, `StoreCorruptError` when
    it is damaged, OSError when it cannot be read.
    """
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(PAUSE_S)
        folder.mkdir(mode=0o700)
        try:
            if _copy_files(database, folder):
                return
        except FileNotFoundError:
            # The owner may delete a file between listing and copying. Without CURRENT there is no database.
            if not (database / _CURRENT).exists():
                raise
        shutil.rmtree(folder)
    raise StoreLockedError(f"store {database} changed at each of {ATTEMPTS} attempts to copy it; try again")


def _copy_files(database: Path, folder: Path) -> bool:
    """Copy once; return whether the MANIFEST stayed the same."""
    before = _manifest_and_logs(database)
    current, size, logs = before
    for path in database.glob("*.sst"):
        _link(path, folder / path.name)
    with (database / current).open("rb") as source:
        (folder / current).write_bytes(source.read(size))
    for name in logs:
        # The last log may grow during the copy: an incomplete step at its end is ignored when it is read.
        shutil.copyfile(database / name, folder / name)
    (folder / _CURRENT).write_text(f"{current}\n")
    return _manifest_and_logs(database) == before


def _manifest_and_logs(database: Path) -> tuple[str, int, list[str]]:
    """Return name and size of RocksDB's MANIFEST, and the names of its logs, ascending."""
    current = (database / _CURRENT).read_bytes().strip()
    if not _MANIFEST.fullmatch(current):
        raise StoreCorruptError(
            f"store {database} is damaged: {_CURRENT} names {shown(current[:80])}, which is not a MANIFEST; "
            "rebuild it from a snapshot or the topic"
        )
    # By number: above 999,999 the names are longer.
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


MARKS_PER_FILE: Final = 4_000_000
_EQUAL_FIELDS: Final = ("cluster", "group", "topic", "topic_id", "id_spec", "digest", "isolation")


def snapshot_store(partitions: Sequence[PartitionFolder], store: Path, output: Path) -> Manifest:
    """Make a snapshot of partitions (of one group and topic) in a store's folder; a running consumer is not disturbed.

    A partition's cut is the watermark up to which its group has completed everything. It may be ahead of
    the commit: a consumer installs the snapshot once the group has committed that far. Marks at or above
    the cut are left out *before* the newest mark of each ID is chosen, so an older mark of the same ID is
    used if the store has one.

    Raises:
        ConfigurationError: the partitions are of several groups, topics or ID specs, or the output path is invalid.
        SnapshotError: the output is not empty or cannot be written, or no partition has completed anything.
        StoreError: a partition cannot be read.
    """
    with new_snapshot(output) as folder, scratch(store) as scratch_folder:
        created_ms = time.time_ns() // 1_000_000
        made = [
            part
            for found in partitions
            for part in [_partition(found, scratch_folder, folder / str(found.partition))]
            if part is not None
        ]
        if not made:
            raise SnapshotError(
                f"no partition of {store} has completed anything yet; make the snapshot later"
            )
        (identity, window, _), *others = made
        for other, _, _ in others:
            for name in _EQUAL_FIELDS:
                if getattr(other, name) != getattr(identity, name):
                    raise ConfigurationError(
                        f"{store} has partitions of {name}={shown(getattr(identity, name))} and "
                        f"{shown(getattr(other, name))}; select one topic and group"
                    )
        manifest = Manifest.of_store(identity, window, created_ms, tuple(part for _, _, part in made))
        write_manifest(folder, manifest)
    return manifest


def _partition(
    found: PartitionFolder, scratch_folder: Path, target: Path
) -> tuple[Identity, str, PartitionManifest] | None:
    copy = scratch_folder / str(found.partition)
    try:
        checkpoint(found.path, copy)
    except OSError as error:
        raise StoreError(
            f"store {found.path} cannot be copied to {scratch_folder}: {error.strerror}; "
            "check free space and permissions"
        ) from None
    with read_partition(copy) as opened:
        # A history that has not begun has no `low`: a snapshot would claim an empty one.
        if opened.progress is None or not opened.progress.begun:
            return None
        target.mkdir(mode=0o700)
        return opened.identity, opened.window, _write_partition(opened, opened.progress, target)


def _write_partition(opened: ReadOnlyPartition, progress: Progress, target: Path) -> PartitionManifest:
    files = tuple(_write_files(opened.scan_all(below=progress.high), target))
    # A snapshot has no numbers below the floor: its marks begin there.
    known = progress.known
    since_number = max(known.since_number or 0, known.floor_number)
    return PartitionManifest(
        partition=opened.identity.partition,
        low=progress.low,
        high=progress.high,
        # IDs below the floor stay out in a larger window, too. None stays None: all numbers are known.
        known=replace(known, since_number=since_number or known.since_number, dropped_to=0, floor_number=0),
        marks=sum(file.marks for file in files),
        files=files,
        committed=progress.committed,
        era=progress.era,
        epoch=progress.epoch,
    )


def _write_files(pages: Iterator[Marks], target: Path) -> Iterator[SortedFile]:
    # One iterator in both loops: the outer one continues after the file that the inner one filled.
    for number, first in enumerate(pages):
        with SortedFileWriter(target / f"{number:05d}{SORTED_SUFFIX}") as writer:
            writer.add(first)
            held = first.count
            while held < MARKS_PER_FILE and (page := next(pages, None)) is not None:
                writer.add(page)
                held += page.count
            yield writer.finish()


def restore_snapshot(
    snapshot: str | Path,
    store: Path,
    *,
    group: str | None = None,
    assume_processed: bool = False,
    limit: RateLimit | None = None,
) -> tuple[Manifest, str]:
    """Install a snapshot in a new store folder; return its manifest and the group it is for.

    All files are verified on the way. The folder appears complete, by one rename, or not at all.

    Args:
        snapshot: the folder with the manifest, a folder with several snapshots (the newest is used), or a URL.
        store: the folder to create; it may exist if it is empty.
        group: the group that will use the store; None = the manifest's own group.
        assume_processed: confirms that this group processed everything that the snapshot covers. Needed for a snapshot
            made without a group: covered offsets count as processed, so for a group that has not got that far, messages
            would be hidden.
        limit: how fast the snapshot is read; None = as fast as possible.

    Raises:
        ConfigurationError: the group or ``assume_processed`` is missing, or the path is invalid.
        SnapshotError: the snapshot is unreadable, or of another group.
        StoreError: the folder is not empty, or cannot be created.
    """
    _check_target(store)
    with open_newest(str(snapshot), group, store, limit) as (folder, is_own):
        return _restore(
            folder, shown_location(snapshot), store, group, assume_processed=assume_processed, move=is_own
        )


def _restore(
    snapshot: Path, place: str, store: Path, group: str | None, *, assume_processed: bool, move: bool
) -> tuple[Manifest, str]:
    manifest = read_manifest(snapshot)
    owner = _owner(manifest, place, group, assume_processed=assume_processed)
    if store.exists() and (not store.is_dir() or any(store.iterdir())):
        raise StoreError(f"{store} is not empty; restore into a new folder, and set store= to it")
    try:
        store.parent.mkdir(parents=True, exist_ok=True)
        # Beside the store: across disks there is no rename, but a copy that may stop half way.
        partial = Path(mkdtemp(prefix=f"{store.name}.partial-", dir=store.parent))
    except OSError as error:
        raise StoreError(
            f"{store} cannot be created: {error.strerror}; give a folder you may write to"
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
                f"{store} cannot be created by rename: {error.strerror}; give a folder that does not exist yet"
            ) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest, owner


def _check_target(store: Path) -> None:
    checked_store_path(store)
    if store.name in {"", ".."}:
        raise ConfigurationError(f"store={shown(store)} names no new folder; give e.g. 'var/dedup'")
    if store.is_symlink():
        raise StoreError(
            f"{store} is a symbolic link, which cannot be replaced by rename; give the folder itself"
        )


def _owner(manifest: Manifest, snapshot: str, group: str | None, *, assume_processed: bool) -> str:
    owner = group or manifest.group
    if owner is None:
        raise ConfigurationError(
            f"snapshot {snapshot} was made without a group; give --group and --assume-processed"
        )
    if manifest.group not in {None, owner}:
        raise SnapshotError(
            f"snapshot {snapshot} is of group {shown(manifest.group)}, not {shown(owner)}; make one of group "
            f"{shown(owner)}"
        )
    if manifest.vouched and not assume_processed:
        raise ConfigurationError(
            f"snapshot {snapshot} does not say how far group {shown(owner)} is; "
            "add --assume-processed if it processed all of it"
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
        # Who vouches knows the history, and not how far this group has committed.
        committed=None if manifest.vouched else entry.committed,
        era=entry.era,
        known=replace(
            entry.known,
            # The snapshot's maker left out marks for their age.
            dropped_to=entry.high,
            floor_number=max(0, entry.known.accepted - window.count) if window.count else 0,
        ),
    )
    for _ in store.open(identity, window).install_steps(
        str(snapshot), progress, move=move, manifest=manifest
    ):
        pass
