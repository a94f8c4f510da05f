"""Runs that are asked to end, or whose launcher is killed: without Spark, with a program in its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from spark_backfill.publish import Output
from tests.support.outputs import written
from tests.support.spark_cluster import is_alive, wait_for

ROOT = Path(__file__).parents[2]

# The JVM's place is taken by a shell that waits for the driver, as a JVM does.
SUBMIT = """#!/bin/sh
{python} {driver} "$@"
"""

DRIVER = """
import sys, time
from pathlib import Path
from spark_backfill.console import PREFIX, Console
from spark_backfill.ending import EndedError, ending_in_order
from spark_backfill.publish import Output
console = Console()
try:
    with ending_in_order(), Output(str(Path(sys.argv[1]) / "snapshot")) as output:
        if sys.argv[2] == "deaf":
            import signal
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
        sys.stderr.write(f"{PREFIX}at work\\n"); sys.stderr.flush()
        time.sleep(600)
except EndedError as ended:
    console.end(ended)
    sys.exit(ended.status)
"""

LAUNCHER = """
import sys
from dedup_sdk._cli.app import run
from spark_backfill import launch, submission
place, kind = sys.argv[1:3]
submission._GRACE_S = 1 if kind == "deaf" else 30
launch.command = lambda *_, **__: [f"{place}/submit", place, kind]
launch.environment = lambda *_: {"PYTHONPATH": sys.argv[3], "PATH": "/usr/bin:/bin"}
options = ["--bootstrap", "h:1", "--topic", "t", "--id", "key", "--window", "1d", \
"--whole-topic", "--output", f"{place}/snapshot"]
sys.exit(run(["backfill", *options]))
"""


class Launched:
    """A launcher in a process of its own, with its job at work."""

    def __init__(self, place: Path, kind: str = "willing") -> None:
        self.place = place
        submit = place / "submit"
        (place / "driver.py").write_text(DRIVER)
        submit.write_text(SUBMIT.format(python=sys.executable, driver=place / "driver.py"))
        submit.chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, str(place), kind, str(ROOT)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
            env={**os.environ, "TMPDIR": str(place), "DEDUP_SPARK_ARGS": "--master local[*]"},
        )  # fmt: skip
        assert self.process.stderr is not None
        assert self.process.stderr.readline() == "backfill: at work\n"
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def left(self) -> list[str]:
        """The new entries of the folder."""
        return sorted({path.name for path in self.place.iterdir()} - {"driver.py", "submit"})

    def running(self) -> list[str]:
        """The programs of the job that still run; the shell that watches over a launcher is none of them."""
        names = []
        for each in self.family:
            try:
                if is_alive(each) and "dedup-watch" not in each.cmdline():
                    names.append(" ".join(each.cmdline()))
            except psutil.NoSuchProcess:
                continue
        return names


@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "interrupted; no snapshot was written"),
        (signal.SIGTERM, 143, "ended by SIGTERM; no snapshot was written"),
        (signal.SIGHUP, 129, "ended by SIGHUP; no snapshot was written"),
    ],
)
def test_a_run_that_is_asked_to_end_ends_with_everything(
    tmp_path: Path, number: signal.Signals, status: int, line: str
) -> None:
    """One line, the status that shells expect; no process, no file, nothing on stdout."""
    job = Launched(tmp_path)
    assert len(job.running()) == 2
    job.process.send_signal(number)
    out, err = job.process.communicate(timeout=60)
    assert (job.process.returncode, out, err) == (status, "", f"dedup: {line}\n")
    assert job.running() == []
    assert job.left() == []


def test_a_driver_that_does_not_listen_is_killed(tmp_path: Path) -> None:
    """After a time of grace everything is over all the same; what it left is no snapshot, and not in the way."""
    job = Launched(tmp_path, "deaf")
    job.process.send_signal(signal.SIGINT)
    job.process.communicate(timeout=60)
    assert job.process.returncode == 130
    wait_for(lambda: job.running() == [], 60)
    assert job.left() == ["snapshot"]
    assert [name[:5] for name in written(str(tmp_path / "snapshot"))] == [".run-"]
    with Output(str(tmp_path / "snapshot")):
        pass


def test_a_killed_launcher_takes_the_job_along(tmp_path: Path) -> None:
    """SIGKILL for the launcher alone.

    The driver is asked to end, does so in order, and the scratch folder is gone too.
    """
    job = Launched(tmp_path)
    job.process.kill()
    job.process.communicate(timeout=60)
    wait_for(lambda: job.running() == [], 60)
    wait_for(lambda: job.left() == [], 60)
