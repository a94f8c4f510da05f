"""The marks of a partition that come from a base, and the offsets to read on top: pure.

    base.low       low              base.high                        high (the cut)
    |==============|================|--------------------------------|
    | marks: out   | marks: in      | is read

The result is that of a run that reads all from ``low`` on, as far back as the base knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._window import Window
from spark_backfill.archived import Archived, Horizons, LogPart, plan_joined
from spark_backfill.errors import IN_FULL, BackfillError
from spark_backfill.offset_range import NOTHING_KNOWN_MS, BasePart, OffsetRange, horizon_ms

SameUntil = Callable[[int, int, int], int | None]
"""A function of partition, offset and leader epoch: `spark_backfill.kafka_log.KafkaLog.same_until`."""


def resumable(
    entry: PartitionManifest | None, *, low: int, high: int, vouched: bool, window: Window
) -> PartitionManifest | None:
    """Return a base's entry of a partition if ``[low, high)`` can begin with it, None where it is of no use.

    ``vouched``: the history goes as far back as anybody knows of it, so that it may begin with the base.

    Raises:
        BackfillError: the base has other offsets than the history.
    """
    if entry is None or (entry.high <= low and not vouched):
        return None
    what = f"partition {entry.partition}: the base"
    if entry.high > high:
        raise BackfillError(
            f"{what} reaches offset {entry.high}, and the history ends at {high}: the group was rewound, or "
            f"the log is another one; {IN_FULL}"
        )
    if entry.low > low:
        raise BackfillError(f"{what} begins at offset {entry.low}, and the history at {low}: {IN_FULL}")
    if window.count is None or vouched or entry.low == low:
        return entry
    raise BackfillError(
        f"{what} begins at offset {entry.low}, and the history at {low}: a window by count is counted from "
        f"there; {IN_FULL}"
    )


def cut_off_at(
    partition: int, high: int, epoch: int | None, last_epoch: int | None, same_until: SameUntil
) -> int | None:
    """Return where the log was cut since its records before ``high`` were read in leader epoch ``epoch``.

    None: it was not, as far as the broker can tell. ``last_epoch``: that at the end of the history; within one epoch no
    record is ever replaced. None stands for an epoch that nobody knows.
    """
    if epoch is None or epoch == last_epoch:
        return None
    end = same_until(partition, high, epoch)
    return None if end is None or end >= high else end


def check_base_epoch(entry: PartitionManifest, last_epoch: int | None, same_until: SameUntil) -> None:
    """Refuse a base's entry of records that the log no longer has; as `cut_off_at`.

    Raises:
        BackfillError: the log was cut below the base's end since, by an unclean election, and has other records there.
    """
    if entry.low == entry.high:
        return
    end = cut_off_at(entry.partition, entry.high, entry.epoch, last_epoch, same_until)
    if end is not None:
        raise BackfillError(
            f"partition {entry.partition}: the base reaches offset {entry.high} of leader epoch {entry.epoch}, which "
            f"ends at {end} in the log now: the log was cut since; {IN_FULL}"
        )


def plan_on_base(
    entry: PartitionManifest,
    log: LogPart,
    archived: Archived | None,
    *,
    low: int,
    window: Window,
    limits: Horizons,
) -> OffsetRange:
    """Plan the offsets to read of ``[low, log.high)``; ``log`` and ``archived`` are planned from the base's cut on."""
    if not _expired(entry, limits.keep_from_ms):
        # Timestamps are in no order: the first record that the window reaches may lie behind old ones, and marks
        # of the base be as new.
        log = log._replace(first_kept=None)
        archived = None if archived is None else archived._replace(first_kept=archived.begin)
    above = plan_joined(entry.partition, log, archived, window=window, limits=limits)
    return on_base(above, entry, low=low, counted=window.count is not None)


def on_base(offset_range: OffsetRange, entry: PartitionManifest, *, low: int, counted: bool) -> OffsetRange:
    """Return the offset range ``[low, high)`` of which only a part is to be read.

    That part is ``offset_range``, planned from ``entry.high`` on. ``counted``: the window has a count.
    """
    contiguous = offset_range.begin == entry.high and not offset_range.gaps
    if not contiguous and (counted or (not offset_range.gaps and _expired(entry, offset_range.keep_from_ms))):
        # Nobody knows the IDs accepted in between, or no mark of the base is of use any more.
        return replace(offset_range, low=low, complete=False)
    part = BasePart(
        marks=entry.marks,
        floor=low,
        accepted=entry.accepted,
        since_number=entry.since_number,
        newest_ms=entry.newest_ms,
        gaps=tuple((max(gap.begin, low), gap.end) for gap in entry.gaps if gap.end > low),
    )
    # Where the base knows nothing, the rows read are the first known.
    since_ms = None if entry.since_ms is None or entry.since_ms >= NOTHING_KNOWN_MS else entry.since_ms
    if not contiguous:
        # A base that knows nothing adds no knowledge.
        known_ms = None if since_ms is None and entry.since_ms is not None else offset_range.known_from_ms
        return replace(
            offset_range,
            low=low,
            complete=False,
            known_from_ms=known_ms,
            unknown_before_ms=since_ms,
            base=part,
        )
    return replace(offset_range, low=low, complete=entry.since_ms is None, known_from_ms=since_ms, base=part)


def _expired(entry: PartitionManifest, keep_from_ms: int | None) -> bool:
    """Whether all that a base knows, and all that it does not know, is older than the window reaches."""
    if keep_from_ms is None or entry.newest_ms >= keep_from_ms:
        return False
    return entry.since_ms is None or entry.since_ms <= keep_from_ms


def alone(manifest: Manifest, window: Window, now_ms: int) -> tuple[OffsetRange, ...]:
    """Return the offset ranges of a base to which nothing is added.

    Marks that its own window does not reach any more are left out.
    """
    return tuple(
        on_base(
            OffsetRange(
                partition=entry.partition,
                low=entry.high,
                begin=entry.high,
                high=entry.high,
                complete=True,
                keep_from_ms=horizon_ms(window, entry.newest_ms, now_ms),
            ),
            entry,
            low=entry.low,
            counted=window.count is not None,
        )
        for entry in sorted(manifest.partitions, key=lambda entry: entry.partition)
    )


def entries_of(manifest: Manifest) -> Mapping[int, PartitionManifest]:
    """Return a base's entries by partition."""
    return {entry.partition: entry for entry in manifest.partitions}
