"""Whether a snapshot may be taken over by a partition store."""

from __future__ import annotations

from pathlib import Path

from dedup_sdk.errors import SnapshotError
from dedup_sdk.progress import Progress
from dedup_sdk.store.manifest import Manifest, PartitionManifest
from dedup_sdk.store.protocol import Identity


def fitting_partition(
    folder: str | Path, manifest: Manifest, identity: Identity, progress: Progress, *, numbered: bool
) -> PartitionManifest:
    """Return the entry of the snapshot for this partition store.

    It must be of the same cluster, topic, ID spec, digest and isolation level; of the same topic ID, unless one side does
    not know it; of the same group, unless its maker vouches for it (which is not enough where marks come from other
    partitions: how far the group is there is not known here); with acceptance numbers where the lane needs them; and
    its cut must not lie beyond ``high`` and ``committed`` of ``progress``, the progress to begin with. Raises `SnapshotError`
    naming what differs.
    """
    pairs = {
        name: (getattr(manifest, name), getattr(identity, name))
        for name in ("cluster", "topic", "id_spec", "digest", "isolation")
    }
    if manifest.topic_id and identity.topic_id:
        pairs["topic_id"] = (manifest.topic_id, identity.topic_id)
    if not manifest.vouched:
        pairs["group"] = (manifest.group, identity.group)
    for name, (theirs, ours) in pairs.items():
        if theirs != ours:
            message = (
                f"snapshot {folder} is of {name}={theirs!r}, not {ours!r}; give the snapshot of this history"
            )
            raise SnapshotError(message)
    if manifest.vouched and manifest.resharded_from:
        message = (
            f"snapshot {folder} has marks of other partitions and names no group: how much of these partitions group "
            f"{identity.group!r} has handled is not known; make one with --partitions and --group"
        )
        raise SnapshotError(message)
    entry = manifest.partition(identity.partition)
    if entry is None:
        message = f"snapshot {folder} has no partition {identity.partition}; it has {[one.partition for one in manifest.partitions]}"
        raise SnapshotError(message)
    limit = max(progress.high, progress.committed or 0)
    if entry.high > limit:
        message = f"snapshot {folder} reaches offset {entry.high} of partition {entry.partition}, beyond {limit}; make one up to there"
        raise SnapshotError(message)
    if numbered and any(file.newest_number is None for file in entry.files):
        message = f"snapshot {folder} has no acceptance numbers (window {manifest.window!r}); make it with a window by count"
        raise SnapshotError(message)
    return entry
