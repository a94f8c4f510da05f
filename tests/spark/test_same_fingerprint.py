"""Lived = replayed = rebuilt = layered, whatever is killed: one fingerprint of one odd log, on Kafka and Spark."""

from __future__ import annotations

import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

import pytest

from dedup_sdk._cli.app import run as dedup
from spark_backfill import slots
from spark_backfill.backfill import backfill
from spark_backfill.in_process import InProcess
from spark_backfill.on_spark import OnSpark, on_spark
from spark_backfill.options import parse_options
from spark_backfill.publish import IfExists, Output
from tests.support.dying_tasks import ENDS, DyingTask, ends_in
from tests.support.held_submission import HeldJob
from tests.support.odd_topic import PARTITIONS, OddTopic
from tests.support.outputs import checked, unlisted
from tests.support.spark_cluster import kill_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from spark_backfill.report import Report
    from spark_backfill.workers import Task
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def run(
    spark: SparkSession,
    topic: OddTopic,
    output: Path,
    *more: str,
    around: Callable[[Task], Task] = lambda task: task,
) -> Report:
    """Run the job for the group of the topic."""
    options = parse_options([*topic.given, "--output", str(output), *more], print)
    return backfill(options, on_spark(lambda: spark), around=around)


@pytest.fixture(scope="module")
def odd(broker: Broker, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OddTopic]:
    """A topic that its group lived through, and two snapshots in its folder.

    ``layered``: one layer a burst. ``early``: the same before the last two bursts, cut in the middle of one where the
    group had completed records beyond its commit.
    """
    folder = tmp_path_factory.mktemp("odd")
    with OddTopic(broker, f"odd-{uuid.uuid4().hex[:8]}", folder, seed=20) as topic:
        add = partial(run, spark, topic, folder / "layered", "--add")
        topic.burst(commits=True)
        topic.live()
        add()
        topic.burst(commits=True)
        topic.live_in_part()
        add()
        shutil.copytree(folder / "layered", folder / "early")
        for commits in (False, True):
            topic.burst(commits=commits)
            topic.live()
            add()
        yield topic


def test_lived_replayed_rebuilt_layered_and_installed_are_equal(
    odd: OddTopic, spark: SparkSession, tmp_path: Path
) -> None:
    """With Spark and without; and equal to a plain loop over what was sent: the last sighting of each ID."""
    must = odd.must_know()
    assert sorted(must) == list(range(PARTITIONS))
    assert odd.letters_sent_back > 20
    full, layered = tmp_path / "full", odd.folder / "layered"
    report = run(spark, odd, full)
    assert not report.skipped
    lived, replayed, installed = (
        odd.snapshot_of_life(),
        odd.snapshot_of_replay(),
        odd.snapshot_of_installed(layered),
    )
    assert len(lived.partitions) == len(replayed.partitions) == len(installed.partitions) == PARTITIONS
    in_process, added = tmp_path / "in process", tmp_path / "added"
    shutil.copytree(odd.folder / "early", added)
    for output, more in ((in_process, ()), (added, ("--add",))):
        backfill(parse_options([*odd.given, "--output", str(output), *more], print), lambda _: InProcess())
    places = {name: odd.folder / name for name in ("lived", "replayed", "installed", "layered")}
    places |= {"rebuilt": full, "in process": in_process, "added": added}
    assert {name: checked(place) for name, place in places.items()} == dict.fromkeys(places, must)
    for place in places.values():
        assert dedup(["snapshots", "diff", str(place), str(full)]) == 0


@pytest.mark.parametrize("kind", ["full", "layer"])
def test_killed_and_failed_tasks_change_nothing(
    odd: OddTopic, spark: SparkSession, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while they read, between their two files, and after both; and failed: at random attempts.

    The fingerprint of the run is the same, and no file of a lost attempt is listed or left.
    """
    monkeypatch.setattr(slots, "WORTH_SPLITTING", 20)
    monkeypatch.setattr(slots, "ROWS_PER_SLOT", 400)
    place, told = tmp_path / "snapshot", tmp_path / "told"
    told.mkdir()
    if kind == "layer":
        shutil.copytree(odd.folder / "early", place)
        before = {path: path.read_bytes() for path in place.rglob("*.sst")}
    else:
        before = {}
    run(spark, odd, place, "--add", around=lambda task: DyingTask(task, told, seed=92))
    assert ends_in(told) == {*ENDS}
    assert checked(place) == odd.must_know()
    assert unlisted(place) == set()
    assert {path: path.read_bytes() for path in before} == before


def test_a_killed_driver_that_is_started_again(
    odd: OddTopic, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver, JVM and workers SIGKILLed when files are put; then the same command once more.

    Until that has ended, the older snapshot is there and whole. Then the fingerprint is that of an undisturbed run;
    when the sign of the killed run is removed, the next run removes its files.
    """
    place = tmp_path / "snapshot"
    shutil.copytree(odd.folder / "early", place)
    older, newer = checked(place), odd.must_know()
    command = [*odd.given, "--output", str(place), "--add"]
    settings = ["spark.ui.enabled=false"]

    @contextmanager
    def looking(_workers: OnSpark, _rows: int) -> Iterator[None]:
        yield
        assert checked(place) == older
        assert len(unlisted(place) - left) == 2 * PARTITIONS + 1, "all files of this run, and its sign"

    with Readers(place) as readers:
        with HeldJob(["--master", "local[2]"], settings, command, tmp_path / "job", first=0) as job:
            job.wait_until_told({"0", "1"})
            kill_tree(job.process)
        monkeypatch.setattr(OnSpark, "watched", looking)
        left = unlisted(place)
        assert len(left) == 5, "two files of two tasks each, and the sign of the run"
        assert checked(place) == older
        backfill(parse_options(command, print), on_spark(lambda: spark))
    assert checked(place) == newer
    assert readers.found == [older, newer]
    assert unlisted(place) == left
    (sign,) = place.glob(".run-*")
    sign.unlink()
    with Output(str(place), IfExists.REPLACED) as output:
        assert unlisted(place) == {f".run-{output.target.run}"}
    assert checked(place) == newer


class Readers:
    """Somebody who reads the whole snapshot again and again; ``found`` has what there was, each once, in order."""

    def __init__(self, place: Path) -> None:
        self.found: list[dict[int, tuple[int, str]]] = []
        self._place, self._over, self._pool = place, threading.Event(), ThreadPoolExecutor(1)
        self._reads = self._pool.submit(self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()
        self._reads.result()

    def _read(self) -> None:
        last = False
        while not last:
            last = self._over.is_set()
            now = checked(self._place)
            if now not in self.found[-1:]:
                self.found.append(now)
            self._over.wait(0.2)
