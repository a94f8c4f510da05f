"""Children of a fork server are processes like those of `subprocess`, and do not outlive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.support.fork_server import ForkServer
from tests.support.spark_cluster import is_alive, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = "tests.unit.testing.test_fork_server"
ROOT = Path(__file__).parents[3]
PATIENCE_S = 60
KILLED = f"""\
import sys, time
from pathlib import Path
from tests.support.fork_server import ForkServer
folder = Path(sys.argv[1])
forks = ForkServer(["{HERE}"], folder)
child = forks.start("{HERE}", "sleep", folder / "output")
print(child.pid, flush=True)
time.sleep(600)
"""


def main(argument: str) -> int:
    """What the children do."""
    if argument == "sleep":
        time.sleep(600)
    sys.stdout.write(f"{argument} {os.getsid(0) == os.getpid()}\n")
    sys.stdout.flush()
    sys.stderr.write("an error\n")
    return 3


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[ForkServer]:
    """Return a server that ends with the test."""
    server = ForkServer([HERE], tmp_path)
    yield server
    server.end()


def test_a_child_has_its_output_and_its_exit_status(forks: ForkServer, tmp_path: Path) -> None:
    """It has a session of its own, and what it writes is added to its file."""
    output = tmp_path / "output"
    output.write_text("before\n")
    child = forks.start(HERE, "a b", output)
    assert child.wait(PATIENCE_S) == 3
    assert output.read_text() == "before\na b True\nan error\n"
    child.signal(signal.SIGTERM)
    child.kill()
    assert child.exit_status == 3, "nothing happens to a child that has ended"


def test_a_child_is_signalled_and_killed(forks: ForkServer, tmp_path: Path) -> None:
    """By a signal that ends it, and by SIGKILL where it is stopped. Another child lives on."""
    ended, stopped, other = [forks.start(HERE, "sleep", tmp_path / "output") for _ in range(3)]
    assert ended.wait(0) is None
    ended.signal(signal.SIGTERM)
    assert ended.wait(PATIENCE_S) == -signal.SIGTERM
    stopped.signal(signal.SIGSTOP)
    wait_for(lambda: psutil.Process(stopped.pid).status() == psutil.STATUS_STOPPED, PATIENCE_S)
    stopped.kill()
    assert stopped.exit_status == -signal.SIGKILL
    assert other.exit_status is None


def test_children_end_with_their_server(tmp_path: Path) -> None:
    """Also a child that nobody has in hand any more; what it wrote stays, and another question is an error."""
    (tmp_path / "output").touch()
    forks = ForkServer([HERE], tmp_path)
    child = psutil.Process(forks.start(HERE, "sleep", tmp_path / "output").pid)
    assert is_alive(child)
    forks.end()
    assert not is_alive(child)
    assert (tmp_path / "output").exists()
    with pytest.raises(RuntimeError):
        forks.start(HERE, "sleep", tmp_path / "output")


def test_children_end_where_the_process_that_asked_for_them_is_killed(tmp_path: Path) -> None:
    """Nobody is left then who could remove the folder: it is gone."""
    folder = tmp_path / "folder"
    folder.mkdir()
    asked = subprocess.Popen([sys.executable, "-c", KILLED, str(folder)], stdout=subprocess.PIPE, cwd=ROOT)
    with asked:
        try:
            assert asked.stdout is not None
            child = psutil.Process(int(asked.stdout.readline()))
            assert is_alive(child)
        finally:
            asked.kill()
    wait_for(lambda: not is_alive(child) and not folder.exists(), PATIENCE_S)
