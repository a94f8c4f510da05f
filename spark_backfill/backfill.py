"""One run: ask Kafka, fold in Spark, publish what was made."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from pyspark.sql import SparkSession

from dedup_sdk.errors import ConfigurationError
from dedup_sdk.store.manifest import write_manifest
from spark_backfill.archive import Archive
from spark_backfill.archive_checks import told_open_files
from spark_backfill.base import Base, check_base, open_base
from spark_backfill.errors import one_line
from spark_backfill.fold import Packing, Task, write_slots
from spark_backfill.hull import hull, in_archive, in_log, offsets_of
from spark_backfill.lane_dealer import LaneDealer, takers_of
from spark_backfill.lane_sources import read_dealt_rows
from spark_backfill.lane_spec import DealtSpec, LaneSpec
from spark_backfill.lane_writer import write_dealt
from spark_backfill.options import Options
from spark_backfill.output import Output
from spark_backfill.parquet_archive import ParquetArchive
from spark_backfill.parquet_files import layout_of
from spark_backfill.pieces import read_all_pieces
from spark_backfill.publication import Made, Publication, isolation_of, owner
from spark_backfill.remote_output import check_shared, open_output
from spark_backfill.report import Report, RunReport
from spark_backfill.report_page.document import Document
from spark_backfill.report_page.page import check_place, write_page
from spark_backfill.reshard import Reshard
from spark_backfill.session import LazySession
from spark_backfill.share import Share, find_shares
from spark_backfill.shared_rebuild import GroupSnapshot, check_store, load_snapshots
from spark_backfill.shared_runs import Taker
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan, plan_group_slots
from spark_backfill.snapshot import DIGEST_NAME
from spark_backfill.table_folders import check_no_table

Watch = Callable[[SparkSession, int], AbstractContextManager[None]]


def backfill(
    options: Options,
    make_session: Callable[[], SparkSession],
    *,
    say: Callable[[str], None] = lambda _line: None,
    around: Callable[[Task], Task] = lambda task: task,
    watch: Watch = lambda _spark, _offsets: nullcontext(),
) -> Report:
    """Do as `backfill_groups` for one group, or none, and return what the snapshot holds."""
    if len(options.groups) > 1:
        raise ConfigurationError(f"{len(options.groups)} groups have a report each: call backfill_groups")
    (report,) = backfill_groups(options, make_session, say=say, around=around, watch=watch).groups
    return report


def backfill_groups(
    options: Options,
    make_session: Callable[[], SparkSession],
    *,
    say: Callable[[str], None] = lambda _line: None,
    around: Callable[[Task], Task] = lambda task: task,
    watch: Watch = lambda _spark, _offsets: nullcontext(),
) -> RunReport:
    """Make the snapshots that the options ask for, one a group, and return what they hold.

    The session is made only when Kafka has answered and there is something to read. ``say`` gets a line now and then;
    ``around`` wraps the writing task, for tests that let it fail; ``watch`` is open while Spark reads that many offsets and
    writes. Leaves whole snapshots of all groups, or nothing.

    Raises:
        BackfillError: Kafka, the topic, a group, the archive or the output is not as it should be.
        ConfigurationError: the archive has no offsets, or its columns are not what they are taken for.
        PySparkException, Py4JError: Spark failed; `spark_backfill.errors.one_line` has the cause.
    """
    begin, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    if options.report is not None:
        check_place(options.report)
    with open_output(options) as output:
        check_store(options.shared, say)
        session = LazySession(make_session)
        base = _base(options, say)
        archive = _archive(options, session, say)
        shares = find_shares(options, archive, base, now_ms=now_ms, say=say)
        offsets = _announced(options, shares, say)
        plan, outcomes = SlotPlan(()), list[SlotOutcome]()
        rows = offsets + sum(share.base_marks for share in shares)
        if rows:
            spark = session.get()
            check_shared(options, spark)
            stretches = [share.stretches for share in shares]
            if options.dealt is not None:
                plan, dealer = _dealer(options.dealt, shares, spark.sparkContext.defaultParallelism)
                dealt = read_dealt_rows(spark, options, stretches, dealer, archive)
                with watch(spark, rows):
                    outcomes = write_dealt(
                        dealt, plan, stretches, options.dealt, output.attempts, now_ms=now_ms, around=around
                    )
            else:
                plan, packing = _packing(options, shares, spark.sparkContext.defaultParallelism)
                pieces = read_all_pieces(spark, options, stretches, packing, archive, base)
                with watch(spark, rows):
                    outcomes = write_slots(
                        pieces,
                        plan,
                        stretches,
                        options.window,
                        output.attempts,
                        now_ms=now_ms,
                        with_producers=options.producer_header is not None,
                        resharded=packing.reshard is not None,
                        around=around,
                    )
        if options.reshard is not None:
            _doubt(options.reshard, shares[0], plan, outcomes, say)
        output.take(plan, outcomes)
        publication = Publication(
            options=options,
            plan=plan,
            base=base,
            created_ms=now_ms,
            spark_start_seconds=session.start_seconds,
            seconds=time.monotonic() - begin - session.start_seconds,
        )
        made = [
            publication.made(
                number, share, [each for each in outcomes if plan.slots[each.slot].group == number]
            )
            for number, share in enumerate(shares)
        ]
        made = _share(options, made, shares, output, session, now_ms, say, around)
        for number, each in enumerate(made):
            each.write_reports(output.snapshot(number), with_findings=options.report is not None)
        for number, each in enumerate(made):
            write_manifest(output.snapshot(number), each.manifest)
        output.publish()
    for each in made:
        lacked = _lacked(options, each)
        if lacked is not None:
            whose = f" of group {each.report.group!r}" if len(made) > 1 else ""
            say(f"warning: none of the {each.report.records:,} records{whose} has {lacked} right?")
    if options.report is not None:
        _draw(made[0].document, options.report, options.shown_output, say)
    return RunReport(
        groups=tuple(each.report for each in made),
        output=options.shown_output,
        offsets=offsets,
        spark_start_seconds=publication.spark_start_seconds,
        seconds=publication.seconds,
    )


def _share(
    options: Options,
    made: list[Made],
    shares: Sequence[Share],
    output: Output,
    session: LazySession,
    now_ms: int,
    say: Callable[[str], None],
    around: Callable[[Task], Task],
) -> list[Made]:
    """Load what was made into the shared memory, if there is one, and return it with reports that say so."""
    shared = options.shared
    if shared is None:
        return made
    snapshots = [
        GroupSnapshot(share.group or "", output.snapshot(number), each.manifest)
        for number, (each, share) in enumerate(zip(made, shares, strict=True))
    ]
    loaded = load_snapshots(
        session,
        shared,
        snapshots,
        window_ms=options.window.time_ms or 0,
        now_ms=now_ms,
        say=say,
        around=around,
    )
    shown = shared.server.shown
    for snapshot, marks in zip(snapshots, loaded, strict=True):
        say(f"{marks:,} IDs of group {snapshot.group!r} are in the shared memory at {shown}")
    return [each.shared_at(shown, marks) for each, marks in zip(made, loaded, strict=True)]


def _lacked(options: Options, made: Made) -> str | None:
    """Return what none of the records of a snapshot has, and the beginning of a question about it; None: nothing is lacked by all."""
    told, lanes = made.report, options.lanes
    if told.records and told.records == told.unkeyed + told.malformed:
        return _unreadable(options) if told.malformed else _what(options)
    if lanes is None or lanes.otherwise is None or not told.marks:
        return None
    files = [file for entry in made.manifest.partitions for file in entry.files]
    # Lanes have payloads, and what is looked up has none.
    only_lanes = all(file.payloads == file.marks for file in files)
    return f"an ID by {lanes.otherwise} to be looked up: is --otherwise" if only_lanes else None


def _unreadable(options: Options) -> str:
    order = "" if options.lanes is None else options.lanes.order
    return f"an ID by {options.id} that {order} can read: are --id and --order"


def _what(options: Options) -> str:
    if options.lanes is None or options.lanes.lane is None:
        return f"an ID by {options.id}: is --id"
    return f"an ID by {options.id} and a lane by {options.lanes.lane}: are --id and --lane"


def _announced(options: Options, shares: Sequence[Share], say: Callable[[str], None]) -> int:
    """Say what is to be read, and return how many offsets that are."""
    stretches = [share.stretches for share in shares]
    if len(shares) == 1:
        (share,) = shares
        offsets = share.offsets
        added = f", {share.base_marks:,} marks of the base" if options.base.place is not None else ""
        say(f"{len(share.stretches)} partitions of {options.topic}, {offsets:,} offsets to read{added}")
        return offsets
    for share in shares:
        say(
            f"group {share.group!r}: {len(share.stretches)} partitions of {options.topic}, {share.offsets:,} offsets"
        )
    offsets = sum(offsets_of(hull(list(map(part, stretches)))) for part in (in_log, in_archive))
    say(f"{offsets:,} offsets to read, once for all {len(shares)} groups")
    return offsets


def _packing(options: Options, shares: Sequence[Share], parallelism: int) -> tuple[SlotPlan, Packing]:
    """Return the slots of all groups, and how rows are packed for them."""
    ordered = options.window.count is not None
    reshard = None if options.reshard is None else options.reshard.with_cuts(shares[0].stretches)
    plan = plan_group_slots(
        [share.stretches for share in shares],
        split=not ordered,
        parallelism=parallelism,
        arriving=0 if reshard is None else 1 + shares[0].offsets // reshard.partitions,
    )
    if len(shares) > 1:
        return plan, Packing(plan, ordered, takers=tuple(Taker(share.given_up.offsets) for share in shares))
    packing = Packing(
        plan,
        ordered,
        shares[0].given_up.offsets,
        options.report is not None,
        options.producer_header,
        reshard,
    )
    return plan, packing


def _dealer(spec: DealtSpec, shares: Sequence[Share], parallelism: int) -> tuple[SlotPlan, LaneDealer]:
    """Return the slots of all groups, and how rows are dealt out to them where they are folded in offset order."""
    stretches = [share.stretches for share in shares]
    # Where the partition is the lane, all of it is one row of a sorted file, unless a second opinion has more of them; units are judged in the
    # order of their ends.
    split = isinstance(spec, LaneSpec) and (spec.lane, spec.otherwise) != (None, None)
    plan = plan_group_slots(stretches, split=split, parallelism=parallelism)
    takers = takers_of(stretches, [share.given_up.offsets for share in shares])
    return plan, LaneDealer(spec=spec, plan=plan, takers=takers)


def _doubt(
    reshard: Reshard,
    share: Share,
    plan: SlotPlan,
    outcomes: Sequence[SlotOutcome],
    say: Callable[[str], None],
) -> None:
    """Say it where the last partition has keys that the partitioner would not have placed there."""
    last = [each for each in outcomes if plan.slots[each.slot].partition == share.partitions - 1]
    doubt = reshard.doubt(
        share.history.topic,
        share.partitions,
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
        isolation=isolation_of(options, base),
        group=owner(options, next(iter(options.groups), None), base),
        window=options.window,
    )
    dropped = any(entry.since_ms is not None for entry in base.manifest.partitions)
    if dropped and (options.window.time_ms or 0) > (base.window.time_ms or 0):
        say(
            f"the base remembers {base.window}, and not what it had dropped by then: what {options.window} reaches beyond that is "
            "known as the window fills; known_since_ms in the report says from when on"
        )
    return base


def _archive(
    options: Options, session: LazySession, say: Callable[[str], None]
) -> Archive | ParquetArchive | None:
    described = options.sources.archive
    if described is None:
        return None
    check_no_table(session.get(), described)
    layout = layout_of(options)
    if layout is not None:
        return ParquetArchive(session.get(), options.topic, options.spec, layout)
    archive = Archive(
        session.get(),
        described,
        topic=options.topic,
        spec=options.spec,
        reads_headers=options.producer_header is not None,
        reads_keys=options.reshard is not None,
    )
    if archive.left_out:
        say(told_open_files(archive.left_out))
    return archive
