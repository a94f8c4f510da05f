"""Which part of a topic's history is folded, decided once for the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dedup_sdk.kafka.metadata import log_name, parse_metadata
from dedup_sdk.window import Window
from spark_backfill.errors import BackfillError
from spark_backfill.kafka_log import Bounds, Commit, KafkaLog
from spark_backfill.stretch import Stretch, horizon_ms, plan_stretch


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The stretches of a topic, by partition ascending, and the partitions that contribute nothing, with the reason.

    ``buried``: by partition, the offset before which the group gave something up, as its commits say.
    """

    cluster: str
    topic: str
    topic_id: str
    stretches: tuple[Stretch, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)
    buried: Mapping[int, int] = field(default_factory=dict)


class _Claim(NamedTuple):
    """What may be taken for processed of one partition; ``complete``: the history begins at ``low``."""

    low: int
    high: int
    complete: bool


def resolve_history(
    log: KafkaLog, window: Window, *, group: str | None, assume_processed: bool, now_ms: int
) -> History:
    """Ask Kafka which offsets are to be folded.

    Without a group the user vouches for the whole log. With one the cut is what it has committed and the beginning is the
    ``low`` of its commit's metadata; with ``assume_processed`` the beginning is where the log begins. A commit without our
    metadata, or with that of another log, says nothing about what lies before it, so that its partition is skipped.

    Raises:
        BackfillError: no broker, no such topic, or nothing in it that the group has processed.
    """
    partitions = log.partitions()
    bounds = log.bounds(partitions)
    commits = log.committed(group, partitions) if group is not None else None
    topic_id = log.topic_id()
    name = log_name(log.cluster, topic_id)
    skipped: dict[int, str] = {}
    stretches = []
    for number in partitions:
        claim = _claim(number, bounds[number], commits, skipped, name=name, assume_processed=assume_processed)
        if claim is not None:
            stretches.append(_stretch(log, number, claim, bounds[number].start, window=window, now_ms=now_ms))
    if not stretches:
        reasons = ", ".join(sorted(set(skipped.values())))
        raise BackfillError(
            f"group {group!r} has no history in topic {log.topic!r} to fold ({reasons}): check --group, or vouch for what "
            "lies before its commits with --assume-processed, or for all of the topic with --whole-topic instead of --group"
        )
    return History(
        cluster=log.cluster,
        topic=log.topic,
        topic_id=topic_id,
        stretches=tuple(stretches),
        skipped=skipped,
        buried=_buried(commits or {}, name),
    )


def _buried(commits: Mapping[int, Commit], name: str) -> dict[int, int]:
    told = {
        number: parse_metadata(commit.text, committed=commit.offset) for number, commit in commits.items()
    }
    return {
        number: metadata.buried
        for number, metadata in told.items()
        if metadata is not None and metadata.buried is not None and metadata.is_of(name)
    }


def _claim(
    partition: int,
    bounds: Bounds,
    commits: Mapping[int, Commit] | None,
    skipped: dict[int, str],
    *,
    name: str,
    assume_processed: bool,
) -> _Claim | None:
    if commits is None:
        return _Claim(bounds.start, bounds.stable_end, bounds.start == 0)
    commit = commits.get(partition)
    if commit is None:
        skipped[partition] = "nothing committed"
        return None
    if commit.offset > bounds.end:
        raise BackfillError(
            f"partition {partition}: committed offset {commit.offset} lies beyond the log's end {bounds.end}: the topic was "
            "made anew or truncated; reset the group's offsets first"
        )
    high = min(commit.offset, bounds.stable_end)
    if assume_processed:
        low = min(bounds.start, high)
        return _Claim(low, high, low == 0)
    metadata = parse_metadata(commit.text, committed=commit.offset)
    if metadata is None:
        skipped[partition] = "committed without this package's metadata"
        return None
    if not metadata.is_of(name):
        skipped[partition] = "committed with the metadata of another log"
        return None
    return _Claim(min(metadata.low, high), high, metadata.complete and metadata.low <= high)


def _stretch(
    log: KafkaLog, partition: int, claim: _Claim, log_start: int, *, window: Window, now_ms: int
) -> Stretch:
    floor = max(claim.low, log_start)
    keep_from_ms = first_kept = None
    if window.time_ms is not None and floor < claim.high:
        last_ms = log.last_timestamp_ms(partition, floor, claim.high)
        keep_from_ms = horizon_ms(window, last_ms, now_ms)
        if keep_from_ms is not None and keep_from_ms > 0 and window.count is None:
            first_kept = log.first_offset_at(partition, keep_from_ms)
    return plan_stretch(
        partition,
        low=claim.low,
        high=claim.high,
        log_start=log_start,
        complete=claim.complete,
        window=window,
        keep_from_ms=keep_from_ms,
        first_kept=first_kept,
    )
