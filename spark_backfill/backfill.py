"""One run: ask Kafka, fold in Spark, publish the snapshot."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from dedup_sdk.store.manifest import write_manifest
from spark_backfill.archive import Archive
from spark_backfill.archive_history import archived_history
from spark_backfill.archived import check_gaps
from spark_backfill.base import Base, check_base, open_base
from spark_backfill.errors import one_line
from spark_backfill.findings.findings import total
from spark_backfill.fold import Packing, Task, write_slots
from spark_backfill.given_up import NONE_GIVEN_UP, GivenUpRecords, read_given_up
from spark_backfill.history import History, kept_history, resolve_history
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.options import Options
from spark_backfill.output import REPORT_NAME
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.parquet_files import layout_of
from spark_backfill.pieces import read_all_pieces
from spark_backfill.remote_output import check_shared, open_output
from spark_backfill.report import Report, make_report
from spark_backfill.report_page.document import FINDINGS_NAME, Document, make_document
from spark_backfill.report_page.page import check_place, write_page
from spark_backfill.reshard import Reshard
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan, plan_slots
from spark_backfill.snapshot import DIGEST_NAME, make_manifest
from spark_backfill.stretch import expire

Watch = Callable[[SparkSession, int], AbstractContextManager[None]]


def backfill(
    options: Options,
    make_session: Callable[[], SparkSession],
    *,
    say: Callable[[str], None] = lambda _line: None,
    around: Callable[[Task], Task] = lambda task: task,
    watch: Watch = lambda _spark, _offsets: nullcontext(),
) -> Report:
    """Make the snapshot that the options ask for and return what it holds.

    The session is made only when Kafka has answered and there is something to read. ``say`` gets a line now and then;
    ``around`` wraps the writing task, for tests that let it fail; ``watch`` is open while Spark reads that many offsets and
    writes. Leaves either a whole snapshot or nothing.

    Raises:
        BackfillError: Kafka, the topic, the group, the archive or the output is not as it should be.
        ConfigurationError: the archive has no offsets, or its columns are not what they are taken for.
        PySparkException, Py4JError: Spark failed; `spark_backfill.errors.one_line` has the cause.
    """
    begin, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    if options.report is not None:
        check_place(options.report)
    with open_output(options) as output:
        session = _Session(make_session)
        base = _base(options, say)
        archive = _archive(options, session)
        history = _resolve(options, archive, base, now_ms)
        there = len(history.stretches) + len(history.skipped)
        if options.reshard is not None:
            history = options.reshard.widened(history)
        for line in check_gaps(options.topic, history.stretches, allowed=options.sources.allow_gap):
            say(f"{line}: coverage begins behind them")
        given_up = _given_up(options, history, say)
        history = replace(history, stretches=given_up.known(history.stretches))
        stretches = expire(given_up.cut(history.stretches), options.base.expire_before_ms)
        offsets = sum(stretch.offsets for stretch in stretches)
        base_marks = sum(stretch.base.marks for stretch in stretches if stretch.base is not None)
        added = f", {base_marks:,} marks of the base" if base is not None else ""
        say(f"{len(history.stretches)} partitions of {options.topic}, {offsets:,} offsets to read{added}")
        plan, outcomes = SlotPlan(()), list[SlotOutcome]()
        if offsets or base_marks:
            spark = session.get()
            check_shared(options, spark)
            ordered = options.window.count is not None
            parallelism = spark.sparkContext.defaultParallelism
            reshard = None if options.reshard is None else options.reshard.with_cuts(stretches)
            plan = plan_slots(
                history.stretches,
                split=not ordered,
                parallelism=parallelism,
                arriving=0 if reshard is None else 1 + offsets // reshard.partitions,
            )
            packing = Packing(
                plan,
                ordered,
                given_up.offsets,
                options.report is not None,
                options.producer_header,
                reshard,
            )
            pieces = read_all_pieces(spark, options, history.stretches, packing, archive, base)
            with watch(spark, offsets + base_marks):
                outcomes = write_slots(
                    pieces,
                    plan,
                    stretches,
                    options.window,
                    output.attempts,
                    now_ms=now_ms,
                    with_producers=options.producer_header is not None,
                    resharded=reshard is not None,
                    around=around,
                )
        if options.reshard is not None:
            _doubt(options.reshard, history, there, plan, outcomes, say)
        output.take(plan, outcomes)
        manifest = make_manifest(
            replace(history, stretches=stretches),
            plan,
            outcomes,
            spec=options.id,
            window=options.window,
            group=_group(options, base),
            isolation=_isolation(options, base),
            created_ms=now_ms,
            reshard=options.reshard,
        )
        report = make_report(
            manifest,
            output=options.shown_output,
            sources=options.sources.described(),
            base=None if base is None else base.source.place,
            base_marks=base_marks,
            skipped=history.skipped,
            offsets=offsets,
            records=sum(outcome.records for outcome in outcomes),
            unkeyed=sum(outcome.unkeyed for outcome in outcomes),
            given_up=given_up.count,
            keyless=sum(outcome.keyless for outcome in outcomes),
            moved=sum(outcome.moved for outcome in outcomes),
            spark_start_seconds=session.start_seconds,
            seconds=time.monotonic() - begin - session.start_seconds,
        )
        (output.folder / REPORT_NAME).write_text(f"{report}\n", encoding="ascii")
        found = total([outcome.findings for outcome in outcomes if outcome.findings is not None])
        document = make_document(manifest, report, found, producer_header=options.producer_header)
        if options.report is not None:
            (output.folder / FINDINGS_NAME).write_text(f"{document}\n", encoding="ascii")
        write_manifest(output.folder, manifest)
        output.publish()
    if options.report is not None:
        _draw(document, options.report, options.shown_output, say)
    return report


def _doubt(
    reshard: Reshard,
    history: History,
    there: int,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    say: Callable[[str], None],
) -> None:
    """Say it where the last partition has keys that the partitioner would not have placed there."""
    last = [outcome for outcome in outcomes if plan.slots[outcome.slot].partition == there - 1]
    doubt = reshard.doubt(
        history.topic,
        there,
        sum(outcome.records for outcome in last),
        sum(outcome.keyless for outcome in last),
        sum(outcome.moved for outcome in last),
    )
    if doubt is not None:
        say(doubt)


def _draw(document: Document, folder: Path, snapshot: str, say: Callable[[str], None]) -> None:
    try:
        say(f"the report is {write_page(document, folder)}")
    except Exception as error:  # noqa: BLE001 (whatever fails in drawing, the snapshot took long and is there)
        say(
            f"warning: the snapshot is there, but no report: {one_line(error)}; "
            f"draw it with dedup report {shlex.quote(snapshot)} --output DIR"
        )


class _Session:
    """The Spark session, made when it is first needed."""

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._session: SparkSession | None = None
        self.start_seconds = 0.0

    def get(self) -> SparkSession:
        if self._session is None:
            started = time.monotonic()
            self._session = self._make()
            self.start_seconds = time.monotonic() - started
        return self._session


def _base(options: Options, say: Callable[[str], None]) -> Base | None:
    """The base, if there is one, and if it is of what is asked for."""
    if options.base.place is None:
        return None
    base = open_base(options.base.place)
    check_base(
        base,
        topic=options.topic,
        id_spec=str(options.id),
        digest=DIGEST_NAME,
        isolation=_isolation(options, base),
        group=_group(options, base),
        window=options.window,
    )
    dropped = any(entry.since_ms is not None for entry in base.manifest.partitions)
    if dropped and (options.window.time_ms or 0) > (base.window.time_ms or 0):
        say(
            f"the base remembers {base.window}, and not what it had dropped by then: what {options.window} reaches beyond that is "
            "known as the window fills; known_since_ms in the report says from when on"
        )
    return base


def _group(options: Options, base: Base | None) -> str | None:
    """The group whose own history it is, None: somebody vouches for it."""
    if base is not None and options.base.compact:
        return base.manifest.group
    return None if options.vouched else options.group


def _isolation(options: Options, base: Base | None) -> str:
    if base is not None and options.base.compact:
        return base.manifest.isolation
    return options.sources.isolation


def _archive(options: Options, session: _Session) -> Archive | ParquetArchive | None:
    described = options.sources.archive
    if described is None:
        return None
    layout = layout_of(options)
    if layout is not None:
        return ParquetArchive(session.get(), options.topic, options.id, layout)
    return Archive(
        session.get(),
        described,
        topic=options.topic,
        spec=options.id,
        reads_headers=options.producer_header is not None,
        reads_keys=options.reshard is not None,
    )


def _resolve(
    options: Options, archive: Archive | ParquetArchive | None, base: Base | None, now_ms: int
) -> History:
    if base is not None and options.base.compact:
        return kept_history(base.manifest, options.window, now_ms)
    survey = None if archive is None else archive.survey
    sources = options.sources
    if not options.bootstrap and survey is not None:
        return archived_history(
            survey,
            options.window,
            cluster=sources.cluster_id,
            topic=options.topic,
            topic_id=sources.topic_id,
            now_ms=now_ms,
            base=base,
        )
    with KafkaLog(options.bootstrap, options.topic, options.admin_config) as log:
        return resolve_history(
            log,
            options.window,
            group=options.group,
            assume_processed=options.assume_processed,
            now_ms=now_ms,
            survey=survey,
            reads_log=bool(sources.kafka),
            base=base,
        )


def _given_up(options: Options, history: History, say: Callable[[str], None]) -> GivenUpRecords:
    if options.group is None:
        return NONE_GIVEN_UP
    return read_given_up(
        options.bootstrap,
        options.admin_config,
        history.stretches,
        topic=options.topic,
        group=options.group,
        named=options.dead_letters,
        buried=history.buried,
        say=say,
    )
