"""Plans the history of a run: asks Kafka, an archive, or an earlier snapshot which offsets there are to fold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dedup_sdk._commit_text import CommitMetadata, log_name, parse_metadata, rule_named_in
from dedup_sdk._masking import counted, shown
from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.manifest import Manifest, PartitionManifest
from dedup_sdk._store.protocol import DIGEST_NAME
from dedup_sdk._time_text import time_text
from dedup_sdk._window import Window
from spark_backfill.archive import Archive
from spark_backfill.base import Base, check_base_epoch, check_base_log, entries_of, resumable
from spark_backfill.errors import BackfillError
from spark_backfill.history import NOTHING_COMMITTED, History
from spark_backfill.kafka_log import Bounds, Commit, KafkaLog, LastRecord
from spark_backfill.offset_range import OffsetRange, expire
from spark_backfill.options import Options
from spark_backfill.range_plan import (
    FEW_RECORDS,
    Archived,
    LogPart,
    Survey,
    alone,
    check_gaps,
    horizons,
    plan_on_base,
    plan_range,
    survey_archive,
)

_SECOND_MS: Final = 1_000
_NEAR: Final = 1_000
"""So many offsets before the cut are searched for a record of which only the epoch is asked for."""
_ANOTHER_RULE: Final = (
    "committed by consumers with another ID spec, strategy, kind of window or isolation.level: give --id, "
    "--window and the others as they do"
)


def plan_history(
    options: Options,
    archive: Archive | None,
    base: Base | None,
    *,
    now_ms: int,
) -> History:
    """Ask Kafka, and look through the archive: return the history to read and fold; raises as `resolve_history`."""
    history = _found(options, archive, base, now_ms=now_ms)
    history = replace(history, partitions=len(history.offset_ranges) + len(history.skipped))
    if options.reshard is not None:
        history = options.reshard.widened(history)
    return replace(history, offset_ranges=expire(history.offset_ranges, options.expire_before_ms))


def tell_gaps(history: History, options: Options, say: Callable[[str], None]) -> None:
    """Say which offsets a history lacks.

    Raises:
        BackfillError: it lacks some, and that was not allowed.
    """
    for line in check_gaps(options.topic, history.offset_ranges, allowed=options.allow_gap):
        say(f"{line}: coverage begins behind them")


def rule_of(options: Options) -> str:
    """Return the rule by which a run remembers, as its consumers put it into their commits."""
    ordered = options.ordered
    keys = options.id if ordered is None else ordered.keys
    return rule_digits(keys, options.window, digest=DIGEST_NAME, isolation=options.isolation)


def _found(options: Options, archive: Archive | None, base: Base | None, *, now_ms: int) -> History:
    if base is not None and options.compact:
        return kept_history(base.manifest, options.window, now_ms)
    if not options.bootstrap and archive is not None:
        return archived_history(
            archive.survey,
            options.reach,
            cluster=options.cluster_id,
            topic=options.topic,
            topic_id=options.topic_id,
            now_ms=now_ms,
            base=base,
            whole=options.ordered is not None,
        )
    with KafkaLog(options.bootstrap, options.topic, options.client_config) as log:
        return resolve_history(
            log,
            options.reach,
            options.group,
            assume_processed=options.assume_processed,
            now_ms=now_ms,
            base=base,
            rule=rule_of(options),
            survey=None if archive is None else archive.survey,
            reads_log=options.reads_topic,
            whole=options.ordered is not None,
        )


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
    commits = {} if group is None else log.committed(group, partitions)
    name = log_name(log.cluster, topic_id)
    vouched = group is None or assume_processed
    claims: dict[int, LogPart] = {}
    skipped: dict[int, str] = {}
    for number, each in bounds.items():
        if group is None:
            claims[number] = LogPart(each.start, each.stable_end, each.start, complete=each.start == 0)
            continue
        commit = commits.get(number)
        claim = _committed(number, each, commit, name=name, rule=rule, vouched=vouched)
        if isinstance(claim, str):
            skipped[number] = claim
        else:
            claims[number] = claim
    if not claims:
        # Before an archive is looked through.
        raise _no_history(log.topic, group, skipped)
    told = _told(commits, name)
    by_time = reads_log and window.time_ms is not None
    last = {
        number: _last_record(log, number, claim, by_time=by_time)
        for number, claim in claims.items()
        if by_time or vouched
    }
    epochs = {
        number: _epoch(log, number, claim.high, told.get(number), last.get(number) if vouched else None)
        for number, claim in claims.items()
    }
    entries = _resumed(base, claims, window, vouched=vouched)
    for number, entry in entries.items():
        check_base_epoch(entry, epochs[number], log.same_until)
    last_ms: dict[int, int | None] = {
        number: each.timestamp_ms for number, each in last.items() if by_time and each is not None
    }
    archived: Mapping[int, Archived] = {}
    if survey is not None:
        cuts = {
            number: min(claim.start, claim.high) if reads_log else claim.high
            for number, claim in claims.items()
        }
        archived, last_ms = survey_archive(survey, cuts, last_ms, window=window, now_ms=now_ms)
        _check_same_log(log, archived, bounds)
    if not reads_log:
        inside = _in_archive(claims, archived, entries, skipped)
        # Where the archive ends before the commit, nobody knows the epoch of its last record.
        epochs = {
            number: epochs[number] for number, each in inside.items() if each.high == claims[number].high
        }
        claims = inside
        if not claims:
            raise _no_history(log.topic, group, skipped)
    offset_ranges = _planned(
        claims, archived, entries, last_ms, log, window=window, now_ms=now_ms, vouched=vouched, whole=whole
    )
    return History(
        cluster=log.cluster,
        topic=log.topic,
        topic_id=topic_id,
        offset_ranges=offset_ranges,
        skipped=skipped,
        eras={number: each.era for number, each in told.items() if each.era},
        epochs={number: epoch for number, epoch in epochs.items() if epoch is not None},
    )


def archived_history(
    survey: Survey,
    window: Window,
    *,
    cluster: str,
    topic: str,
    topic_id: str,
    now_ms: int,
    base: Base | None,
    whole: bool = False,
) -> History:
    """Return all offsets that an archive has, as a history that the user vouches for; a base's are not read again.

    ``whole`` as in `spark_backfill.range_plan.plan_range`.

    Raises:
        BackfillError: the archive has nothing of the topic, or rows that are no records, or does not go on where
            the base ends.
    """
    if base is not None:
        check_base_log(base, cluster=cluster, topic_id=topic_id, partitions=())
    archived, last_ms = survey_archive(survey, {}, {}, window=window, now_ms=now_ms)
    claims = {
        number: LogPart(part.begin, part.end, part.end, complete=part.begin == 0)
        for number, part in archived.items()
    }
    for number, entry in ({} if base is None else entries_of(base.manifest)).items():
        part = archived.get(number)
        low = entry.low if part is None else min(part.begin, entry.low)
        high = entry.high if part is None else max(part.end, entry.high)
        claims[number] = LogPart(low, high, high, complete=low == 0)
    entries = _resumed(base, claims, window, vouched=True)
    offset_ranges = _planned(
        claims, archived, entries, last_ms, None, window=window, now_ms=now_ms, vouched=True, whole=whole
    )
    return History(cluster=cluster, topic=topic, topic_id=topic_id, offset_ranges=offset_ranges)


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


def _committed(
    partition: int, bounds: Bounds, commit: Commit | None, *, name: str, rule: str, vouched: bool
) -> LogPart | str:
    """Return the history that a group's commit says, or why the partition contributes nothing.

    ``vouched``: the user does so for what lies before the commit.
    """
    if commit is None:
        return NOTHING_COMMITTED
    if commit.offset > bounds.end:
        raise BackfillError(
            f"partition {partition}: committed offset {commit.offset} lies beyond the log's end "
            f"{bounds.end}: the topic was made anew or truncated; reset the group's offsets first"
        )
    high = min(commit.offset, bounds.stable_end)
    metadata = parse_metadata(commit.text, committed=commit.offset)
    if rule_named_in(commit.text) not in (None, rule):
        # Also where the text is void otherwise: nobody may vouch for records that another rule hid.
        return _ANOTHER_RULE
    if vouched:
        low = min(bounds.start, high)
        return LogPart(low, high, bounds.start, complete=low == 0)
    if metadata is None:
        return "committed without this package's metadata"
    if not metadata.is_of(name):
        return "committed with the metadata of another log"
    return LogPart(min(metadata.low, high), high, bounds.start, complete=metadata.complete)


def _told(commits: Mapping[int, Commit], name: str) -> dict[int, CommitMetadata]:
    told = {
        number: parse_metadata(commit.text, committed=commit.offset) for number, commit in commits.items()
    }
    return {
        number: metadata for number, metadata in told.items() if metadata is not None and metadata.is_of(name)
    }


def _last_record(log: KafkaLog, number: int, claim: LogPart, *, by_time: bool) -> LastRecord | None:
    """The last record before the cut. Where only its epoch is asked for, it is not searched for long."""
    floor = max(claim.low, claim.start)
    return log.last_record(number, floor if by_time else max(floor, claim.high - _NEAR), claim.high)


def _epoch(
    log: KafkaLog, number: int, cut: int, metadata: CommitMetadata | None, last: LastRecord | None
) -> int | None:
    """The leader epoch in which a history ends, None where nobody knows it: a commit says it, or the log."""
    if metadata is not None and metadata.epoch is not None:
        return metadata.epoch
    return None if last is None else log.epoch_before(number, cut, last)


def _resumed(
    base: Base | None, claims: Mapping[int, LogPart], window: Window, *, vouched: bool
) -> dict[int, PartitionManifest]:
    """Return the entries of a base that the partitions begin with."""
    known = {} if base is None else entries_of(base.manifest)
    found = {
        number: resumable(known.get(number), low=claim.low, high=claim.high, vouched=vouched, window=window)
        for number, claim in claims.items()
    }
    return {number: entry for number, entry in found.items() if entry is not None}


def _in_archive(
    claims: Mapping[int, LogPart],
    archived: Mapping[int, Archived],
    entries: Mapping[int, PartitionManifest],
    skipped: dict[int, str],
) -> dict[int, LogPart]:
    """Return the claims as far as an archive reaches, from which alone all is read: the log begins where they end."""
    found = {}
    for number, claim in claims.items():
        known, entry = archived.get(number), entries.get(number)
        if entry is None and (known is None or known.begin >= claim.high):
            skipped[number] = "not in the archive" if known is None else "the archive begins behind its cut"
            continue
        ends = [0 if known is None else min(known.end, claim.high), 0 if entry is None else entry.high]
        found[number] = claim._replace(high=max(ends), start=max(ends))
    return found


def _planned(
    claims: Mapping[int, LogPart],
    archived: Mapping[int, Archived],
    entries: Mapping[int, PartitionManifest],
    last_ms: Mapping[int, int | None],
    log: KafkaLog | None,
    *,
    window: Window,
    now_ms: int,
    vouched: bool,
    whole: bool,
) -> tuple[OffsetRange, ...]:
    """Plan all partitions, ascending.

    ``entries``: those of a base, which partitions begin with; ``last_ms``: timestamps (ms) of the last records before
    the cuts, as far as they are known; ``log`` None: nobody asks it.
    """
    offset_ranges = []
    for number, claim in sorted(claims.items()):
        known, entry, seen_ms = archived.get(number), entries.get(number), last_ms.get(number)
        part = claim._replace(start=min(claim.start, claim.high))
        if entry is None:
            limits = horizons(window, seen_ms, now_ms)
            if vouched and known is not None and known.begin < claim.low:
                part = part._replace(low=known.begin, complete=known.begin == 0)
            part = _asked(log, number, part, window, None if whole else limits.keep_from_ms)
            offset_range = plan_range(number, part, known, window=window, limits=limits, whole=whole)
        else:
            # The base also knows of times that the log has lost.
            limits = horizons(window, entry.known.newest_ms if seen_ms is None else seen_ms, now_ms)
            part = part._replace(low=entry.high, complete=True)
            part = _asked(log, number, part, window, limits.keep_from_ms)
            low = min(claim.low, entry.low) if vouched else claim.low
            offset_range = plan_on_base(entry, part, known, low=low, window=window, limits=limits)
        offset_ranges.append(offset_range)
    return tuple(offset_ranges)


def _asked(
    log: KafkaLog | None, partition: int, part: LogPart, window: Window, keep_from_ms: int | None
) -> LogPart:
    """Ask the log where the window begins, and for the times right behind a gap; only where it has some of it."""
    if log is None:
        return part
    edge = max(part.low, part.start)
    if edge < part.high and window.count is None and keep_from_ms is not None and keep_from_ms > 0:
        part = part._replace(first_kept=log.first_offset_at(partition, keep_from_ms))
    if part.low < part.start < part.high:
        times = log.first_timestamps_ms(partition, part.start, part.high, FEW_RECORDS)
        if times:
            part = part._replace(first_ms=times[0], soon_ms=max(times))
    return part


def _no_history(topic: str, group: str | None, skipped: Mapping[int, str]) -> BackfillError:
    reasons = ", ".join(sorted(set(skipped.values())))
    if group is None:
        return BackfillError(f"nothing of topic {shown(topic)} can be folded ({reasons}): check --source")
    return BackfillError(
        f"group {shown(group)} has no history in topic {shown(topic)} to fold ({reasons}): check --group, or vouch "
        f"for what "
        "lies before its commits with --assume-processed, or for all of the topic with --whole-topic instead of --group"
    )


def _check_same_log(log: KafkaLog, archived: Mapping[int, Archived], bounds: Mapping[int, Bounds]) -> None:
    for number, known in sorted(archived.items()):
        if number not in bounds:
            raise BackfillError(
                f"the archive has partition {number}, the topic has {counted(len(bounds), 'partition')}: the archive "
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
