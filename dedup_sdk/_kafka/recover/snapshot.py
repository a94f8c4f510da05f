"""A snapshot in the place of a long replay: the best one that fits is installed as the partition's store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dedup_sdk._core.reach import StartPlan
from dedup_sdk._core.source_keys import lacked_fallback
from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Steps
from dedup_sdk._masking import counted
from dedup_sdk._store.manifest import Manifest, PartitionManifest, fitting_partition
from dedup_sdk._store.protocol import Identity
from dedup_sdk._store.snapshot_source import SnapshotSource, fetched, find_snapshots, scratch
from dedup_sdk._window import Window
from dedup_sdk.errors import SnapshotError

logger = logging.getLogger("dedup_sdk")

SameUntil = Callable[[int, int], Generator[None, None, int | None]]


class _Candidate(NamedTuple):
    """A snapshot that fits: its part for the partition, and the plan after its installation."""

    source: SnapshotSource
    part: PartitionManifest
    plan: StartPlan

    @property
    def tail(self) -> int:
        return self.plan.replay_to - self.plan.replay_from


def start_from_snapshot(
    partition: Partition,
    plan: StartPlan,
    places: Iterable[str],
    identity: Identity,
    beside: Path | None,
    begin: Callable[[str], object] = lambda _: None,
    same_until: SameUntil | None = None,
) -> Steps[tuple[StartPlan, str]]:
    """Start a partition from the best snapshot, else as planned; return the remaining plan and a note.

    The best snapshot fits and leaves the shortest tail to replay; of equals the newest. One log line says why others
    were passed over.

    Args:
        partition: the open partition.
        plan: how it starts without a snapshot.
        places: folders of one snapshot or of several, and URLs.
        identity: the identity of the partition's store, which a snapshot must match.
        beside: the store's folder; a remote snapshot is downloaded next to it.
        begin: is called with a line of text before a snapshot is installed.
        same_until: ``same_until(offset, epoch)`` asks the broker up to where the log before ``offset`` is the one of
            that leader epoch; None: the log is not checked.

    Raises `SnapshotError` where no snapshot can be read, or every one that fits is damaged.
    """
    found, passed_over = find_snapshots(places)
    yield None
    candidates: list[_Candidate] = []
    for source in found:
        try:
            part = _fitting_part(source.place, source.manifest, partition, plan, identity)
            yield from _check_log(source.place, part, same_until)
        except SnapshotError as misfit:
            passed_over.append(str(misfit))
        else:
            after = _plan_after_snapshot(part, plan)
            candidates.append(
                _Candidate(
                    source,
                    part,
                    _plan_after_resharding(part, after) if source.manifest.resharded_from else after,
                )
            )
    candidates.sort(key=lambda candidate: (candidate.tail, -candidate.source.manifest.created_ms))
    damage: SnapshotError | None = None
    for rank, candidate in enumerate(candidates):
        begin(f"installing snapshot {candidate.source.place}, then {candidate.tail} offsets to replay")
        try:
            with scratch(beside) as folder:
                here = yield from fetched(candidate.source, (candidate.part,), folder)
                yield from partition.install_steps(
                    here,
                    candidate.plan,
                    move=candidate.source.remote is not None,
                    manifest=candidate.source.manifest,
                )
        except SnapshotError as error:
            damage = error
            passed_over.append(str(error))
            continue
        passed_over += [
            f"{other.source.place} leaves {counted(other.tail, 'offset')}" for other in candidates[rank + 1 :]
        ]
        if passed_over:
            logger.info(
                "%s[%d]: snapshot %s taken, which leaves %d offsets; passed over: %s",
                partition.topic, partition.partition, candidate.source.place, candidate.tail, "; ".join(passed_over),
                extra={"event": "snapshot-taken"},
            )  # fmt: skip
        return candidate.plan, f"snapshot of {counted(candidate.part.marks, 'mark')}"
    if damage is not None:
        raise damage
    logger.warning(
        "%s[%d]: snapshot not taken: %s",
        partition.topic,
        partition.partition,
        "; ".join(passed_over),
        extra={"event": "snapshot-not-taken"},
    )
    partition.start(plan)
    return plan, "snapshot not taken"


def _fitting_part(
    folder: str | Path, manifest: Manifest, partition: Partition, plan: StartPlan, identity: Identity
) -> PartitionManifest:
    """Return the snapshot's part for this partition; raises `SnapshotError` with the reason if it does not fit.

    A snapshot that reaches beyond the committed offset would hide records that this group never handled. So would the
    history of another group, unless the user vouches for it with a snapshot that was made without a group.
    """
    lacked = lacked_fallback(manifest.id_spec, identity.id_spec)
    if lacked is not None:
        message = (
            f"snapshot {folder} has the marks of the sources, but none of the IDs that otherwise= looks up; the topic "
            f"is read instead. Make it with dedup backfill --otherwise {lacked} and the --otherwise-window of the "
            "consumer's Lookup"
        )
        raise SnapshotError(message)
    part = fitting_partition(
        folder, manifest, identity, plan.progress, numbered=partition.window.count is not None
    )
    ours, theirs = partition.window, Window.parse(manifest.window)
    if (ours.count or 0) > (theirs.count or 0) or (ours.count is None and theirs.count is not None):
        raise SnapshotError(
            f"its window is {theirs}, the consumer's is {ours}, and a snapshot lacks the ranks for that; make one with "
            "the consumer's window"
        )
    claims_history = part.low < part.high
    if not manifest.vouched and claims_history and part.low < plan.progress.low:
        raise SnapshotError(
            f"it begins at offset {part.low}, before this group's own history at {plan.progress.low}; make one with "
            "--group"
        )
    return part


def _check_log(folder: str | Path, part: PartitionManifest, same_until: SameUntil | None) -> Steps[None]:
    """Raise `SnapshotError` for a snapshot of records that the log no longer has, as far as the broker can tell."""
    if same_until is None or part.epoch is None or part.low == part.high:
        return
    end = yield from same_until(part.high, part.epoch)
    if end is not None and end < part.high:
        raise SnapshotError(
            f"snapshot {folder} reaches offset {part.high} of leader epoch {part.epoch}, which ends at {end} in the "
            "log now: the log was cut since; make a new one"
        )


def _plan_after_snapshot(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan after the installation: offsets from the snapshot's end to the committed offset are replayed."""
    progress, known = plan.progress, part.known
    high, begins_later = max(part.high, progress.low), part.low > progress.low and known.since_ms is None
    if part.high < progress.low:
        # Offsets between the snapshot's end and the group's own beginning are not known to be handled.
        is_unknown, own = progress.known.since_ms is not None, progress.known
    else:
        # The snapshot covers its own range, which may begin later than the group's history.
        is_unknown, own = begins_later, progress.known if plan.beginning == "new" else known
    known = replace(own, accepted=known.accepted, newest_ms=known.newest_ms)
    progress = replace(progress, high=high, known=known.nothing_before() if is_unknown else known)
    return replace(plan, progress=progress, replay_from=high, whole=False)


def _plan_after_resharding(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan after a resharded snapshot: coverage begins at its ``since_ms``, also in a new partition."""
    since_ms, known = part.known.since_ms, plan.progress.known
    if since_ms is None:
        return plan
    known = replace(known, since_ms=since_ms if known.since_ms is None else max(known.since_ms, since_ms))
    return replace(plan, progress=replace(plan.progress, known=known))
