"""How far a run is: from Spark's stages to a line, and when the line is written."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from spark_backfill.console import LINE_EVERY_S, NowAndThen
from spark_backfill.progress import Meter, Progress, StageCount
from spark_backfill.session import describe_jobs, job_group
from spark_backfill.stage_watch import watched_stages

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import SparkSession


def seen(meter: Meter, *active: StageCount, at_s: float) -> Progress:
    """The meter's progress for the active stages."""
    found = meter.look(active, at_s)
    assert found is not None
    return found


def test_reading_and_writing_are_told_apart() -> None:
    """The last stage of a job writes, those before it read; stages that are lost are read again."""
    meter = Meter(1_000)
    assert meter.look([], 1) is None
    assert seen(meter, StageCount(1, 8, 2, writes=False), at_s=4).step == "reading"
    assert seen(meter, StageCount(3, 6, 0, writes=True), at_s=6).step == "writing"
    # The executor with the rows read is lost: they are read again.
    assert seen(meter, StageCount(1, 8, 7, writes=False), at_s=8).step == "reading"


def test_rate_and_time_left_follow_from_the_tasks() -> None:
    """A quarter of the tasks in ten seconds: a quarter of the offsets, their rate, and three times as long to go."""
    meter = Meter(4_000_000)
    meter.look([StageCount(1, 8, 0, writes=False)], 100)
    progress = seen(meter, StageCount(1, 8, 2, writes=False), at_s=110)
    assert (progress.read, progress.per_second, progress.seconds_left) == (1_000_000, 100_000, 30)
    assert str(progress) == (
        "reading: 2 of 8 tasks, about 1,000,000 of 4,000,000 offsets, 100,000/s, 30 s left to read"
    )
    meter.look([StageCount(2, 4, 0, writes=True)], 150)
    writing = seen(meter, StageCount(2, 4, 3, writes=True), at_s=159)
    assert str(writing) == "writing: 3 of 4 tasks, 3 s left to write"
    assert Progress.from_json(writing.to_json()) == writing


def test_records_tell_of_a_task_that_is_at_work() -> None:
    """Where they are more than the tasks that are over stand for; never more than all, and not of what is written."""
    meter, half = Meter(1_000), StageCount(1, 2, 1, writes=False)
    meter.look([half], 0)
    told = [meter.look([half], 10, records=records) for records in (0, 499, 750, 1_001)]
    assert [each and (each.read, each.per_second, each.seconds_left) for each in told] == [
        (500, 50, 10),
        (500, 50, 10),
        (750, 75, pytest.approx(10 / 3)),
        (1_000, 100, 0),
    ]
    writing = meter.look([StageCount(2, 4, 1, writes=True)], 20, records=1_000)
    assert writing is not None
    assert (writing.done, writing.seconds_left) == (1, 0)
    assert Meter(0).look([half], 0, records=1) is not None


def test_nothing_is_promised_too_early() -> None:
    """Before a fiftieth of the step is over there is no time left to read of.

    Without a task that is over there is no rate.
    """
    meter = Meter(1_000_000)
    early = seen(meter, StageCount(1, 1_000, 0, writes=False), at_s=5)
    assert str(early) == "reading: 0 of 1,000 tasks"
    assert seen(meter, StageCount(1, 1_000, 19, writes=False), at_s=10).seconds_left is None
    assert seen(meter, StageCount(1, 1_000, 20, writes=False), at_s=10).seconds_left == pytest.approx(245)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min"), (187, "3 min 7 s"), (18_601, "5 h 10 min")],
)
def test_times_are_readable(seconds: float, text: str) -> None:
    """In the two largest units that they have."""
    writing = Progress(
        step="writing", tasks=4, done=1, offsets=9, read=9, seconds=1, per_second=0, seconds_left=seconds
    )
    assert str(writing) == f"writing: 1 of 4 tasks, {text} left to write"


def test_a_log_gets_a_line_now_and_then() -> None:
    """The first line comes after half a minute, the next half a minute later, however often progress is told."""
    lines: list[tuple[float, str]] = []
    now = 1_000.0
    plain = NowAndThen(lambda line: lines.append((now, line)), lambda: now)
    for _ in range(150):
        now += 0.5
        plain(Progress(
            step="writing", tasks=4, done=1, offsets=9, read=9, seconds=1, per_second=0, seconds_left=None
        ))  # fmt: skip
    assert lines == [
        (1_000 + LINE_EVERY_S, "writing: 1 of 4 tasks"),
        (1_000 + 2 * LINE_EVERY_S, "writing: 1 of 4 tasks"),
    ]


def when_told(told: Path, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """A task that ends when a file is there; those with rows of the first half only end at once."""
    for batch in batches:
        until = time.monotonic() + 60
        while max(batch["id"].to_pylist()) >= 500 and not told.exists() and time.monotonic() < until:
            time.sleep(0.05)
        yield batch


@pytest.mark.timeout(420)
def test_a_real_run_tells_how_far_it_is(spark: SparkSession, tmp_path: Path) -> None:
    """From Spark's own counts.

    Reading comes first, tasks that are over grow, writing is seen, and nothing is told afterwards.
    """
    told: list[Progress] = []

    def tell(progress: Progress) -> None:
        told.append(progress)
        (tmp_path / progress.step).touch()

    rows = spark.range(0, 1_000, 1, 4)
    describe_jobs(spark, "watched", "as in the test")
    with watched_stages(spark, job_group("watched"), 1_000, tell):
        read = rows.mapInArrow(partial(when_told, tmp_path / "reading"), "id long").repartition(3)
        assert len(read.mapInArrow(partial(when_told, tmp_path / "writing"), "id long").collect()) == 1_000
    count = len(told)
    assert list(dict.fromkeys(each.step for each in told)) == ["reading", "writing"]
    for step, tasks in (("reading", 4), ("writing", 3)):
        done = [each.done for each in told if each.step == step]
        assert {each.tasks for each in told if each.step == step} == {tasks}
        assert done == sorted(done)
        assert done[-1] <= tasks
    rows.count()
    assert len(told) == count


def test_a_spark_that_does_not_answer_costs_nothing() -> None:
    """Where there is no status to be had the run goes on, and nothing is told."""
    told: list[Progress] = []
    silent: Any = object()
    with watched_stages(silent, "none", 10, told.append):
        for each in threading.enumerate():
            if each.name == "dedup-progress":
                each.join(60)
                assert not each.is_alive()
    assert told == []
