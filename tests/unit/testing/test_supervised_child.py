"""A child is ended with its parent, wherever that is interrupted or killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest

from dedup_sdk.testing._supervised_child import SupervisedChild
from tests.support.interrupting import Interrupted, InterruptedAt
from tests.support.spark_cluster import is_alive, wait_for
from tests.support.spawning import interrupted_at_spawn, running_children

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60
SLEEP = ["sleep", "600"]

# A file dropped in the middle of its making is closed by the collection of garbage.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with something in it."""
    made = tmp_path / "folder"
    made.mkdir()
    (made / "file").touch()
    return made


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    """Check that programs of a test are over a minute after it, and end them if they are not."""
    before = running_children()
    yield
    try:
        wait_for(lambda: running_children() <= before, PATIENCE_S)
    finally:
        for each in running_children() - before:
            each.kill()


def started(folder: Path, command: list[str] = SLEEP) -> SupervisedChild:
    """Start a child whose output lies beside the folder."""
    with folder.with_name("output").open("ab") as output:
        return SupervisedChild(command, folder=folder, output=output)


@pytest.mark.parametrize("number", [1, 2])
def test_a_start_that_is_interrupted_behind_a_fork_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody has the number of the process then: not the caller, and not `subprocess`.

    This process lives, and its folder stays.
    """
    before = running_children()
    with interrupted_at_spawn(monkeypatch, number), pytest.raises(Interrupted):
        started(folder)
    wait_for(lambda: running_children() <= before, PATIENCE_S)
    assert (folder / "file").exists()


def test_a_start_that_is_interrupted_anywhere_leaves_no_process(folder: Path) -> None:
    """At every place of it at which Python looks for signals."""
    before, strikes = running_children(), 0
    for place in range(1, 200):
        interruption = InterruptedAt(place)
        try:
            with interruption:
                started(folder).kill()
        except Interrupted:
            strikes += 1
        wait_for(lambda: running_children() <= before, PATIENCE_S)
        if not interruption.struck:
            break
        folder.mkdir(exist_ok=True)
    assert strikes >= 10


def test_an_end_that_is_interrupted_anywhere_leaves_no_process(folder: Path) -> None:
    """Neither the child nor its watch, and a second `kill` finds nothing that troubles it."""
    before, strikes = running_children(), 0
    for place in range(1, 200):
        child = started(folder)
        interruption = InterruptedAt(place)
        try:
            with interruption:
                child.kill()
        except Interrupted:
            strikes += 1
        # As after SIGTERM: objects that nobody holds any more are dropped.
        again = place % 2
        if again:
            child.kill()
        del child
        wait_for(lambda: running_children() <= before, PATIENCE_S)
        assert not again or (folder / "file").exists()
        if not interruption.struck:
            break
        folder.mkdir(exist_ok=True)
        (folder / "file").touch()
    assert strikes >= 4


def test_the_child_is_the_program_itself(folder: Path) -> None:
    """Number, session, input, arguments and status are those of the program, not of a shell around it."""
    program = (
        "import os, sys; print(os.getpid() == os.getsid(0), sys.stdin.read(), sys.argv[1:]); sys.exit(7)"
    )
    child = started(folder, [sys.executable, "-c", program, "a b", "$HOME", "-n", "ü"])
    assert child.wait(PATIENCE_S) == 7
    child.kill()
    assert (child.exit_status, (folder / "file").exists()) == (7, True)
    assert folder.with_name("output").read_text() == "True  ['a b', '$HOME', '-n', 'ü']\n"

    sleeping = started(folder)
    wait_for(lambda: psutil.Process(sleeping.pid).cmdline() == SLEEP, PATIENCE_S)
    sleeping.freeze()
    assert psutil.Process(sleeping.pid).status() == psutil.STATUS_STOPPED
    sleeping.kill()
    assert sleeping.exit_status == -signal.SIGKILL


def test_a_program_that_is_not_there_ends_with_a_word(folder: Path) -> None:
    """The status is the shell's, and the output names the program."""
    child = started(folder, ["/nowhere/java", "-version"])
    assert child.wait(PATIENCE_S) == 127
    child.kill()
    assert "/nowhere/java" in folder.with_name("output").read_text()


PARENT = """
import os, signal, subprocess, sys, time
from pathlib import Path
from dedup_sdk.testing._supervised_child import SupervisedChild
folder, killed_at = Path(sys.argv[1]), int(sys.argv[2])
real, made = subprocess._fork_exec, 0
def spawn(*arguments):
    global made
    made += 1
    pid = real(*arguments)
    print(pid, flush=True)
    if made == killed_at:
        os.kill(os.getpid(), signal.SIGKILL)
    return pid
subprocess._fork_exec = spawn
child = SupervisedChild(["sleep", "600"], folder=folder, output=sys.stderr.buffer)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("killed_at", [1, 2, 3])
def test_a_parent_that_is_killed_takes_its_child_along(folder: Path, killed_at: int) -> None:
    """Behind the fork of either process, and when both run.

    None outlives it, and once there was a child its folder goes too.
    """
    parent = subprocess.run(
        [sys.executable, "-c", PARENT, str(folder), str(killed_at)], stdout=subprocess.PIPE, check=False
    )
    assert parent.returncode == -signal.SIGKILL
    numbers = [int(line) for line in parent.stdout.split()]
    assert len(numbers) == min(killed_at, 2)
    for number in numbers:
        wait_for(lambda number=number: not runs(number), PATIENCE_S)  # type: ignore[misc]
    if killed_at > 1:
        wait_for(lambda: not folder.exists(), PATIENCE_S)


def runs(number: int) -> bool:
    """Whether a process of this number runs."""
    try:
        return is_alive(psutil.Process(number))
    except psutil.NoSuchProcess:
        return False
