"""The fold as a function of a DataFrame: sorted files, one shuffle, nothing left by failed attempts."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dedup_sdk._window import Window
from spark_backfill import slots
from spark_backfill.offset_range import OffsetRange
from spark_backfill.ordered_fold import plan_whole
from spark_backfill.publish import Output
from spark_backfill.slots import SlotPlan, placement_column, plan_slots
from tests.support.folding import fold_to_files
from tests.support.known_marks import newest_marks, read_sorted_file
from tests.support.naive_fold import Row, digest_of, naive_fold
from tests.support.outputs import manifest_of, written

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from dedup_sdk._decision import Mark
    from spark_backfill.publish import Target
    from spark_backfill.slot_outcome import SlotOutcome
    from spark_backfill.workers import Task

Frame = "Callable[[Sequence[Row]], DataFrame]"
DAY = Window(days=1)


def rows_of(partitions: Sequence[int], count: int, *, names: int, seed: int = 3) -> list[Row]:
    """A log with repetitions, records without an ID, and timestamps that run back and forth."""
    source = random.Random(seed)
    rows = []
    for partition in partitions:
        for offset in range(count):
            digest = None if source.random() < 0.05 else digest_of(source.randrange(names))
            rows.append(Row(partition, 2 * offset, 1_000 + offset + source.randrange(-50, 50), digest))
    return rows


def offset_range_of(partition: int, high: int, keep_from_ms: int | None = None) -> OffsetRange:
    """A offset range from the beginning of a complete history."""
    return OffsetRange(
        partition=partition, low=0, begin=0, high=high, complete=True, keep_from_ms=keep_from_ms
    )


def marks_of(plan: SlotPlan, outcomes: Iterable[SlotOutcome], target: Target) -> dict[int, dict[bytes, Mark]]:
    """The marks of each partition, read back from its files, whose order is checked."""
    found: dict[int, dict[bytes, Mark]] = {}
    for outcome in outcomes:
        if outcome.file is not None:
            partition = plan.slots[outcome.slot].partition
            content = read_sorted_file(Path(target.url) / str(partition) / f"{outcome.file.name}.sst")
            assert list(content) == sorted(content)
            assert len(content) == outcome.file.marks
            found.setdefault(partition, {}).update(content)
    return found


def test_marks_equal_a_loop_over_the_log(frame: Any, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Split into digest ranges, each partition's files hold the marks of a loop over its records."""
    monkeypatch.setattr(slots, "WORTH_SPLITTING", 100)
    monkeypatch.setattr(slots, "ROWS_PER_SLOT", 500)
    rows = rows_of([0, 2, 3], 800, names=300)
    offset_ranges = [offset_range_of(partition, 1_600) for partition in (0, 2, 3)]
    plan, outcomes = fold_to_files(frame(rows), offset_ranges, DAY, target)
    assert len(plan.slots) == 12
    expected = {
        number: {
            digest: mark._replace(number=0)
            for digest, mark in naive_fold([row for row in rows if row.partition == number], DAY)[0].items()
        }
        for number in (0, 2, 3)
    }
    assert marks_of(plan, outcomes, target) == expected
    assert sum(outcome.tally.records for outcome in outcomes) == len(rows)
    assert sum(outcome.tally.unkeyed for outcome in outcomes) == sum(row.digest is None for row in rows)


def test_digest_ranges_of_a_partition_do_not_overlap(
    frame: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of a partition ascend and keep apart, so that RocksDB takes them in at its lowest level."""
    monkeypatch.setattr(slots, "WORTH_SPLITTING", 10)
    monkeypatch.setattr(slots, "ROWS_PER_SLOT", 100)
    plan, outcomes = fold_to_files(
        frame(rows_of([5], 300, names=250)), [offset_range_of(5, 600)], DAY, target
    )
    files = [outcome.file for outcome in sorted(outcomes, key=lambda each: each.slot) if outcome.file]
    assert [file.name.partition("-")[0] for file in files] == [f"{index:05d}" for index in range(6)]
    assert all(one.largest < other.smallest for one, other in pairwise(files))
    assert len(plan.slots) == 6


def test_an_id_on_most_records_is_a_mark_a_run(
    frame: Any, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records do not meet in one task: each task that reads folds them before they are shuffled."""
    from pyspark.sql import functions as F  # noqa: N812 (as Spark's documentation; Spark is optional)

    from spark_backfill.fold import Packing, pack_rows

    monkeypatch.setattr(slots, "WORTH_SPLITTING", 10)
    monkeypatch.setattr(slots, "ROWS_PER_SLOT", 500)
    hot = [Row(0, offset, 1_000 + offset, digest_of(0)) for offset in range(0, 2_000, 2)]
    rows = sorted([*hot, *(Row(0, offset, 1_000, digest_of(offset)) for offset in range(1, 2_000, 2))])
    offset_ranges = [offset_range_of(0, 2_000)]
    given = frame(rows).coalesce(2)
    packed = pack_rows(given, Packing(plan_slots(offset_ranges, parallelism=2)))
    sizes = packed.select(F.sum(F.length("offsets")), F.sum("records")).collect()[0]
    assert sizes[1] == 2_000
    assert sizes[0] <= 8 * (1_000 + 2)
    plan, outcomes = fold_to_files(given, offset_ranges, DAY, target)
    assert marks_of(plan, outcomes, target)[0][digest_of(0)].offset == 1_998


@pytest.mark.slow
@pytest.mark.parametrize("window", [Window(count=40), Window(count=40, milliseconds=120)])
def test_a_count_window_is_folded_in_order(frame: Any, target: Target, window: Window) -> None:
    """Shuffled rows of several partitions give the numbers that the rule gives in offset order."""
    rows = rows_of([0, 1, 7], 300, names=120)
    random.Random(1).shuffle(rows)
    offset_ranges = [offset_range_of(partition, 600) for partition in (0, 1, 7)]
    plan, outcomes = fold_to_files(frame(rows), offset_ranges, window, target)
    found = marks_of(plan, outcomes, target)
    for outcome in outcomes:
        number = plan.slots[outcome.slot].partition
        marks, accepted = naive_fold([row for row in rows if row.partition == number], window)
        assert outcome.accepted == accepted
        assert found[number] == {d: m for d, m in marks.items() if accepted - m.number < 40}


def test_what_is_older_than_the_window_is_left_out(frame: Any, target: Target) -> None:
    """A mark before its partition's horizon is not written; the horizon of another partition does not matter."""
    rows = [Row(0, 0, 10, digest_of("a")), Row(0, 1, 90, digest_of("b")), Row(1, 0, 10, digest_of("a"))]
    plan, outcomes = fold_to_files(
        frame(rows), [offset_range_of(0, 2, 50), offset_range_of(1, 1)], DAY, target
    )
    found = marks_of(plan, outcomes, target)
    assert set(found[0]) == {digest_of("b")}
    assert set(found[1]) == {digest_of("a")}
    assert {plan.slots[each.slot].partition: each.forgotten_ms for each in outcomes} == {0: 10, 1: None}


def test_records_without_ids_leave_counts_and_no_file(frame: Any, target: Target) -> None:
    """A partition of unkeyed records is counted, dated, and has no file."""
    _, (outcome,) = fold_to_files(
        frame([Row(0, 4, 7, None), Row(0, 3, 9, None)]), [offset_range_of(0, 5)], DAY, target
    )
    assert outcome.file is None
    assert (outcome.tally.records, outcome.tally.unkeyed, outcome.tally.newest_ms) == (2, 2, 9)
    assert (outcome.tally.first_offset, outcome.tally.first_ms) == (3, 9)


def test_every_slot_gets_a_task_of_its_own(spark: SparkSession) -> None:
    """Spark's hash sends the placement of slot n to task n, for any number of slots."""
    from pyspark.sql import functions as F  # noqa: N812 (as Spark's documentation; Spark is optional)

    for count in (1, 2, 7, 64):
        numbered = spark.range(count).withColumn("slot", F.col("id").cast("int"))
        placed = numbered.repartition(count, placement_column(numbered["slot"], count))
        rows = placed.select("slot", F.spark_partition_id().alias("task")).collect()
        assert {row["slot"]: row["task"] for row in rows} == {number: number for number in range(count)}


def test_thirty_thousand_slots_are_planned_at_once(spark: SparkSession) -> None:
    """A list of their places would be a call of the JVM for each, and take half a minute."""
    count = 30_000
    rows = spark.range(count)
    rows.repartition(2, placement_column(rows["id"], 2))
    begun = time.monotonic()
    rows.repartition(count, placement_column(rows["id"], count))
    assert time.monotonic() - begun < 2


def test_slots_follow_the_number_of_offsets() -> None:
    """Big partitions are split, small and empty ones are not; a fold in offset order splits nothing."""
    offset_ranges = [offset_range_of(0, 9_000_000), offset_range_of(1, 10), offset_range_of(2, 0)]
    assert [slot.ranges for slot in plan_slots(offset_ranges, parallelism=2).slots] == [5] * 5 + [1]
    assert len(plan_whole(offset_ranges).slots) == 2
    assert plan_slots([offset_range_of(2, 0)], parallelism=2).slots == ()


class FailsFirst:
    """Lets the first attempt of every task fail, after it wrote everything."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run the task, and fail unless it is tried again."""
        from pyspark import TaskContext

        outcomes = list(self._task(batches))
        context = TaskContext.get()
        if context is None or context.attemptNumber() == 0:
            raise RuntimeError("the disk of this worker is gone")
        yield from outcomes


class AlwaysFails:
    """Lets every attempt fail, after it wrote everything."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run the task, and fail."""
        list(self._task(batches))
        raise RuntimeError("the disk of every worker is gone")


@pytest.mark.slow
def test_a_failed_attempt_leaves_nothing(frame: Any, tmp_path: Path) -> None:
    """Files of the first attempt are there, are not listed, and are gone when the run is over."""
    rows = rows_of([0], 60, names=40)
    target = tmp_path / "snapshot"
    with Output(str(target)) as output:
        plan, outcomes = fold_to_files(
            frame(rows), [offset_range_of(0, 120)], DAY, output.target, around=FailsFirst
        )
        # Of two attempts, and the run's marker.
        assert len(written(str(target))) == 2 * 2 + 1
        (file,) = [outcome.file for outcome in outcomes if outcome.file is not None]
        output.publish(manifest_of([file]), {})
    assert written(str(target)) == [f"0/{file.name}.filter", f"0/{file.name}.sst", "manifest.json"]
    assert list(tmp_path.iterdir()) == [target]
    found = marks_of(plan, outcomes, output.target)
    assert set(found[0]) == {row.digest for row in rows if row.digest}


def test_a_job_that_fails_leaves_nothing(frame: Any, tmp_path: Path) -> None:
    """When no attempt succeeds the error reaches the driver, and neither a snapshot nor a file stays."""
    from spark_backfill.errors import one_line

    target = tmp_path / "snapshot"
    with (
        pytest.raises(Exception, match="every worker") as caught,
        Output(str(target)) as output,
    ):
        fold_to_files(
            frame(rows_of([0], 20, names=9)),
            [offset_range_of(0, 40)],
            DAY,
            output.target,
            around=AlwaysFails,
        )
    assert one_line(caught.value) == "RuntimeError: the disk of every worker is gone"
    assert list(tmp_path.iterdir()) == []


def test_marks_of_naive_and_columns_are_comparable() -> None:
    """The comparison itself tells marks apart by offset, timestamp and number."""
    marks, _ = naive_fold([Row(0, 1, 5, digest_of("a")), Row(0, 2, 6, digest_of("a"))], Window(count=2))
    assert [tuple(mark) for mark in marks.values()] == [(2, 6, 1)]
    from dedup_sdk._marks import NO_MARKS

    assert newest_marks([NO_MARKS]) == {}
