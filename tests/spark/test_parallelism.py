"""For how many tasks stages are cut: for those that the user names, else for the cluster as it is when one begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark import SparkContext

from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from spark_backfill.archive_options import ArchiveOptions
from spark_backfill.backfill import backfill
from spark_backfill.fold import Packing, pack_rows
from spark_backfill.offset_range import OffsetRange
from spark_backfill.on_spark import OnSpark, on_spark
from spark_backfill.options import parse_options
from spark_backfill.parquet_files import plain_layout
from spark_backfill.parquet_reader import ParquetFiles
from spark_backfill.slots import SlotPlan, plan_slots
from spark_backfill.source import read_all_blocks
from tests.support.archives import write_json_lines, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tests.support.naive_fold import Row

pytestmark = pytest.mark.spark
BASE_MS = 1_700_000_000_000
ARGUMENTS = [
    "--topic", "orders", "--id", "key", "--window", "1d", "--whole-topic", "--cluster-id", "c", "--topic-id", "t",
    "--archive-isolation", "read_committed",
]  # fmt: skip
JSON = [
    "--format",
    "json",
    "--columns",
    "timestamp=ts:ms,key=key:base64,value=value:base64,headers=headers:base64",
]


class Cluster:
    """How many cores Spark says that it has."""

    def __init__(self) -> None:
        self.cores = 2


@pytest.fixture
def cluster(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A cluster whose executors come and go."""
    assert spark.sparkContext.defaultParallelism == 2
    there = Cluster()
    monkeypatch.setattr(SparkContext, "defaultParallelism", property(lambda _: there.cores))
    return there


def records(count: int) -> list[Record]:
    """One record a second, each with an ID of its own."""
    return [Record("orders", 0, at, BASE_MS + at * 1000, key=b"%d" % at) for at in range(count)]


def test_the_cluster_is_asked_each_time(spark: SparkSession, cluster: Cluster) -> None:
    """Executors that came meanwhile count, and those of a wanted number never do."""
    workers = OnSpark(lambda: spark, "orders")
    assert workers.tasks_at_a_time() == 2
    cluster.cores = 9
    wanted = OnSpark(lambda: spark, "orders", 5)
    assert (workers.tasks_at_a_time(), wanted.tasks_at_a_time()) == (9, 5)


def test_an_archive_is_cut_again_for_each_stage(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survey starts on a small cluster, which has grown by the time that all columns are read."""
    monkeypatch.setattr("spark_backfill.parquet_files.LEAST_ROWS", 1)
    folder = write_parquet(tmp_path / "archive", records(40), group_rows=1)
    options = ArchiveOptions(places=(str(folder),), format="parquet", isolation="read_committed")
    layout = plain_layout(options, ("key",))
    assert layout is not None
    files, wanted = ParquetFiles(spark, "orders", layout), ParquetFiles(spark, "orders", layout, 3)
    before = files.coordinates().frame.rdd.getNumPartitions()
    cluster.cores = 5
    after = files.records({0: (0, 40)}).frame.rdd.getNumPartitions()
    assert (before, after) == (4, 10)
    assert wanted.coordinates().frame.rdd.getNumPartitions() == 6


def test_the_topic_is_cut_for_the_wanted_tasks(spark: SparkSession, cluster: Cluster) -> None:
    """Two ranges a task, of a log that is large enough."""
    ranges = [OffsetRange(partition=0, low=0, begin=0, high=7_000_000, complete=True)]

    def tasks(*more: str) -> int:
        options = parse_options(
            ["--bootstrap", "localhost:1", *ARGUMENTS[:7], "--output", "out", *more], pytest.fail
        )
        packing = Packing(plan_slots(ranges, parallelism=1))
        workers = OnSpark(lambda: spark, "orders", options.parallelism)
        (source,) = read_all_blocks(workers, options, ranges, packing, None)
        return workers.frame(source).rdd.getNumPartitions()

    cluster.cores = 3
    assert (tasks(), tasks("--parallelism", "7")) == (6, 14)


def test_rows_that_are_sorted_are_cut_for_the_wanted_tasks(
    cluster: Cluster, frame: Callable[[list[Row]], DataFrame]
) -> None:
    """Four parts a task, where an archive has records twice."""
    cluster.cores = 3
    rows = frame([])
    for wanted, parts in ((None, 12), (5, 20)):
        packing = Packing(SlotPlan(()), has_duplicates=True, parallelism=wanted)
        assert pack_rows(rows, packing).rdd.getNumPartitions() == parts


@pytest.mark.slow
def test_with_a_number_the_cluster_is_not_asked(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By none of the readers: plain Parquet, records that come twice, a base; and slots are as many."""

    def ask(_: SparkContext) -> int:
        raise AssertionError("asked")

    monkeypatch.setattr(SparkContext, "defaultParallelism", property(ask))
    monkeypatch.setattr("spark_backfill.slots.WORTH_SPLITTING", 0)
    all_records = records(60)
    plain = write_parquet(tmp_path / "plain", all_records[:40])
    twice = write_json_lines(tmp_path / "twice.jsonl", [*all_records, *all_records[:5]])
    folder = tmp_path / "snapshot"

    def run(*more: str) -> int:
        given = [*ARGUMENTS, *more, "--output", str(folder), "--overwrite", "--parallelism", "6"]
        backfill(parse_options(given, pytest.fail), on_spark(lambda: spark))
        (entry,) = verify_snapshot(folder).partitions
        assert len(entry.files) == 6
        return entry.marks

    assert run("--source", str(plain)) == 40
    assert run("--source", str(twice), *JSON, "--base", str(folder)) == 60
    assert run("--source", str(twice), *JSON) == 60
