"""From the tasks' outcomes to the manifest: one entry a partition, also for those that had nothing to fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Final

from dedup_sdk._store.manifest import Gap, Manifest, PartitionManifest
from dedup_sdk._window import Window
from spark_backfill.history import History
from spark_backfill.last_id_spec import Spec
from spark_backfill.offset_range import OffsetRange, Staying
from spark_backfill.reshard import Reshard, weakest_since_ms
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan
from spark_backfill.time_fold import later

DIGEST_NAME: Final = "sha256-16"


def make_manifest(
    history: History,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    *,
    spec: Spec,
    window: Window,
    group: str | None,
    isolation: str,
    created_ms: int,
    reshard: Reshard | None = None,
    kept: Sequence[PartitionManifest] = (),
) -> Manifest:
    """Return the manifest of the files that the outcomes name; ``group`` None: the user vouches for the history.

    ``isolation`` is the level that all of the history was read with. With ``reshard`` every partition may have
    marks of any other, so that all know as much as the one that knows least. ``kept``: entries of partitions that the
    history lacks.
    """
    by_partition: dict[int, list[SlotOutcome]] = {
        offset_range.partition: [] for offset_range in history.offset_ranges
    }
    for outcome in sorted(outcomes, key=lambda outcome: outcome.slot):
        by_partition[plan.slots[outcome.slot].partition].append(outcome)
    weakest_ms = None
    if reshard is not None:
        weakest_ms = weakest_since_ms(
            [
                offset_range.since_ms(_first_ms(by_partition[offset_range.partition]), None)
                for offset_range in history.offset_ranges
            ]
        )
    return Manifest(
        cluster=history.cluster,
        topic=history.topic,
        topic_id=history.topic_id,
        id_spec=str(spec),
        digest=DIGEST_NAME,
        isolation=isolation,
        window=str(window),
        group=group,
        vouched=group is None,
        created_ms=created_ms,
        partitions=tuple(
            sorted(
                (
                    *kept,
                    *(
                        partition_manifest(
                            offset_range,
                            by_partition[offset_range.partition],
                            counted=window.count is not None,
                            # Where nothing is committed, the cut of a partition that takes marks of others is 0.
                            committed=(
                                (offset_range.high or None)
                                if reshard
                                else history.committed.get(offset_range.partition, offset_range.high)
                            )
                            if group is not None
                            else None,
                            era=history.eras.get(offset_range.partition, "") if group is not None else "",
                            epoch=history.epochs.get(offset_range.partition),
                            weakest_ms=weakest_ms,
                        )
                        for offset_range in history.offset_ranges
                    ),
                ),
                key=attrgetter("partition"),
            )
        ),
        resharded_from=()
        if reshard is None
        else tuple(offset_range.partition for offset_range in history.offset_ranges if offset_range.offsets),
        partitioner="" if reshard is None else reshard.partitioner,
    )


def partition_manifest(
    offset_range: OffsetRange,
    outcomes: Sequence[SlotOutcome],
    *,
    counted: bool,
    committed: int | None = None,
    era: str = "",
    epoch: int | None = None,
    weakest_ms: int | None = None,
) -> PartitionManifest:
    """Return the manifest's entry of one partition; ``outcomes``: those of its slots, ascending."""
    base = offset_range.base
    staying = (None if base is None else base.staying) or Staying()
    layer = max((file.layer + 1 for file in staying.files), default=0)
    files = (
        *staying.files,
        *(replace(outcome.file, layer=layer) for outcome in outcomes if outcome.file is not None),
    )
    newest_ms = _newest_ms(outcomes)
    forgotten_ms = max(
        (each.forgotten_ms for each in outcomes if each.forgotten_ms is not None), default=None
    )
    forgotten_ms = later(forgotten_ms, staying.forgotten_ms)
    accepted = sum(outcome.accepted for outcome in outcomes)
    if base is not None:
        newest_ms = max(newest_ms, base.newest_ms)
        accepted = accepted if outcomes or not counted else base.accepted
    gaps = (*(base.gaps if base is not None else ()), *offset_range.gaps)
    high = min([offset_range.high, *(each.cut for each in outcomes if each.cut is not None)])
    return PartitionManifest(
        partition=offset_range.partition,
        low=offset_range.low,
        high=high,
        since_ms=weakest_since_ms([offset_range.since_ms(_first_ms(outcomes), forgotten_ms), weakest_ms]),
        accepted=accepted,
        since_number=_since_number(offset_range, outcomes) if counted else None,
        newest_ms=max(newest_ms, -1),
        marks=sum(file.marks for file in files),
        files=files,
        committed=committed,
        era=era,
        epoch=epoch,
        gaps=tuple(Gap(begin=begin, end=end) for begin, end in gaps),
    )


def _newest_ms(outcomes: Sequence[SlotOutcome]) -> int:
    return max((outcome.newest_ms for outcome in outcomes), default=-1)


def _first_ms(outcomes: Sequence[SlotOutcome]) -> int | None:
    """The timestamp where the marks of a partition begin, None where no record has one."""
    first = min(outcomes, key=lambda outcome: outcome.first_offset, default=None)
    newest_ms = _newest_ms(outcomes)
    if first is None or newest_ms < 0:
        return None
    # A record without a timestamp cannot say where the marks begin; the newest one can, with less coverage.
    return first.first_ms if first.first_ms >= 0 else newest_ms


def _since_number(offset_range: OffsetRange, outcomes: Sequence[SlotOutcome]) -> int | None:
    """The rank from which all accepted IDs are known; a partition is one slot here."""
    known = None if offset_range.complete else 0
    if offset_range.base is not None:
        known = offset_range.base.since_number
    forgotten = [each.forgotten_number for each in outcomes if each.forgotten_number is not None]
    return max([*forgotten, *([] if known is None else [known])], default=None)
