"""Rebuilt = lived: Spark's fold of a log gives the marks that the engine kept while it lived through it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.ids import header
from dedup_sdk.ids.redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.record import Record
from dedup_sdk.store.paths import list_partitions
from dedup_sdk.store.read_only import read_partition
from dedup_sdk.store.rocks import RocksStore
from dedup_sdk.strategy import Lookup
from dedup_sdk.window import Window
from spark_backfill import id_columns
from spark_backfill.stretch import Stretch, horizon_ms
from tests.support.folding import fold_to_files
from tests.support.naive_fold import as_dictionary, live, read_sorted_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dedup_sdk.decision import Mark

BASE_MS = 1_700_000_000_000
PARTITIONS = (0, 3)
_SCHEMA = (
    "topic string, partition int, offset long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)


def log_of(count: int) -> list[Record]:
    """Two partitions with duplicates near and far, holes, records without an ID, late ones, and letters that two groups sent back."""
    source = random.Random(11)
    records = []
    for partition in PARTITIONS:
        offset = 0
        for number in range(count):
            offset += source.choice([1, 1, 1, 2])
            headers = (
                [("dedup-id", str(source.randrange(number // 2 + 5)).encode())]
                if source.random() > 0.03
                else []
            )
            if source.random() < 0.1:
                # A dead letter that was sent back.
                group = source.choice(["billing", "billing", "shipping"])
                headers.append(
                    (REDRIVE_HEADER, redrive_value(group, "orders", partition, source.randrange(3), 0))
                )
            late_ms = source.choice([0, 0, 0, 5_000])
            timestamp_ms = BASE_MS + 1_000 * number - late_ms
            records.append(Record("orders", partition, offset, timestamp_ms, None, b"x", headers))
    return records


def lived(records: list[Record], window: Window, folder: Path) -> dict[int, tuple[dict[bytes, Mark], int]]:
    """Live through the log in small batches, with flushes, completing what is delivered in disorder."""
    source = random.Random(5)
    strategy = Lookup(id=header("dedup-id"), window=window)
    store = RocksStore(folder)
    with Deduplicator(
        strategy, store, group="billing", recent_marks=200, clock=lambda: BASE_MS / 1_000 + 10**6
    ) as engine:
        for start in range(0, len(records), 25):
            batch = records[start : start + 25]
            verdicts = engine.admit(batch)
            open_records = [
                record for record, verdict in zip(batch, verdicts, strict=True) if verdict.deliver
            ]
            while open_records:
                source.shuffle(open_records)
                settled = engine.complete(open_records)
                open_records = [each.record for each in settled if each.verdict.deliver]
    found = {}
    for entry in list_partitions(folder):
        with read_partition(entry.path) as opened:
            marks: dict[bytes, Mark] = {}
            for page in opened.scan_all():
                marks |= as_dictionary(page)
            assert opened.progress is not None
            found[entry.partition] = (marks, opened.progress.accepted)
    return found


@pytest.mark.parametrize(
    "window",
    [
        Window(seconds=120),
        Window(days=1),
        Window(count=50),
        Window(count=50, seconds=40),
        Window(count=400, seconds=90),
    ],
    ids=str,
)
def test_marks_live_at_the_cut_are_the_same(
    spark: SparkSession, attempts: Path, tmp_path: Path, window: Window
) -> None:
    """For windows by time, by count and by both, every live ID has the same offset, timestamp and rank."""
    records = log_of(600)
    expected = lived(records, window, tmp_path / "lived")
    rows = [
        (r.topic, r.partition, r.offset, r.timestamp_ms, r.key, r.value, list(r.headers) or None)
        for r in records
    ]
    frame = id_columns.with_digests(spark.createDataFrame(rows, _SCHEMA), header("dedup-id"), group="billing")
    stretches = []
    for partition in PARTITIONS:
        last = [record for record in records if record.partition == partition][-1]
        stretches.append(
            Stretch(
                partition=partition,
                low=0,
                begin=0,
                high=last.offset + 1,
                complete=True,
                keep_from_ms=horizon_ms(window, last.timestamp_ms, BASE_MS + 10**9),
            )
        )
    plan, outcomes = fold_to_files(frame, stretches, window, attempts)
    assert {plan.slots[outcome.slot].partition for outcome in outcomes} == set(expected)
    for outcome in outcomes:
        partition = plan.slots[outcome.slot].partition
        marks, accepted = expected[partition]
        rebuilt = read_sorted_file(Path(outcome.folder) / "00000.sst")
        assert outcome.accepted == (accepted if window.count else 0)
        newest_ms = max(record.timestamp_ms for record in records if record.partition == partition)
        assert outcome.newest_ms == newest_ms
        ours = live(rebuilt, window, newest_ms, outcome.accepted)
        theirs = live(marks, window, newest_ms, accepted)
        assert ours == theirs
        assert len(ours) >= 30
