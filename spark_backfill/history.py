"""Which part of a topic's history is folded, decided once for the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dedup_sdk._kafka.commit_text import CommitMetadata, log_name, parse_metadata, rule_named_in
from dedup_sdk._kafka.error_text import time_text
from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._window import Window
from spark_backfill.base import Base, check_base_epoch, check_base_log, entries_of, resumable
from spark_backfill.errors import BackfillError
from spark_backfill.kafka_log import Bounds, Commit, KafkaLog, LastRecord
from spark_backfill.offset_range import OffsetRange
from spark_backfill.range_plan import (
    FEW_RECORDS,
    Archived,
    Horizons,
    LogPart,
    Survey,
    alone,
    horizons,
    plan_on_base,
    plan_range,
    survey_archive,
)

NOTHING_COMMITTED: Final = "nothing committed"
"""Why a partition contributes nothing that the group has not begun."""

_SECOND_MS: Final = 1_000
_NEAR: Final = 1_000
"""So many offsets before the cut are searched for a record of which only the epoch is asked for."""
_ANOTHER_RULE: Final = (
    "committed by consumers with another ID spec, strategy, kind of window or isolation.level: give --id, "
    "--window and the others as they do"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The offset ranges of a topic, by partition ascending.

    Partitions that contribute nothing are named with the reason. ``partitions``: how many the topic has, 0 where
    nobody asked. ``eras``: by partition, as the group's commits say, the value that changes when an operator rewinds it
    (those that are not empty). ``committed``: the last offset known to be committed, where it is not the cut.
    ``epochs``: the leader epochs of those commits, or of the snapshot that is the history, where they are known.
    ``vague``: partitions of which more may be read than the window reaches (`spark_backfill.kafka_log.Beginning`).
    """

    cluster: str
    topic: str
    topic_id: str
    offset_ranges: tuple[OffsetRange, ...]
    skipped: Mapping[int, str] = field(default_factory=dict)
    partitions: int = 0
    eras: Mapping[int, str] = field(default_factory=dict)
    epochs: Mapping[int, int] = field(default_factory=dict)
    committed: Mapping[int, int | None] = field(default_factory=dict)
    vague: frozenset[int] = frozenset()

    @property
    def offsets(self) -> int:
        """How many offsets are read."""
        return sum(offset_range.offsets for offset_range in self.offset_ranges)

    @property
    def rows(self) -> int:
        """At most how many rows are folded."""
        return sum(offset_range.rows for offset_range in self.offset_ranges)

    @property
    def base_marks(self) -> int:
        """How many marks are taken from the base, read or not."""
        return sum(
            offset_range.base.marks for offset_range in self.offset_ranges if offset_range.base is not None
        )


class _Claim(NamedTuple):
    """The offsets of one partition taken for processed; ``complete``: the history begins at ``low``."""

    low: int
    high: int
    complete: bool
    vouched: bool


def resolve_history(
    log: KafkaLog,
    window: Window,
    group: str | None,
    *,
    assume_processed: bool,
    now_ms: int,
    base: Base | None = None,
    rule: str,
    survey: Survey | None = None,
    reads_log: bool = True,
    whole: bool = False,
) -> History:
    """Ask which offsets of a log are the history of a group and are to be folded, and where they are read.

    Without a group the user vouches for the whole log. With one the cut is its committed offset and the beginning
    is the ``low`` of its commit's metadata; with ``assume_processed`` the beginning is where the log begins. A
    commit without our metadata, or with that of another log, says nothing about offsets before it, so that its
    partition is skipped; so is one with the metadata of another rule, vouched for or not: records that
    its consumers hid as duplicates, nobody handled by this rule.

    - ``base``: its offsets of a partition are not read again.
    - ``rule``: that of the fold (`dedup_sdk._rule_fingerprint.rule_digits`).
    - ``survey`` looks through an archive: offsets before the log's beginning are taken from there, and where the
      user vouches the history begins with the archive. With ``reads_log`` False everything is taken from there.
    - ``whole`` as in `spark_backfill.range_plan.plan_range`.

    Raises:
        BackfillError: Kafka does not answer, nothing of the history is there, or a base or an archive is of
            another log.
    """
    partitions = log.partitions()
    bounds = log.bounds(partitions)
    topic_id = log.topic_id()
    if base is not None:
        check_base_log(base, cluster=log.cluster, topic_id=topic_id, partitions=partitions)
    commits = None if group is None else log.committed(group, partitions)
    name = log_name(log.cluster, topic_id)
    skipped: dict[int, str] = {}
    found = {
        number: _claim(
            number, bounds[number], commits, skipped, name=name, rule=rule, assume_processed=assume_processed
        )
        for number in partitions
    }
    claims = {number: claim for number, claim in found.items() if claim is not None}
    if not claims:
        # Before an archive is looked through.
        raise _no_history(log.topic, group, skipped)
    told = _told(commits or {}, name)
    by_time = reads_log and window.time_ms is not None
    last = {
        number: _last_record(log, number, claim, bounds[number].start, by_time=by_time)
        for number, claim in claims.items()
    }
    epochs = {
        number: _epoch(log, number, claim, told.get(number), last[number]) for number, claim in claims.items()
    }
    entries = {} if base is None else _resumed(base, claims, window)
    for number, resumed in entries.items():
        check_base_epoch(resumed, epochs[number], log.same_until)
    # Read from the archive alone, a log begins where nothing is asked of it any more.
    starts = {number: bounds[number].start if reads_log else claim.high for number, claim in claims.items()}
    last_ms = {
        number: each.timestamp_ms if by_time and each is not None else None
        for number, each in last.items()
        if window.time_ms is not None
    }
    archived: Mapping[int, Archived] = {}
    if survey is not None:
        cuts = {number: min(starts[number], claim.high) for number, claim in claims.items()}
        archived, last_ms = survey_archive(survey, cuts, last_ms, window=window, now_ms=now_ms)
        _check_same_log(log, archived, bounds)
    offset_ranges, vague = [], set()
    for number, claim in claims.items():
        known, entry = archived.get(number), entries.get(number)
        if not reads_log and entry is None and (known is None or known.begin >= claim.high):
            skipped[number] = "not in the archive" if known is None else "the archive begins behind its cut"
            continue
        cut = claim.high if reads_log else min(claim.high, 0 if known is None else known.end)
        limits = horizons(window, last_ms.get(number), now_ms)
        if entry is not None:
            cut, limits = max(cut, entry.high), _limits(last_ms.get(number), entry, window, now_ms)
            read = _Claim(entry.high, claim.high, complete=True, vouched=False)
            part = _log_part(log, number, read, cut, starts[number], known, window=window, limits=limits)
            low = min(claim.low, entry.low) if claim.vouched else claim.low
            offset_ranges.append(plan_on_base(entry, part, known, low=low, window=window, limits=limits))
        else:
            part = _log_part(
                log, number, claim, cut, starts[number], known, window=window, limits=limits, whole=whole
            )
            offset_ranges.append(plan_range(number, part, known, window=window, limits=limits, whole=whole))
        if part.is_vague and offset_ranges[-1].begin == part.first_kept:
            vague.add(number)
    if not offset_ranges:
        raise _no_history(log.topic, group, skipped)
    return History(
        cluster=log.cluster,
        topic=log.topic,
        topic_id=topic_id,
        offset_ranges=tuple(offset_ranges),
        skipped=skipped,
        eras={number: each.era for number, each in told.items() if each.era},
        epochs={number: epoch for number, epoch in epochs.items() if epoch is not None},
        vague=frozenset(vague),
    )


def _last_record(
    log: KafkaLog, number: int, claim: _Claim, start: int, *, by_time: bool
) -> LastRecord | None:
    """The last record before the cut. Where only its epoch is asked for, it is not searched for long."""
    if not by_time and not claim.vouched:
        return None
    floor = max(claim.low, start)
    return log.last_record(number, floor if by_time else max(floor, claim.high - _NEAR), claim.high)


def _epoch(
    log: KafkaLog, number: int, claim: _Claim, metadata: CommitMetadata | None, last: LastRecord | None
) -> int | None:
    """The leader epoch in which a history ends, None where nobody knows it: a commit says it, or the log."""
    if metadata is not None and metadata.epoch is not None:
        return metadata.epoch
    return log.epoch_before(number, claim.high, last) if claim.vouched and last is not None else None


def _resumed(base: Base, claims: Mapping[int, _Claim], window: Window) -> dict[int, PartitionManifest]:
    """Return the entries of a base that the partitions begin with."""
    known = entries_of(base.manifest)
    found = {
        number: resumable(
            known.get(number), low=claim.low, high=claim.high, vouched=claim.vouched, window=window
        )
        for number, claim in claims.items()
    }
    return {number: entry for number, entry in found.items() if entry is not None}


def _no_history(topic: str, group: str | None, skipped: Mapping[int, str]) -> BackfillError:
    reasons = ", ".join(sorted(set(skipped.values())))
    if group is None:
        return BackfillError(f"nothing of topic {topic!r} can be folded ({reasons}): check --source")
    return BackfillError(
        f"group {group!r} has no history in topic {topic!r} to fold ({reasons}): check --group, or vouch for what "
        "lies before its commits with --assume-processed, or for all of the topic with --whole-topic instead of --group"
    )


def kept_history(base: Manifest, window: Window, now_ms: int) -> History:
    """Return the history of a base to which nothing is added."""
    entries = entries_of(base)
    return History(
        cluster=base.cluster,
        topic=base.topic,
        topic_id=base.topic_id,
        offset_ranges=alone(base, window, now_ms),
        eras={number: entry.era for number, entry in entries.items() if entry.era},
        epochs={number: entry.epoch for number, entry in entries.items() if entry.epoch is not None},
        committed={number: entry.committed for number, entry in entries.items()},
    )


def _limits(last_ms: int | None, entry: PartitionManifest, window: Window, now_ms: int) -> Horizons:
    """The horizons of a partition with a base, which also knows of times that the log has lost."""
    return horizons(window, entry.newest_ms if last_ms is None else last_ms, now_ms)


def _told(commits: Mapping[int, Commit], name: str) -> dict[int, CommitMetadata]:
    told = {
        number: parse_metadata(commit.text, committed=commit.offset) for number, commit in commits.items()
    }
    return {
        number: metadata for number, metadata in told.items() if metadata is not None and metadata.is_of(name)
    }


def _claim(
    partition: int,
    bounds: Bounds,
    commits: Mapping[int, Commit] | None,
    skipped: dict[int, str],
    *,
    name: str,
    rule: str,
    assume_processed: bool,
) -> _Claim | None:
    if commits is None:
        return _Claim(bounds.start, bounds.stable_end, bounds.start == 0, vouched=True)
    commit = commits.get(partition)
    if commit is None:
        skipped[partition] = NOTHING_COMMITTED
        return None
    if commit.offset > bounds.end:
        raise BackfillError(
            f"partition {partition}: committed offset {commit.offset} lies beyond the log's end "
            f"{bounds.end}: the topic was made anew or truncated; reset the group's offsets first"
        )
    high = min(commit.offset, bounds.stable_end)
    metadata = parse_metadata(commit.text, committed=commit.offset)
    ours = metadata is not None and metadata.is_of(name)
    if rule_named_in(commit.text) not in (None, rule):
        # Also where the text is void otherwise: nobody may vouch for records that another rule hid.
        skipped[partition] = _ANOTHER_RULE
    elif assume_processed:
        low = min(bounds.start, high)
        return _Claim(low, high, low == 0, vouched=True)
    elif metadata is None:
        skipped[partition] = "committed without this package's metadata"
    elif not ours:
        skipped[partition] = "committed with the metadata of another log"
    else:
        return _Claim(min(metadata.low, high), high, metadata.complete, vouched=False)
    return None


def _log_part(
    log: KafkaLog,
    partition: int,
    claim: _Claim,
    cut: int,
    start: int,
    known: Archived | None,
    *,
    window: Window,
    limits: Horizons,
    whole: bool = False,
) -> LogPart:
    low, complete = claim.low, claim.complete
    if claim.vouched and known is not None and known.begin < low:
        low, complete = known.begin, known.begin == 0
    start = min(start, cut)
    kept = None
    edge = max(low, start)
    reads_window = not whole and window.count is None and limits.keep_from_ms is not None
    if reads_window and edge < cut and limits.keep_from_ms is not None and limits.keep_from_ms > 0:
        kept = log.beginning_at(partition, edge, cut, limits.keep_from_ms)
    times = log.first_timestamps_ms(partition, start, cut, FEW_RECORDS) if low < start < cut else []
    first_ms = times[0] if times else None
    first_kept, is_vague = (None, False) if kept is None else kept
    return LogPart(low, cut, start, first_ms, first_kept, complete, max(times, default=None), is_vague)


def _check_same_log(log: KafkaLog, archived: Mapping[int, Archived], bounds: Mapping[int, Bounds]) -> None:
    for number, known in sorted(archived.items()):
        if number not in bounds:
            raise BackfillError(
                f"the archive has partition {number}, the topic has {len(bounds)} partitions: the archive "
                "is of another topic"
            )
        if known.end > bounds[number].end:
            raise BackfillError(
                f"partition {number}: the archive's offset {known.end - 1} lies beyond the log's end "
                f"{bounds[number].end}: it is of another topic, or this one was made anew; give "
                "--cluster-id and --topic-id instead of --bootstrap if it is the archive that counts"
            )
        # The last record of the archive that the log has, too, bears witness; units of seconds cut its time.
        shared = known.end - 1
        if known.end_ms < 0 or not bounds[number].start <= shared < bounds[number].stable_end:
            continue
        for timestamp_ms in log.first_timestamps_ms(number, shared, known.end):
            if timestamp_ms >= 0 and abs(timestamp_ms - known.end_ms) >= _SECOND_MS:
                raise BackfillError(
                    f"partition {number}: offset {shared} is of {time_text(known.end_ms)} in the archive and of "
                    f"{time_text(timestamp_ms)} in the topic: the archive is of another log, or --columns "
                    "timestamp=COLUMN is not the record's own time"
                )
