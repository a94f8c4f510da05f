"""What one snapshot of a run is made of: whose history it is, which offsets, and what is left out of them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from dedup_sdk.units.judged import judged_by
from spark_backfill.archive import Archive
from spark_backfill.archive_history import archived_history
from spark_backfill.archived import Archived, Survey, check_gaps
from spark_backfill.base import Base
from spark_backfill.errors import BackfillError
from spark_backfill.given_up import NONE_GIVEN_UP, GivenUpRecords, read_given_up
from spark_backfill.history import Claims, History, claim_history, kept_history, resolve_history
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.options import Options
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.stretch import Stretch, expire


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A group's share of a run.

    - ``group``: None where nobody was named.
    - ``history``: whose ``stretches`` are what is read and folded; ``given_up``: what of it the group did not handle.
    - ``partitions``: how many of the topic the history tells of, before it was widened to be re-sharded.
    """

    group: str | None
    history: History
    given_up: GivenUpRecords
    partitions: int

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        """What is read and folded."""
        return self.history.stretches

    @property
    def offsets(self) -> int:
        """How many offsets are read for it."""
        return sum(stretch.offsets for stretch in self.stretches)

    @property
    def base_marks(self) -> int:
        """How many marks it takes from the base."""
        return sum(stretch.base.marks for stretch in self.stretches if stretch.base is not None)


def find_shares(
    options: Options,
    archive: Archive | ParquetArchive | None,
    base: Base | None,
    *,
    now_ms: int,
    say: Callable[[str], None],
) -> tuple[Share, ...]:
    """Ask Kafka, and look through the archive: return the share of each group, or the one of whoever vouches.

    Raises:
        BackfillError: as `resolve_history`, a gap that was not allowed, or a dead-letter topic that cannot be read; of several
            groups the line names the one.
    """
    if base is not None and options.base.compact:
        return (_share(None, kept_history(base.manifest, options.window, now_ms), options, say),)
    survey = None if archive is None else _remembered(archive.survey)
    if not options.bootstrap and survey is not None:
        history = archived_history(
            survey,
            options.reach,
            cluster=options.sources.cluster_id,
            topic=options.topic,
            topic_id=options.sources.topic_id,
            now_ms=now_ms,
            base=base,
            whole=options.dealt is not None,
        )
        return (_share(None, history, options, say),)
    groups = options.groups or (None,)
    with KafkaLog(options.bootstrap, options.topic, options.admin_config) as log:
        commits = log.committed(options.groups, log.partitions())
        claims: list[Claims] = []
        # What is wrong with one of them is told before an archive is looked through for the others.
        for group in groups:
            with _of(group, options):
                claims.append(
                    claim_history(
                        log,
                        options.reach,
                        group,
                        None if group is None else commits[group],
                        assume_processed=options.assume_processed,
                        base=base,
                        isolation=options.sources.isolation,
                        judged_by=judged_by(
                            None if options.units is None else options.units.keys, options.window
                        ),
                    )
                )
        histories: list[History] = []
        for group, claimed in zip(groups, claims, strict=True):
            with _of(group, options):
                histories.append(
                    resolve_history(
                        log,
                        claimed,
                        options.reach,
                        now_ms=now_ms,
                        survey=survey,
                        reads_log=bool(options.sources.kafka),
                        whole=options.dealt is not None,
                    )
                )
    return tuple(
        _share(group, history, options, say) for group, history in zip(groups, histories, strict=True)
    )


def _share(group: str | None, history: History, options: Options, say: Callable[[str], None]) -> Share:
    partitions = len(history.stretches) + len(history.skipped)
    if options.reshard is not None:
        history = options.reshard.widened(history)
    with _of(group, options):
        for line in check_gaps(options.topic, history.stretches, allowed=options.sources.allow_gap):
            say(f"{_whose(group, options)}{line}: coverage begins behind them")
        given_up = NONE_GIVEN_UP
        if group is not None:
            given_up = read_given_up(
                options.bootstrap,
                options.admin_config,
                history.stretches,
                topic=options.topic,
                group=group,
                named=options.dead_letters,
                buried=history.buried,
                say=say,
            )
    stretches = expire(given_up.cut(given_up.known(history.stretches)), options.base.expire_before_ms)
    return Share(
        group=group,
        history=replace(history, stretches=stretches),
        given_up=given_up,
        partitions=partitions,
    )


def _remembered(survey: Survey) -> Survey:
    """Ask what was asked before only once: groups often have the same cuts."""
    known: dict[tuple[frozenset[tuple[int, int]], ...], Mapping[int, Archived]] = {}

    def look(cuts: Mapping[int, int], horizons_ms: Mapping[int, int]) -> Mapping[int, Archived]:
        asked = (frozenset(cuts.items()), frozenset(horizons_ms.items()))
        if asked not in known:
            known[asked] = survey(cuts, horizons_ms)
        return known[asked]

    return look


def _whose(group: str | None, options: Options) -> str:
    """How a line about one of several groups begins."""
    return f"group {group!r}: " if len(options.groups) > 1 else ""


@contextmanager
def _of(group: str | None, options: Options) -> Generator[None]:
    """Name the group in what is wrong with one of several, where the line does not do so itself."""
    try:
        yield
    except BackfillError as error:
        if repr(group) in str(error):
            raise
        raise BackfillError(f"{_whose(group, options)}{error}") from None
