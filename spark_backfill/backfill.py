"""One run: ask Kafka, fold in Spark, publish the snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from dedup_sdk.store.manifest import write_manifest
from spark_backfill.client_reader import ClientReader, plan_ranges, read_pieces
from spark_backfill.fold import Packing, Task, pack_rows_in_order, write_slots
from spark_backfill.given_up import NONE_GIVEN_UP, GivenUpRecords, read_given_up
from spark_backfill.history import History, resolve_history
from spark_backfill.kafka_log import KafkaLog
from spark_backfill.options import Options
from spark_backfill.output import REPORT_NAME, Output
from spark_backfill.report import Report, make_report
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slots import SlotPlan, plan_slots
from spark_backfill.snapshot import make_manifest
from spark_backfill.source import read_digests


def backfill(
    options: Options,
    make_session: Callable[[], SparkSession],
    *,
    say: Callable[[str], None] = lambda _line: None,
    around: Callable[[Task], Task] = lambda task: task,
) -> Report:
    """Make the snapshot that the options ask for and return what it holds.

    The session is made only when Kafka has answered and there is something to read. ``say`` gets a line now and then;
    ``around`` wraps the writing task, for tests that let it fail. Leaves either a whole snapshot or nothing.

    Raises:
        BackfillError: Kafka, the topic, the group or the output is not as it should be.
        PySparkException, Py4JError: Spark failed; `spark_backfill.errors.one_line` has the cause.
    """
    begin, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    with Output(options.output, overwrite=options.overwrite) as output:
        history = _resolve(options, now_ms)
        given_up = _given_up(options, history, say)
        history = replace(history, stretches=given_up.known(history.stretches))
        stretches = given_up.cut(history.stretches)
        offsets = sum(stretch.offsets for stretch in history.stretches)
        say(f"{len(history.stretches)} partitions of {options.topic}, {offsets:,} offsets to read")
        started = time.monotonic()
        plan, outcomes = SlotPlan(()), list[SlotOutcome]()
        spark = make_session() if offsets else None
        start_seconds = time.monotonic() - started
        if spark is not None:
            ordered = options.window.count is not None
            parallelism = spark.sparkContext.defaultParallelism
            plan = plan_slots(history.stretches, split=not ordered, parallelism=parallelism)
            pieces = _pieces(spark, options, history, Packing(plan, ordered, given_up.offsets))
            outcomes = write_slots(pieces, plan, stretches, options.window, output.attempts, around=around)
        output.take(plan, outcomes)
        manifest = make_manifest(
            replace(history, stretches=stretches),
            plan,
            outcomes,
            spec=options.id,
            window=options.window,
            group=None if options.vouched else options.group,
            created_ms=now_ms,
        )
        report = make_report(
            manifest,
            output=str(options.output),
            skipped=history.skipped,
            offsets=offsets,
            records=sum(outcome.records for outcome in outcomes),
            unkeyed=sum(outcome.unkeyed for outcome in outcomes),
            given_up=given_up.count,
            spark_start_seconds=start_seconds,
            seconds=time.monotonic() - begin - start_seconds,
        )
        (output.folder / REPORT_NAME).write_text(f"{report}\n", encoding="ascii")
        write_manifest(output.folder, manifest)
        output.publish()
    return report


def _pieces(spark: SparkSession, options: Options, history: History, packing: Packing) -> DataFrame:
    if options.source == "kafka-jvm":
        rows = read_digests(
            spark,
            options.bootstrap,
            options.topic,
            history.stretches,
            spec=options.id,
            settings=options.reader_config,
        )
        return pack_rows_in_order(rows, packing)
    reader = ClientReader(
        settings={**options.admin_config, "bootstrap.servers": options.bootstrap},
        topic=options.topic,
        spec=str(options.id),
        ranges=plan_ranges(history.stretches, spark.sparkContext.defaultParallelism),
        packing=packing,
    )
    return read_pieces(spark, reader)


def _resolve(options: Options, now_ms: int) -> History:
    with KafkaLog(options.bootstrap, options.topic, options.admin_config) as log:
        return resolve_history(
            log, options.window, group=options.group, assume_processed=options.assume_processed, now_ms=now_ms
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
