"""Whether a snapshot may stand for a partition's past, and what it then leaves to be replayed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import SnapshotError
from dedup_sdk.kafka.recovery_news import RecoveryNews
from dedup_sdk.lane.plan import NOTHING_KNOWN, StartPlan
from dedup_sdk.last.keys import lacked_second_opinion
from dedup_sdk.store.manifest import Manifest, PartitionManifest
from dedup_sdk.store.protocol import Identity
from dedup_sdk.store.snapshot_fit import fitting_partition
from dedup_sdk.store.snapshot_source import Source, fetched, find_snapshots, scratch
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")


SameUntil = Callable[[int, int], Generator[None, None, int | None]]


class _Fit(NamedTuple):
    """A snapshot that fits: its part for the partition, and what the plan is once it is in."""

    source: Source
    part: PartitionManifest
    plan: StartPlan

    @property
    def tail(self) -> int:
        return self.plan.replay_to - self.plan.replay_from


def start_from_snapshot(
    held: Partition,
    plan: StartPlan,
    places: Iterable[str],
    identity: Identity,
    beside: Path | None,
    news: RecoveryNews | None = None,
    same_until: SameUntil | None = None,
) -> Generator[None, None, tuple[StartPlan, str]]:
    """Start a partition from the snapshot that fits best, else as planned; return what remains of the plan, and a note.

    The best is the one that leaves the least to be replayed, and of these the newest. One line in the log says why others were
    passed over. ``beside``: the store's folder, next to
    which a remote one is fetched to.

    ``same_until(offset, epoch)`` asks the broker up to where its log before an offset is that of a leader epoch.

    Raises `SnapshotError` where no snapshot can be read, or every one that fits is damaged.
    """
    found, passed_over = find_snapshots(places)
    yield
    fits: list[_Fit] = []
    for source in found:
        try:
            part = _fitting(source.place, source.manifest, held, plan, identity)
            yield from _check_log(source.place, part, same_until)
        except SnapshotError as misfit:
            passed_over.append(str(misfit))
        else:
            after = _after(part, plan)
            fits.append(
                _Fit(source, part, _resharded(part, after) if source.manifest.resharded_from else after)
            )
    fits.sort(key=lambda fit: (fit.tail, -fit.source.manifest.created_ms))
    damage: SnapshotError | None = None
    for rank, fit in enumerate(fits):
        if news is not None:
            news.begin(f"installing snapshot {fit.source.place}, then {fit.tail} offsets to replay")
        try:
            with scratch(beside) as folder:
                here = yield from fetched(fit.source, (fit.part,), folder)
                yield from held.install(here, fit.plan, move=fit.source.remote is not None)
        except SnapshotError as error:
            damage = error
            passed_over.append(str(error))
            continue
        passed_over += [f"{other.source.place} leaves {other.tail} offsets" for other in fits[rank + 1 :]]
        if passed_over:
            logger.info(
                "%s[%d]: snapshot %s taken, which leaves %d offsets; passed over: %s",
                held.topic, held.partition, fit.source.place, fit.tail, "; ".join(passed_over),
            )  # fmt: skip
        return fit.plan, f"snapshot of {fit.part.marks} marks"
    if damage is not None:
        raise damage
    logger.warning("%s[%d]: snapshot not taken: %s", held.topic, held.partition, "; ".join(passed_over))
    held.start(plan)
    return plan, "snapshot not taken"


def _fitting(
    folder: str | Path, manifest: Manifest, held: Partition, plan: StartPlan, identity: Identity
) -> PartitionManifest:
    """Return the snapshot's part for this partition; raises `SnapshotError` that says why it must not be taken.

    A cut beyond the committed offset would make duplicates of records that this group never handled; so would the
    history of another group, unless the user vouches for it by giving a snapshot that was made without one.
    """
    lacked = lacked_second_opinion(manifest.id_spec, identity.id_spec)
    if lacked is not None:
        message = (
            f"snapshot {folder} has the lanes, and nothing of what otherwise= looks up; the topic is read instead. "
            f"Make it with dedup backfill --otherwise {lacked} and the --otherwise-window of the consumer's Lookup"
        )
        raise SnapshotError(message)
    part = fitting_partition(
        folder, manifest, identity, plan.progress, numbered=held.window.count is not None
    )
    ours, theirs = held.window, Window.parse(manifest.window)
    if (ours.count or 0) > (theirs.count or 0) or (ours.count is None and theirs.count is not None):
        raise SnapshotError(
            f"its window is {theirs}, here it is {ours}, and ranks cannot be made up; make one with this window"
        )
    claims_history = part.low < part.high
    if not manifest.vouched and claims_history and part.low < plan.progress.low:
        raise SnapshotError(
            f"it begins at offset {part.low}, before this group's own history at {plan.progress.low}; make one with --group"
        )
    return part


def _check_log(
    folder: str | Path, part: PartitionManifest, same_until: SameUntil | None
) -> Generator[None, None, None]:
    """Refuse a snapshot of records that the log no longer has; where nobody knows that, it is taken."""
    if same_until is None or part.epoch is None or part.low == part.high:
        return
    end = yield from same_until(part.high, part.epoch)
    if end is not None and end < part.high:
        raise SnapshotError(
            f"snapshot {folder} reaches offset {part.high} of leader epoch {part.epoch}, which ends at {end} in the log now: "
            "the log was cut since; make a new one"
        )


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


def _resharded(part: PartitionManifest, plan: StartPlan) -> StartPlan:
    """Return the plan where marks of other partitions came in: also in one that is new they are known only since then."""
    since_ms = part.since_ms
    if since_ms is None:
        return plan
    known_ms = plan.progress.since_ms
    return replace(
        plan,
        progress=replace(plan.progress, since_ms=since_ms if known_ms is None else max(known_ms, since_ms)),
    )
