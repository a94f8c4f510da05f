from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
ADDRESS = "127.0.0.1:19092"
"""Nothing listens there: the broker is only named."""


def started(program: str) -> subprocess.Popen[str]:
    """A Python program with the run's broker, which is at `ADDRESS`."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.one_broker", sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "DEDUP_TEST_BOOTSTRAP": ADDRESS},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_command_gets_the_address_and_its_status_is_passed_on() -> None:
    """Every process below the command reads one address."""
    running = started("import os, sys; print(os.environ['DEDUP_TEST_BOOTSTRAP']); sys.exit(3)")
    out, _ = running.communicate(timeout=60)
    assert out.splitlines()[-1] == ADDRESS
    assert running.returncode == 3


def test_a_signal_ends_the_command_first() -> None:
    """SIGTERM, as of `timeout`: the command ends before the broker does, and the status is a failure."""
    running = started("import signal; print('at work', flush=True); signal.pause()")
    assert running.stdout is not None
    assert "at work\n" in iter(running.stdout.readline, "")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode not in {0, -signal.SIGTERM}
