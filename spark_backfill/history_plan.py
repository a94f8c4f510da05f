"""The history of a run: asked of Kafka, of an archive, or of an earlier snapshot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dedup_sdk._rule_fingerprint import rule_digits
from dedup_sdk._store.protocol import DIGEST_NAME
from spark_backfill.archive import Archive
from spark_backfill.archive_history import archived_history
from spark_backfill.archived import check_gaps
from spark_backfill.base import Base
from spark_backfill.history import History, kept_history, resolve_history
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.offset_range import expire, spans
from spark_backfill.options import Options


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
    """Say which offsets a history lacks, and of which partitions more is read than the window reaches.

    Raises:
        BackfillError: it lacks some, and that was not allowed.
    """
    for line in check_gaps(options.topic, history.offset_ranges, allowed=options.allow_gap):
        say(f"{line}: coverage begins behind them")
    if history.vague:
        offsets = sum(each.offsets for each in history.offset_ranges if each.partition in history.vague)
        say(
            f"warning: partitions {spans(sorted(history.vague))} of {options.topic} ({offsets:,} offsets) are read "
            "from further back than the window reaches: their records have older timestamps than the transactions "
            "that wrote them, and Kafka's search by time also finds the ends of transactions"
        )


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
