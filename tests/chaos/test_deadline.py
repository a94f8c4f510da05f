from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SOFT = """
import time
from tests.chaos.deadline import OverdueError, within
try:
    with within(1.0, "a nap"):
        time.sleep(300)
except OverdueError as error:
    print(error)
with within(2.0, "a blink"):
    pass
time.sleep(2.2)
"""
_HARD = """
import time
from tests.chaos.deadline import OverdueError, within
with within(0.2, "a nap", grace_s=0.3):
    while True:
        try:
            time.sleep(30)
        except OverdueError:
            pass
"""


def _play(program: str) -> subprocess.CompletedProcess[str]:
    # A process of its own: the alarm of this one belongs to the tests' own time limit.
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_what_is_overdue_ends_and_says_where_it_stood() -> None:
    """A block that takes too long ends by an error with the time and the place; one that does not is left alone."""
    done = _play(_SOFT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("not over after 1 s; it stood at <string>:6 <module>")


def test_what_does_not_end_by_an_error_ends_the_process() -> None:
    """Where even that does not help the process ends with status 2, and shows its threads."""
    done = _play(_HARD)
    assert done.returncode == 2
    assert "a nap: not over 0.3 s after its end" in done.stderr
    assert "most recent call first" in done.stderr
