"""The data of a report travel with the marks: through runs, blocks, the shuffle and the slots' outcomes."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from spark_backfill import slots
from spark_backfill.duplicate_offsets import is_watched
from spark_backfill.finder import Finder
from spark_backfill.findings.findings import Findings, total
from spark_backfill.findings.histogram import histogram
from spark_backfill.findings.producer_codes import NO_HEADER, producer_codes
from spark_backfill.fold import Packing, pack_rows, write_slots
from spark_backfill.offset_range import OffsetRange
from spark_backfill.on_spark import OnSpark
from spark_backfill.row_columns import rows_of_batch
from spark_backfill.runs import RunPacker, from_batch, to_batch
from spark_backfill.slot_outcome import SlotOutcome
from spark_backfill.slot_writer import SlotWriter
from spark_backfill.slots import SlotPlan, plan_slots
from tests.support.naive_findings import NaiveFindings, Sighting
from tests.support.naive_fold import digest_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from spark_backfill.publish import Target

NOW_MS = 10**10
PRODUCERS = (b"shop", b"app", None)
CODES = {value: int(producer_codes(pa.array([value], pa.binary())).codes[0]) for value in PRODUCERS}
VALUES = {code: value for value, code in CODES.items()}


def log_of(partitions: range, count: int, names: int) -> list[Sighting]:
    """A log with repetitions, records without an ID, and timestamps that run back and forth or are missing."""
    source, log = random.Random(5), list[Sighting]()
    for partition in partitions:
        for offset in range(count):
            digest = None if source.random() < 0.05 else digest_of(source.randrange(names))
            time = 1_000_000 + 1_000 * offset + source.randrange(-50_000, 50_000)
            time = -1 if source.random() < 0.05 else time
            log.append(Sighting(partition, 3 * offset, time, digest, CODES[source.choice(PRODUCERS)]))
    return log


def batch_of(records: list[Sighting]) -> pa.RecordBatch:
    """The rows that a reader makes, with the header of the producer."""
    columns = {
        "partition": pa.array([record.partition for record in records], pa.int32()),
        "offset": pa.array([record.offset for record in records], pa.int64()),
        "timestamp_ms": pa.array([record.timestamp_ms for record in records], pa.int64()),
        "digest": pa.array([record.digest for record in records], pa.binary()),
        "producer": pa.array([VALUES[record.producer] for record in records], pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def plan_of(partitions: range, count: int) -> tuple[list[OffsetRange], SlotPlan]:
    """The offset ranges of such a log, and its slots."""
    offset_ranges = [
        OffsetRange(partition=partition, low=0, begin=0, high=3 * count, complete=True)
        for partition in partitions
    ]
    return offset_ranges, plan_slots(offset_ranges, parallelism=2)


def check(found: Findings, log: list[Sighting]) -> None:
    """Compare with a loop over the log."""
    naive = NaiveFindings(log)
    assert found.total.records == len(log)
    assert found.total.unkeyed == sum(naive.unkeyed.values())
    assert found.total.ids == len(naive.last)
    assert found.gaps_ms == histogram(np.array([max(gap, 0) for gap in naive.gaps_ms], np.int64))
    assert found.early == sum(gap < 0 for gap in naive.gaps_ms) > 0
    assert found.gaps_offsets == histogram(np.array(naive.gaps_offsets, np.int64))
    assert {(each.partition, bytes.fromhex(each.digest)): each.last_ms for each in found.sample.seen} == {
        name: max(record.timestamp_ms, 0) for name, record in naive.last.items()
    }
    told = {
        tally.name: (tally.records, tally.duplicates, tally.of_others) for tally in found.producers.values()
    }
    assert told == {
        (value or NO_HEADER.encode()).decode(): (
            naive.sent[code],
            naive.sent_again[code],
            naive.of_others[code],
        )
        for value, code in CODES.items()
    }


def taken(sighting: Sighting, sampling: int) -> bool:
    """Whether a record is in the sample: one ID in so many, and one record without an ID."""
    if sighting.digest is None:
        return bool(is_watched(np.array([sighting.offset]), sampling.bit_length() - 1)[0])
    return int.from_bytes(sighting.digest, "big") < 2**128 // sampling


@pytest.mark.parametrize("sampling", [1, 4])
def test_runs_and_slots_find_what_a_loop_finds(
    target: Target, monkeypatch: pytest.MonkeyPatch, sampling: int
) -> None:
    """Cut into runs and digest ranges, packed, written and read from the outcomes' text, nothing is miscounted.

    A sample has all records of its IDs, and only slots of these IDs have findings, and each partition's first one.
    """
    monkeypatch.setattr(slots, "WORTH_SPLITTING", 100)
    partitions = range(3)
    log = log_of(partitions, 400, names=150)
    offset_ranges, plan = plan_of(partitions, 400)
    finder = Finder(sampling=sampling, producer_header="sent-by", now_ms=NOW_MS)
    packer = RunPacker(plan, told=finder.told, run_rows=150)

    def blocks() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(log), 70):
            for partition, rows in rows_of_batch(batch_of(log[start : start + 70])):
                yield from map(to_batch, packer.add(partition, rows))
        yield from map(to_batch, packer.finish())

    writer = SlotWriter(
        target=target, slots=plan.slots, keep_from_ms=dict.fromkeys(partitions), finder=finder
    )  # fmt: skip
    outcomes = [
        SlotOutcome.from_json(text) for batch in writer(blocks()) for text in batch.column(0).to_pylist()
    ]
    assert len(outcomes) == len(plan.slots)
    found = total([outcome.findings for outcome in outcomes if outcome.findings is not None])
    check(found, [each for each in log if taken(each, sampling)])
    telling = [plan.slots[each.slot] for each in outcomes if each.findings is not None]
    assert {slot.partition for slot in telling} == set(partitions)
    assert all(slot.range * sampling < slot.ranges for slot in telling)
    assert (found.sampling, found.sample.is_whole) == (sampling, sampling == 1)
    assert len(offset_ranges) == 3


def test_without_a_report_nothing_travels() -> None:
    """Where nobody asked, blocks tell nothing of it."""
    _, plan = plan_of(range(1), 50)
    packer = RunPacker(plan)
    for partition, rows in rows_of_batch(batch_of(log_of(range(1), 50, names=9))):
        assert list(packer.add(partition, rows)) == []
    for block in packer.finish():
        [read] = from_batch(to_batch(block))
        assert read.told is None
        assert read.marks.digests == block.marks.digests


def test_rows_in_any_order_find_the_same(
    spark: SparkSession, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a source without an order, scattered over tasks, are put in order first where a report is asked for."""
    monkeypatch.setattr(slots, "WORTH_SPLITTING", 100)
    partitions = range(2)
    log = log_of(partitions, 300, names=120)
    offset_ranges, plan = plan_of(partitions, 300)
    scattered: list[Any] = [(*record[:4], VALUES[record.producer]) for record in log]
    random.Random(1).shuffle(scattered)
    schema = "partition int, offset long, timestamp_ms long, digest binary, producer binary"
    rows = spark.createDataFrame(scattered, schema).repartition(3)
    finder = Finder(producer_header="sent-by", now_ms=NOW_MS)
    blocks = pack_rows(rows, Packing(plan, finder=finder))
    outcomes = write_slots(
        OnSpark(lambda: spark, "orders"),
        [blocks],
        plan,
        offset_ranges,
        target,
        finder=finder,
    )
    check(total([outcome.findings for outcome in outcomes if outcome.findings is not None]), log)
