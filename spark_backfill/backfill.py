"""One run: ask Kafka, read and fold by Spark or in this process, publish the snapshot."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from dedup_sdk._masking import counted, shown
from dedup_sdk._store.protocol import DIGEST_NAME
from spark_backfill.archive import Archive
from spark_backfill.base import Base, check_base, open_base
from spark_backfill.ending import EndedError
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.finder import Finder
from spark_backfill.history import History
from spark_backfill.history_plan import plan_history, tell_gaps
from spark_backfill.layers import on_layers
from spark_backfill.options import Options
from spark_backfill.parquet_files import layout_of
from spark_backfill.parquet_reader import ParquetFiles
from spark_backfill.part_writer import PartWriter
from spark_backfill.parts import joined
from spark_backfill.publish import IfExists, Output, Target
from spark_backfill.report import Report
from spark_backfill.report_page.document import Document
from spark_backfill.report_page.page import check_place, write_page
from spark_backfill.reshard import Reshard
from spark_backfill.runs import Tally
from spark_backfill.session import describe_jobs
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan
from spark_backfill.snapshot import Made, describe, isolation_of, kept_entries, owner
from spark_backfill.spark_files import SparkFiles
from spark_backfill.tables import check_no_table
from spark_backfill.workers import Task, Workers


def backfill(
    options: Options,
    make_workers: Callable[[Options], Workers],
    *,
    say: Callable[[str], None] = lambda _line: None,
    around: Callable[[Task], Task] = lambda task: task,
) -> Report:
    """Make the snapshot that the options ask for, and return its report.

    ``make_workers`` makes who reads and folds (`spark_backfill.on_spark.on_spark`, or `InProcess` of
    `spark_backfill.in_process`); Spark is started only when Kafka has answered and there is something to read. ``say``
    gets a line now and then; ``around`` wraps the writing task, for tests that let it fail. Leaves a whole snapshot, or
    none (`spark_backfill.publish`).

    Raises:
        BackfillError: Kafka, the topic, the group, the archive or the output is not as it should be.
        ConfigurationError: the archive has no offsets, or its columns have other types than expected.
        NeedsSparkError: the workers are of this process, and an archive is read, or there is too much for it.
        PySparkException, Py4JError: Spark failed; `spark_backfill.errors.one_line` has the cause.
    """
    begin, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    workers = make_workers(options)
    if options.report is not None:
        check_place(options.report)
    with Output(options.output, options.existing, say=say) as output:
        base = _base(options)
        archive = _archive(options, workers, output.target, say)
        history = plan_history(options, archive, base, now_ms=now_ms)
        _tell_of_base(options, base, say)
        added = f", {counted(history.base_marks, 'mark')} of the base" if base is not None else ""
        read = f"{counted(history.offsets, 'offset')} to read{added}"
        say(f"{counted(len(history.offset_ranges), 'partition')} of {options.topic}, {read}")
        if base is not None and base.stays:
            history = _added_to(base, history, options, say)
        workers.expect(history.rows * _weight(options))
        writer = PartWriter(
            options=options,
            history=history,
            archive=archive,
            base=base,
            output=output,
            finder=_finder(options, history, now_ms),
            now_ms=now_ms,
            around=around,
            say=say,
        )
        writer.take_over()
        history = writer.history
        # Not before: what is taken over is not read again.
        tell_gaps(history, options, say)

        plan, outcomes = joined(writer.write(workers))
        if options.reshard is not None:
            _doubt(options.reshard, history, plan, outcomes, say)
        _check_ids(options, base, archive, outcomes)
        _tell_units(history, plan, outcomes, say)
        made = describe(
            history,
            plan,
            outcomes,
            options=options,
            base=base,
            versions={} if archive is None else archive.files.versions,
            taken_over=writer.records_taken_over,
            created_ms=now_ms,
            spark_start_seconds=workers.start_seconds,
            seconds=time.monotonic() - begin - workers.start_seconds,
        )
        output.publish(made.manifest, made.reports())
    lacked = _lacked(options, made)
    if lacked is not None:
        say(f"warning: of {counted(made.report.records, 'record')} none has {lacked} right?")
    if made.document is not None and options.report is not None:
        try:
            _draw(made.document, options.report, options.shown_output, say)
        except EndedError as ended:
            ended.tell(output.outcome)
            raise
    return made.report


def _weight(options: Options) -> int:
    """Return how much more memory, or time, each row takes than that of a plain run."""
    if options.report is not None or options.ordered is not None:
        # A sighting beside each mark; or each record is judged by the consumer's engine.
        return 3
    # A mark in another partition, too.
    return 1 if options.reshard is None else 2


def _added_to(base: Base, history: History, options: Options, say: Callable[[str], None]) -> History:
    """Return a history so that files of the base stay where they can; say which partitions stay as they were."""
    for entry in kept_entries(history, base):
        say(
            f"warning: partition {entry.partition} is skipped ({history.skipped[entry.partition]}): what the "
            f"snapshot knows of it, up to offset {entry.high}, stays"
        )
    if options.window.count is not None:
        return history
    return replace(history, offset_ranges=on_layers(history.offset_ranges, base.manifest))


def _lacked(options: Options, made: Made) -> str | None:
    """Return the key that no record of a snapshot has, and the beginning of a question about it.

    None: nothing is lacked by all.
    """
    told, compared = made.report, options.last_id
    if told.records and told.records == told.unkeyed + told.malformed:
        return _unreadable(options)
    if compared is None or compared.otherwise is None or not told.marks:
        return None
    files = [file for entry in made.manifest.partitions for file in entry.files]
    # The mark of a source has a payload, the mark of an ID that is looked up has none.
    only_sources = all(file.payloads == file.marks for file in files)
    return f"an ID by {compared.otherwise} to be looked up: is --otherwise" if only_sources else None


def _tell_units(
    history: History, plan: SlotPlan, outcomes: Sequence[SlotOutcome], say: Callable[[str], None]
) -> None:
    """Say where a failed unit has the history of a partition begin later, and where open ones have it end earlier."""
    ends = {each.partition: each.high for each in history.offset_ranges}
    open_at: list[tuple[int, int, int]] = []
    for outcome in outcomes:
        partition = plan.slots[outcome.slot].partition
        if outcome.failed_unit is not None:
            say(
                f"warning: partition {partition}: a unit with the record at offset {outcome.failed_unit} is malformed "
                "or has no end, and the log does not tell which of its messages were handled: which IDs are older is "
                "not known for certain, and messages that depend on that are unverified"
            )
        if outcome.cut is not None and outcome.cut < ends[partition]:
            open_at.append((ends[partition] - outcome.cut, outcome.cut, partition))
    if open_at:
        left, cut, partition = max(open_at)
        say(
            f"warning: the history of {counted(len(open_at), 'partition')} ends early, at a unit that is open, at most "
            f"that of partition {partition}: its unit from offset {cut} on has no end, so that the snapshot lacks "
            f"the last {counted(left, 'offset')}; a consumer reads them from the topic"
        )


def _check_ids(
    options: Options, base: Base | None, archive: Archive | None, outcomes: Sequence[SlotOutcome]
) -> None:
    """Refuse a source of which no record has an ID: who installs the snapshot would take each copy of one for new.

    A base with marks of this topic shows that the ID spec is right for the topic, but not how an archive is written.

    Raises:
        BackfillError: naming the source.
    """
    tally = Tally.total(each.tally for each in outcomes)
    if archive is not None and tally.archived and tally.archived == tally.archived_unkeyed:
        lacks, beside = _lacks(tally.archived, "the archive", options), archive.files.beside()
        found = f" Beside files that were read lie {', '.join(beside)}" if beside else ""
        raise BackfillError(f"{lacks}, and does --columns name the columns that it reads?{found}")
    records, unkeyed = tally.records - tally.archived, tally.unkeyed - tally.archived_unkeyed
    if records and records == unkeyed and not (base is not None and base.manifest.marks):
        raise BackfillError(f"{_lacks(records, f'topic {shown(options.topic)}', options)}?")


def _lacks(records: int, source: str, options: Options) -> str:
    """Say that no record of a source has an ID: the beginning of a question."""
    return f"of {counted(records, 'record')} of {source} none has an ID by {_what(options)} right"


def _unreadable(options: Options) -> str:
    order = "" if options.last_id is None else options.last_id.order
    return f"an ID by {options.id} that {order} can read: are --id and --order"


def _what(options: Options) -> str:
    if options.last_id is None or options.last_id.source is None:
        return f"{options.id}: is --id"
    return f"{options.id} and a source by {options.last_id.source}: are --id and --source-id"


def _finder(options: Options, history: History, now_ms: int) -> Finder | None:
    """Return who finds out what a report shows, None where none was asked for."""
    if options.report is None:
        return None
    return Finder.of(history.offsets, producer_header=options.producer_header, now_ms=now_ms)


def _doubt(
    reshard: Reshard,
    history: History,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    say: Callable[[str], None],
) -> None:
    """Say it where the last partition has keys that the partitioner would not have placed there."""
    last = [each for each in outcomes if plan.slots[each.slot].partition == history.partitions - 1]
    doubt = reshard.doubt(
        history.topic,
        history.partitions,
        sum(outcome.tally.records for outcome in last),
        sum(outcome.tally.keyless for outcome in last),
        sum(outcome.tally.moved for outcome in last),
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


def _base(options: Options) -> Base | None:
    """The base, if there is one, and if it is of the same topic, rule and window."""
    if options.base is None:
        return None
    base = replace(open_base(options.base), stays=options.existing is IfExists.ADDED_TO)
    check_base(
        base,
        topic=options.topic,
        id_spec=str(options.id),
        digest=DIGEST_NAME,
        isolation=isolation_of(options, base),
        group=owner(options, base),
        window=options.window,
    )
    return base


def _tell_of_base(options: Options, base: Base | None, say: Callable[[str], None]) -> None:
    if options.existing is IfExists.ADDED_TO and base is None:
        say(f"there is no snapshot at {options.shown_output} yet: all of the history is read")
    if base is None:
        return
    dropped = any(entry.known.since_ms is not None for entry in base.manifest.partitions)
    if dropped and (options.window.time_ms or 0) > (base.window.time_ms or 0):
        say(
            f"the base remembers {base.window}, and not what it had dropped by then: what {options.window} "
            "reaches beyond that is known as the window fills; known_since_ms in the report says from when "
            "on"
        )


def _archive(
    options: Options, workers: Workers, target: Target, say: Callable[[str], None]
) -> Archive | None:
    described = options.archive
    if described is None:
        return None
    spark = workers.session()
    describe_jobs(spark, options.topic, f"look through the archive of {options.topic}")
    check_no_table(spark, described)
    layout = layout_of(options)
    if layout is not None:
        plain = ParquetFiles(spark, options.topic, layout, options.parallelism)
        return Archive(plain, options.spec, target.check_before)
    files = SparkFiles(
        spark,
        described,
        topic=options.topic,
        spec=options.spec,
        reads_keys=options.reshard is not None,
    )
    for line in files.doubts:
        say(line)
    return Archive(files, options.spec, target.check_before)
