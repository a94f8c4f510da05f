from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]

KEYS = [
    "broker",
    "records",
    "distinct_ids",
    "duplicates_in_topic",
    "handled",
    "lost",
    "doubled",
    "doubled_bound",
    "resent",
    "resent_handled",
    "rebuild_records_per_second",
    "marks",
    "stores_equal",
    "seconds",
]
FLIGHTS = 5_000
PATIENCE_S = 120


def start(tmp_path: Path, *arguments: str, flights: int = FLIGHTS) -> subprocess.Popen[str]:
    """Start the demo with a temporary folder of its own, so that what it leaves behind can be seen."""
    return subprocess.Popen(
        [sys.executable, "-m", "dedup_sdk.cli", "demo", "--records", str(flights), *arguments],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_demo_keeps_every_promise(tmp_path: Path) -> None:
    """All five steps on a real broker: nothing lost, nothing doubled beyond the bound, rebuilt = lived, nothing left behind."""
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
    ("number", "sign"),
    [
        (signal.SIGINT, "dedup-demo-*/worker-1.handled"),
        (signal.SIGTERM, "dedup-demo-*/worker-1.handled"),
        (signal.SIGINT, "dedup-spark-*"),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals, sign: str) -> None:
    """Ctrl-C and SIGTERM among workers or Spark end every child, remove all files, and print no traceback."""
    with start(tmp_path, flights=4 * FLIGHTS) as demo:
        wait_for(tmp_path, sign)
        # It may not come to its end meanwhile.
        demo.send_signal(signal.SIGSTOP)
        # Some of them have a Java to start first, and that its files.
        time.sleep(1)
        children = psutil.Process(demo.pid).children(recursive=True)
        demo.send_signal(number)
        demo.send_signal(signal.SIGCONT)
        stdout, stderr = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 128 + number
    assert stdout == ""
    assert "Traceback" not in stderr
    assert len(children) > 2
    _, alive = psutil.wait_procs(children, timeout=60)
    assert alive == []
    assert list(tmp_path.iterdir()) == []


def wait_for(folder: Path, pattern: str) -> None:
    """Return when a file of this pattern is in the folder."""
    deadline = time.monotonic() + PATIENCE_S
    while not list(folder.glob(pattern)):
        if time.monotonic() > deadline:
            pytest.fail(f"no {pattern} within {PATIENCE_S} s")
        time.sleep(0.02)
