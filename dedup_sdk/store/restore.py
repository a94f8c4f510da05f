"""A snapshot becomes a store folder of its own: all partitions, or nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp

from dedup_sdk.errors import ConfigurationError, SnapshotError, StoreError
from dedup_sdk.progress import Progress
from dedup_sdk.store.manifest import Manifest, PartitionManifest, read_manifest
from dedup_sdk.store.paths import usable
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.store.snapshot_source import whole_snapshot
from dedup_sdk.window import Window


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
