"""A Spark standalone cluster on this machine: a master and workers, each a JVM of its own from pyspark's jars."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from typing import TYPE_CHECKING, Any, Self

import psutil

from dedup_sdk.testing import free_port
from dedup_sdk.testing._java_home import spark_environment
from spark_backfill.launch import spark_home
from tests.support.quick_java import quick_java

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START_S = 180.0
_LOOK_S = 0.1


class SparkCluster:
    """A master and ``workers`` with one core each; a context manager.

    The master is on 127.0.0.1, worker n on 127.0.0.n, because Spark makes speculative copies on another host only.
    Workers run in folders below ``folder``, with an environment of Java and Spark alone: neither the checkout nor
    this interpreter's packages can be found from it.
    """

    def __init__(self, folder: Path, *, workers: int = 2, worker_mib: int = 700) -> None:
        self._folder = folder
        self._count = workers
        self._worker_mib = worker_mib
        self._running: list[psutil.Process] = []
        self._ports = free_port(), free_port()
        self.workers: list[psutil.Process] = []

    @property
    def url(self) -> str:
        """For ``--master``."""
        return f"spark://127.0.0.1:{self._ports[0]}"

    def __enter__(self) -> Self:
        master = ["--host", "127.0.0.1", "--port", str(self._ports[0]), "--webui-port", str(self._ports[1])]
        self._start("master", "org.apache.spark.deploy.master.Master", *master)
        wait_for(self._answers, START_S)
        for number in range(1, self._count + 1):
            host, name = f"127.0.0.{number}", f"worker-{number}"
            own = ["--host", host, "--cores", "1", "--memory", f"{self._worker_mib}m", "--webui-port", "0"]
            work = ["--work-dir", str(self._folder / name / "work")]
            main = "org.apache.spark.deploy.worker.Worker"
            self.workers.append(self._start(name, main, *own, *work, self.url, host=host))
        wait_for(lambda: self.alive == self._count, START_S)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._running:
            kill_tree(each)

    @property
    def alive(self) -> int:
        """How many workers the master believes in."""
        return sum(worker["state"] == "ALIVE" for worker in self._status()["workers"])

    @property
    def applications(self) -> int:
        """How many applications the master has running."""
        return len(self._status()["activeapps"])

    def worker_of(self, pid: int) -> psutil.Process:
        """The worker that a process descends from."""
        above = {each.pid for each in psutil.Process(pid).parents()}
        (worker,) = [each for each in self.workers if each.pid in above]
        return worker

    def executor_of(self, pid: int) -> psutil.Process:
        """The executor's Java that a process descends from."""
        main = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
        (executor,) = [each for each in psutil.Process(pid).parents() if main in each.cmdline()]
        return executor

    def _start(self, name: str, main: str, *arguments: str, host: str = "127.0.0.1") -> psutil.Process:
        place = self._folder / name
        place.mkdir(parents=True)
        java = spark_environment()["JAVA_HOME"]
        environment = {
            "HOME": str(place), "JAVA_HOME": java, "PATH": "/usr/bin:/bin", "SPARK_HOME": str(spark_home()),
            "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": host, "SPARK_LOCAL_DIRS": str(place / "local"),
            "SPARK_NO_DAEMONIZE": "1", "SPARK_DAEMON_JAVA_OPTS": quick_java(),
        }  # fmt: skip
        with (place / "log").open("wb") as log:
            started = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), main, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=place, env=environment, start_new_session=True,
            )  # fmt: skip
        process = psutil.Process(started.pid)
        self._running.append(process)
        return process

    def _answers(self) -> bool:
        try:
            return bool(self._status())
        except (OSError, json.JSONDecodeError):
            # A master that begins answers before it has the page.
            return False

    def _status(self) -> dict[str, Any]:
        page = f"http://127.0.0.1:{self._ports[1]}/json/"
        with urllib.request.urlopen(page, timeout=START_S) as answer:
            content: dict[str, Any] = json.load(answer)
        return content


def kill_tree(process: psutil.Process) -> None:
    """End a process and all that descend from it with SIGKILL, the ones above first so that they start no others."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for each in family:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(family, timeout=30)


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; one that is over and that nobody has asked for does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_for(happened: Callable[[], bool], timeout_s: float) -> None:
    """Return when it happened; an `AssertionError` when it has not within the time."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(_LOOK_S)
