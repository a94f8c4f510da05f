"""The job on a cluster: a master, two workers that know only the archive sent to them, and one of them killed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from dedup_sdk._marks import Marks
from dedup_sdk._store.fingerprint import fingerprint
from dedup_sdk._store.snapshot import verify_snapshot
from dedup_sdk.errors import DedupError
from dedup_sdk.testing._java_home import find_java
from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.publish import Output
from tests.support.held_submission import STEP_S, HeldJob
from tests.support.known_marks import read_sorted_file
from tests.support.outputs import checked, unlisted, written
from tests.support.producing import Outgoing
from tests.support.quick_java import quick_java
from tests.support.spark_cluster import SparkCluster, kill_tree, wait_for
from tests.support.spark_environment import make_environment_archive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

    from dedup_sdk._decision import Mark
    from tests.support.brokers import Broker

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
RECORDS, NAMES, PARTITIONS = 40_000, 24_000, 4
ADDED = 4_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers."""
    try:
        find_java()
    except DedupError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("cluster")
    with SparkCluster(folder) as found:
        yield found
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The archive sent to the workers."""
    made = make_environment_archive(tmp_path_factory.mktemp("archive"))
    yield made
    made.unlink()


@pytest.fixture
def history(make_topic: Callable[..., str], produce: Callable[..., int]) -> str:
    """A topic with repetitions, alike in all partitions."""
    topic = make_topic(PARTITIONS)
    # The client holds 100,000 records.
    for begin in range(0, RECORDS, 20_000):
        produce(topic, [record(number) for number in range(begin, begin + 20_000)])
    return topic


def record(number: int) -> Outgoing:
    """One of the history's records; every ID comes once or twice, in any of the partitions."""
    name = f"order-{number * 7919 % NAMES}".encode()
    return Outgoing(value=b"x", headers={"dedup-id": name}, partition=number % PARTITIONS)


def job_arguments(broker: Broker, topic: str, output: Path) -> list[str]:
    """The job's command line."""
    whole = ["--whole-topic", "--id", "header:dedup-id", "--window", "1d"]
    return ["--bootstrap", broker.bootstrap, "--topic", topic, *whole, "--output", str(output)]


def fingerprints(folder: Path) -> dict[int, str]:
    """One text for the marks of each partition of a snapshot that checks."""
    found = {}
    for each in verify_snapshot(folder).partitions:
        marks: dict[bytes, Mark] = {}
        for file in each.files:
            marks |= read_sorted_file(folder / str(each.partition) / f"{file.name}.sst")
        columns = np.array([(mark.offset, mark.timestamp_ms) for mark in marks.values()], np.int64)
        found[each.partition] = fingerprint([Marks(b"".join(marks), columns[:, 0], columns[:, 1])])
    return found


class Submitted(HeldJob):
    """The job on the cluster, in a process of its own.

    Writing tasks from number ``first`` on wait for the file ``go``.
    """

    def __init__(
        self,
        cluster: SparkCluster,
        archive: Path,
        arguments: list[str],
        folder: Path,
        *conf: str,
        first: int = 2,
    ) -> None:
        settings = [
            "spark.executorEnv.PYTHONPATH=environment",
            # Without the packages that are beside this interpreter.
            f"spark.pyspark.python={Path(sys.executable).resolve()}",
            f"spark.pyspark.driver.python={sys.executable}",
            "spark.executor.memory=512m",
            f"spark.executor.extraJavaOptions={quick_java()}",
            # The killed one's blocks are asked for in vain: three times, but not five seconds apart.
            "spark.shuffle.io.retryWait=200ms",
        ]
        options = ["--master", cluster.url, "--archives", f"{archive}#environment"]
        super().__init__(options, [*settings, *conf], arguments, folder, first=first)

    def wait_until_writing(self) -> None:
        """Return when two tasks are over, and the next two have written and wait."""
        self.wait_until_told({"0", "1", "2", "3"})


def test_a_task_that_ran_twice_leaves_nothing(
    cluster: SparkCluster, archive: Path, broker: Broker, history: str, tmp_path: Path
) -> None:
    """With speculation a copy overtakes a task that has written and hangs.

    One of them counts, and no file of the other stays.
    """
    out = tmp_path / "out"
    eager = [
        "spark.speculation=true", "spark.speculation.interval=100ms", "spark.speculation.multiplier=1.0",
        "spark.speculation.quantile=0.5", "spark.speculation.minTaskRuntime=100ms",
    ]  # fmt: skip
    arguments = job_arguments(broker, history, out / "snapshot")
    with Submitted(cluster, archive, arguments, tmp_path / "job", *eager, first=3) as job:
        report = job.report()
        assert (report["records"], report["marks"]) == (RECORDS, NAMES)
        assert {name.rpartition("-")[0] for name in job.told()} >= {"3-0", "3-1"}
        wait_for(lambda: not cluster.applications, STEP_S)
        assert [path.name for path in out.iterdir()] == ["snapshot"]
        assert verify_snapshot(out / "snapshot").partitions


def test_workers_that_do_not_see_the_output_are_told_before_they_read(
    cluster: SparkCluster, archive: Path, broker: Broker, history: str, tmp_path: Path
) -> None:
    """No writing task begins."""
    arguments = [*job_arguments(broker, history, tmp_path)[:-1], "memory://output/snapshot"]
    with Submitted(cluster, archive, arguments, tmp_path / "job") as job:
        wait_for(lambda: job.process.status() == psutil.STATUS_ZOMBIE or not job.process.is_running(), STEP_S)
        said = (tmp_path / "job" / "stdout").read_text()
        assert "this machine does not see what the driver sees at memory://output/snapshot" in said
        assert job.told() == {}


def test_what_a_killed_driver_left_is_no_snapshot(
    cluster: SparkCluster, archive: Path, broker: Broker, history: str, tmp_path: Path
) -> None:
    """The driver, JVM and all, SIGKILLed while tasks write: no snapshot, and the executors end.

    What they wrote is not in the way of the next run, which leaves it alone: for others that run may still be at work.
    """
    out = tmp_path / "out"
    with Submitted(
        cluster, archive, job_arguments(broker, history, out / "snapshot"), tmp_path / "job"
    ) as job:
        job.wait_until_writing()
        tasks = [psutil.Process(int(name.rpartition("-")[2])) for name in job.told()]
        kill_tree(job.process)
        wait_for(lambda: not cluster.applications, STEP_S)
        job.go_on()
        assert psutil.wait_procs(tasks, timeout=STEP_S)[1] == []
        left = written(str(out / "snapshot"))
        assert left
        assert not (out / "snapshot" / "manifest.json").exists()
        with Output(str(out / "snapshot")):
            pass
        assert written(str(out / "snapshot")) == left


def test_a_killed_executor_changes_nothing(
    cluster: SparkCluster,
    archive: Path,
    broker: Broker,
    history: str,
    *,
    produce: Callable[..., int],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """SIGKILLed while its task has put the files of a layer, with a worker that starts another one.

    The marks of a full local run; no other file, neither then nor after the next run.
    """
    place, full = tmp_path / "snapshot", tmp_path / "full"
    arguments = [*job_arguments(broker, history, place), "--add"]
    backfill(parse_options(arguments, print), on_spark(lambda: spark))
    produce(history, [record(number) for number in range(RECORDS, RECORDS + ADDED)])
    backfill(parse_options(job_arguments(broker, history, full), print), on_spark(lambda: spark))
    with Submitted(cluster, archive, arguments, tmp_path / "job") as job:
        job.wait_until_writing()
        (held,) = [name for name in job.told() if name.startswith("2-0-")]
        executor = cluster.executor_of(int(held.rpartition("-")[2]))
        executor.kill()
        assert psutil.wait_procs([executor], timeout=STEP_S)[1] == []
        job.go_on()
        assert job.report()["records"] == ADDED
        assert len([name for name in job.told() if name.startswith("2-")]) > 1, (
            "the lost task was not tried again"
        )
    assert cluster.alive == 2
    must = checked(full)
    assert {len(entry.layers) for entry in verify_snapshot(place).partitions} == {2}
    assert (checked(place), unlisted(place)) == (must, set())
    assert backfill(parse_options(arguments, print), on_spark(lambda: spark)).records == 0
    assert (checked(place), unlisted(place)) == (must, set())


def test_a_killed_worker_changes_nothing(
    cluster: SparkCluster, archive: Path, broker: Broker, history: str, *, spark: SparkSession, tmp_path: Path
) -> None:
    """Workers with nothing but the archive.

    One SIGKILLed while it writes: the marks of a local run, and no file besides.
    """
    out = tmp_path / "out"
    options = parse_options(job_arguments(broker, history, out / "local"), print)
    backfill(options, on_spark(lambda: spark))
    arguments = job_arguments(broker, history, out / "snapshot")
    with Submitted(cluster, archive, arguments, tmp_path / "job") as job:
        job.wait_until_writing()
        (held,) = [name for name in job.told() if name.startswith("2-0-")]
        kill_tree(cluster.worker_of(int(held.rpartition("-")[2])))
        wait_for(lambda: cluster.alive == 1, STEP_S)
        job.go_on()
        report = job.report()
        told = job.told()
    assert (report["records"], report["marks"]) == (RECORDS, NAMES)
    # Listed before RocksDB opens them, and leaves its log.
    listed = {path.suffix for path in (out / "snapshot").rglob("*") if path.is_file()}
    assert listed == {".sst", ".filter", ".json"}
    assert sorted(path.name for path in out.iterdir()) == ["local", "snapshot"]
    assert fingerprints(out / "snapshot") == fingerprints(out / "local")
    # As another attempt, or in another attempt at its stage, where its input was lost too.
    assert len([name for name in told if name.startswith("2-")]) > 1, "the lost task was not tried again"
    places = [each["code"] for each in told.values()]
    assert all("/work/app-" in place and "/environment/spark_backfill/" in place for place in places)
    assert str(ROOT) not in str(told)
