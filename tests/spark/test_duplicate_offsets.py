"""An offset that comes twice: the same record again is one sighting, another one ends the run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dedup_sdk._marks import Marks
from dedup_sdk._record import Record
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk._window import Window
from spark_backfill import parquet_files
from spark_backfill.backfill import backfill
from spark_backfill.duplicate_offsets import check_one_record, watch_bits, watched_marks
from spark_backfill.errors import BackfillError, one_line
from spark_backfill.offset_range import OffsetRange
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.runs import Rows, RunPacker
from spark_backfill.slots import plan_slots
from tests.support.archives import write_parquet
from tests.support.folding import fold_to_files
from tests.support.naive_fold import Row, digest_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from dedup_sdk._store.manifest import PartitionManifest
    from spark_backfill.publish import Target
    from spark_backfill.report import Report

OFFSET_RANGES = [OffsetRange(partition=0, low=0, begin=0, high=9, complete=True)]
BASE_MS = 1_700_000_000_000
SAYS = "offset 5 of partition 0 is there twice with different contents"


def marks(*rows: tuple[str, int, int]) -> Marks:
    """Names, offsets and timestamps as marks."""
    return Marks(
        b"".join(digest_of(name) for name, _, _ in rows),
        np.array([offset for _, offset, _ in rows], np.int64),
        np.array([timestamp for _, _, timestamp in rows], np.int64),
    )


def test_the_same_record_may_come_again() -> None:
    """Sinks write at least once: in any order, also at another time."""
    check_one_record(0, marks())
    check_one_record(0, marks(("a", 5, 1), ("b", 6, 1)))
    check_one_record(0, marks(("a", 5, 1), ("b", 6, 1), ("a", 5, 2), ("a", 4, 1)))


def test_another_record_may_not() -> None:
    """Wherever the two stand, the offset and the partition are named."""
    with pytest.raises(BackfillError, match=SAYS):
        check_one_record(0, marks(("a", 5, 1), ("b", 6, 1), ("a", 5, 1), ("c", 5, 1)))


def test_a_run_is_looked_through() -> None:
    """Also where the two came in different batches, and beside one without an ID."""
    packer = RunPacker(
        plan_slots([*OFFSET_RANGES, replace(OFFSET_RANGES[0], partition=1)], parallelism=1),
    )
    one, other = marks(("a", 5, 1), ("b", 6, 1)), marks(("c", 5, 1))
    list(packer.add(0, Rows(one.offsets, one.timestamps, one.digests)))
    list(packer.add(0, Rows(one.offsets, one.timestamps, digest_of("b"), np.array([False, True]))))
    list(packer.add(1, Rows(other.offsets, other.timestamps, other.digests)))
    list(packer.add(0, Rows(other.offsets, other.timestamps, other.digests)))
    with pytest.raises(BackfillError, match=SAYS):
        list(packer.finish())


def fold(rows: DataFrame, target: Target, *, ordered: bool) -> list[int]:
    """The newest timestamps of the rows of each slot."""
    window = Window(count=9) if ordered else Window(days=30)
    return [each.tally.newest_ms for each in fold_to_files(rows, OFFSET_RANGES, window, target)[1]]


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("ordered", [True, False])
def test_spark_finds_it(frame: Callable[..., DataFrame], target: Target, *, ordered: bool) -> None:
    """In windows of either kind.

    The same record again at another time is none, by count of two times the earlier one is the record's.
    """
    rows = [Row(0, at, at, digest_of(at)) for at in range(9)]
    again = Row(0, 5, 50, digest_of(5))
    assert max(fold(frame([again, *rows]).coalesce(1), target, ordered=ordered)) == (8 if ordered else 50)
    without_time = Row(0, 8, -1, digest_of(8))
    assert max(fold(frame([without_time, *rows]).coalesce(1), target, ordered=ordered)) == 8
    with pytest.raises(Exception, match=SAYS) as caught:
        fold(frame([*rows, Row(0, 5, 5, digest_of("x"))]).coalesce(1), target, ordered=ordered)
    assert one_line(caught.value).startswith(SAYS)


@pytest.mark.slow
@pytest.mark.spark
def test_it_is_found_where_a_batch_ends_between_the_two(
    spark: SparkSession, frame: Callable[..., DataFrame], target: Target
) -> None:
    """By offset, each batch a row: the same one stays once, with its ID where one of the two has none.

    Another one ends the run.
    """
    rows = [Row(0, at, at, digest_of(at)) for at in range(9)]
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    usual = spark.conf.get(setting)
    spark.conf.set(setting, "1")
    try:
        repeated = frame([Row(0, 8, 7, None), *rows, rows[3]]).coalesce(1)
        _, (written,) = fold_to_files(repeated, OFFSET_RANGES, Window(count=9), target)
        assert (written.tally.records, written.tally.unkeyed, written.tally.newest_ms) == (9, 0, 8)
        with pytest.raises(Exception, match=SAYS):
            fold(frame([*rows, Row(0, 5, 5, digest_of("x"))]).coalesce(1), target, ordered=True)
    finally:
        spark.conf.set(setting, str(usual))


def test_tasks_watch_the_same_offsets() -> None:
    """All where they are few, else some ten thousands in no pattern.

    Two tasks that saw another record at one of them are told.
    """
    assert [watch_bits(offsets) for offsets in (0, 1, 65_536, 65_537, 10**9)] == [0, 0, 0, 1, 14]
    offsets = np.arange(0, 2**21, 2, dtype=np.int64)
    some = Marks(bytes(16 * len(offsets)), offsets, offsets)
    assert watched_marks(some, 0) is some
    assert 20_000 < watched_marks(some, watch_bits(2**21)).count < 50_000


def archive_of(folder: Path, *files: dict[int, str], late_ms: int = 0) -> Path:
    """An archive whose files have keys at offsets, of one minute each; those of later files come ``late_ms`` later."""
    for number, keys in enumerate(files):
        times = {offset: BASE_MS + offset * 60_000 + number * late_ms for offset in keys}
        write_parquet(
            folder / str(number),
            [Record("t", 0, at, times[at], key.encode()) for at, key in keys.items()],
            files=1,
        )
        (folder / str(number) / "part-0.parquet").rename(folder / f"{number}.parquet")
        (folder / str(number)).rmdir()
    return folder


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the job on an archive of which each task reads a file, by Arrow or by Spark's reader.

    Gives the manifest and the report.
    """
    monkeypatch.setattr(parquet_files, "LEAST_ROWS", 1)

    def finished(archive: Path, *, by_arrow: bool, window: str = "1d") -> tuple[PartitionManifest, Report]:
        usual = [
            "--topic",
            "t",
            "--id",
            "key",
            "--window",
            window,
            "--whole-topic",
            "--output",
            str(tmp_path / "s"),
        ]
        where = ["--cluster-id", "c", "--topic-id", "t", "--archive-isolation", "read_committed"]
        reader = [] if by_arrow else ["--read-option", "recursiveFileLookup=true"]
        given = [*usual, *where, "--source", str(archive), *reader, "--overwrite"]
        report = backfill(parse_options(given, print), on_spark(lambda: spark))
        (entry,) = verify_snapshot(tmp_path / "s").partitions
        return entry, report

    return finished


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("by_arrow", [True, False])
@pytest.mark.parametrize("step", [1, 3])
def test_two_logs_are_told_apart_that_no_task_sees_together(
    run: Callable[..., Any], tmp_path: Path, step: int, *, by_arrow: bool
) -> None:
    """Where there are more rows than offsets, and where holes leave room for the records of both."""
    archive = archive_of(
        tmp_path / "a", *({at: f"{log}{at}" for at in range(0, 60 * step, step)} for log in "ab")
    )
    with pytest.raises(Exception, match="is there twice with different contents") as caught:
        run(archive, by_arrow=by_arrow)
    assert "\n" not in one_line(caught.value)
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("by_arrow", [True, False])
@pytest.mark.parametrize("window", ["1d", "100n"])
def test_the_newest_time_is_that_of_the_twin_that_stays(
    run: Callable[..., Any], tmp_path: Path, window: str, *, by_arrow: bool
) -> None:
    """Though no task sees the other one: a consumer that lived through the log saw the record once, at its own time."""
    keys = {at: str(at) for at in range(20)}
    entry, report = run(archive_of(tmp_path / "a", keys, keys, late_ms=500), by_arrow=by_arrow, window=window)
    assert (entry.known.newest_ms, entry.marks) == (BASE_MS + 19 * 60_000, 20)
    assert report.records == 20
