from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.unit.demo.test_result import KEYS

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

FLIGHTS = 5_000
PATIENCE_S = 120
BROKER, WORKER, SPARK = "kafka.Kafka", "dedup_sdk._demo.worker", "org.apache.spark.deploy.SparkSubmit"
SHELLS = {"sh", "bash", "env"}


def start(tmp_path: Path, *arguments: str, flights: int = FLIGHTS) -> subprocess.Popen[str]:
    """Start the demo with a temporary folder of its own, so that its remains can be seen."""
    return subprocess.Popen(
        [sys.executable, "-m", "dedup_sdk._cli", "demo", "--records", str(flights), *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    """All five steps on a real broker.

    Nothing lost, nothing doubled beyond the bound, rebuilt = lived, nothing left behind.
    """
    demo = start(tmp_path, "--json")
    stdout, stderr = demo.communicate(timeout=500)
    assert demo.returncode == 0, stderr
    result = json.loads(stdout.splitlines()[-1])
    assert list(result) == KEYS
    assert result["broker"] == "kafka"
    assert result["distinct_ids"] == result["marks"] == FLIGHTS
    assert result["records"] == result["distinct_ids"] + result["duplicates_in_topic"]
    assert result["duplicates_in_topic"] > 0
    assert result["lost"] == result["resent_handled"] == 0
    assert result["handled"] == FLIGHTS + result["doubled"]
    assert result["doubled"] <= result["doubled_bound"] <= 1_000
    assert result["resent"] == FLIGHTS // 10
    assert result["rebuild_records_per_second"] > 0
    assert result["stores_equal"] is True
    assert [line[:3] for line in stderr.splitlines()[:5]] == ["1/5", "2/5", "3/5", "4/5", "5/5"]
    assert stderr.splitlines()[-1].startswith("PASSED: 5,000 flights")
    assert "\x1b" not in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "programs"),
    [
        (signal.SIGINT, [BROKER, WORKER, WORKER]),
        (signal.SIGTERM, [BROKER, WORKER, WORKER]),
        (signal.SIGINT, [BROKER, SPARK]),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, programs: list[str]
) -> None:
    """Ctrl-C and SIGTERM among workers or Spark end every child, remove all files, and print no traceback."""
    with start(tmp_path, flights=4 * FLIGHTS) as demo:
        children = stopped_among(demo, programs)
        demo.send_signal(number)
        demo.send_signal(signal.SIGCONT)
        stdout, stderr = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + number
    assert stdout == ""
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def stopped_among(demo: subprocess.Popen[str], programs: list[str]) -> list[psutil.Process]:
    """Stop the demo while it runs these programs, so that it ends none of them meanwhile.

    Return all its children.
    """
    process = psutil.Process(demo.pid)
    deadline = time.monotonic() + PATIENCE_S
    while demo.poll() is None and time.monotonic() < deadline:
        if programs_of(process.children(recursive=True)) == sorted(programs):
            process.suspend()
            while demo.poll() is None and process.status() != psutil.STATUS_STOPPED:
                time.sleep(0.001)
            # It may have ended or started one between the look and the stop.
            children = process.children(recursive=True)
            if programs_of(children) == sorted(programs):
                return children
            process.resume()
        time.sleep(0.02)
    demo.kill()
    pytest.fail(f"{programs} did not run together within {PATIENCE_S} s; status {demo.poll()}")


def programs_of(processes: list[psutil.Process]) -> list[str]:
    """The programs among these that this file knows, in order; a shell on the way to become one is none yet."""
    found = []
    for each in processes:
        try:
            # Without the program's arguments: those of a shell that becomes it have its name too.
            line = each.cmdline() if each.status() != psutil.STATUS_ZOMBIE else []
        except psutil.NoSuchProcess:
            continue
        if not line or Path(line[0]).name in SHELLS:
            continue
        found += [program for program in (BROKER, SPARK, WORKER) if program in line]
    return sorted(found)
