"""Whether a snapshot may stand for a partition's past, and what it then leaves to be replayed."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import SnapshotError
from dedup_sdk.kafka.dead_letter_log import GivenUp
from dedup_sdk.lane.plan import NOTHING_KNOWN, StartPlan
from dedup_sdk.store.manifest import Manifest, PartitionManifest, read_manifest
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.snapshot_fit import fitting_partition
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")


def start_from_snapshot(
    held: Partition, plan: StartPlan, folder: str | Path, identity: Identity, given_up: GivenUp
) -> tuple[StartPlan, str]:
    """Start a partition from the snapshot if it fits, else as planned; return what remains of the plan, and a note.

    What was given up leaves no mark, also where the snapshot has one.

    Raises `SnapshotError` where the folder is unreadable, or its files are not what the manifest says.
    """
    manifest = read_manifest(folder)
    try:
        part = _fitting(folder, manifest, held, plan, identity)
    except SnapshotError as misfit:
        logger.warning("%s[%d]: snapshot not taken: %s", held.topic, held.partition, misfit)
        held.start(plan)
        return plan, "snapshot not taken"
    plan = _after(part, plan)
    held.install(str(folder), plan, given_up.between(plan.progress.low, plan.replay_from))
    return plan, f"snapshot of {part.marks} marks"


def _fitting(
    folder: str | Path, manifest: Manifest, held: Partition, plan: StartPlan, identity: Identity
) -> PartitionManifest:
    """Return the snapshot's part for this partition; raises `SnapshotError` that says why it must not be taken.

    A cut beyond the committed offset would make duplicates of records that this group never handled; so would the
    history of another group, unless the user vouches for it by giving a snapshot that was made without one.
    """
    part = fitting_partition(
        folder, manifest, identity, plan.progress, numbered=held.window.count is not None
    )
    ours, theirs = held.window, Window.parse(manifest.window)
    if (ours.count or 0) > (theirs.count or 0) or (ours.count is None and theirs.count is not None):
        raise SnapshotError(
            f"its window is {theirs}, here it is {ours}, and ranks cannot be made up; make one with this window"
        )
    if not manifest.vouched and part.low < plan.progress.low:
        raise SnapshotError(
            f"it begins at offset {part.low}, before this group's own history at {plan.progress.low}; make one with --group"
        )
    return part


def _after(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan once the snapshot is in: what lies between its cut and the committed offset is replayed."""
    progress = plan.progress
    if part.high < progress.low:
        # Between its cut and the group's own beginning lies what nobody vouches for.
        progress = replace(progress, high=progress.low, newest_ms=part.newest_ms, accepted=part.accepted)
        if progress.since_ms is not None:
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    else:
        progress = replace(progress, high=part.high, newest_ms=part.newest_ms, accepted=part.accepted)
        if plan.beginning != "new":
            progress = replace(progress, since_ms=part.since_ms, since_number=part.since_number)
        if part.low > progress.low and part.since_ms is None:
            # It knows all from its own beginning on, which is later than the group's.
            progress = replace(progress, since_ms=NOTHING_KNOWN, since_number=part.accepted)
    return replace(plan, progress=progress, replay_from=progress.high, whole=False)
