"""spark-submit is ended with its parent, wherever that is interrupted: with a program in its place."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from spark_backfill.submission import Submission
from tests.support.interrupting import Interrupted
from tests.support.spark_cluster import wait_for
from tests.support.spawning import interrupted_at_spawn, running_children

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60

# A file dropped in the middle of its making is closed by the collection of garbage.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")

# As spark-submit and the JVM: the one becomes the other, which has the driver for a child.
SUBMIT = """#!/usr/bin/env bash
sleep 600 &
wait
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return the folder of a run, with its program in it."""
    made = tmp_path / "scratch"
    made.mkdir()
    (made / "submit").write_text(SUBMIT)
    (made / "submit").chmod(0o755)
    return made


def submit(scratch: Path, *line: str, **variables: str) -> str:
    """Run a program to its end, by default the one in the folder, and return its stdout."""
    with (scratch / "stdout").open("w+") as stdout:
        environment = {"PATH": "/usr/bin:/bin", **variables}
        program = line or (str(scratch / "submit"),)
        with Submission(program, environment=environment, folder=scratch, stdout=stdout) as running:
            running.wait()
        stdout.seek(0)
        return stdout.read()


@pytest.mark.parametrize("number", [1, 2])
def test_a_start_that_is_interrupted_behind_a_fork_leaves_no_process(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nobody has the number of the process then; the folder is taken away by whoever made it."""
    before = running_children()
    with interrupted_at_spawn(monkeypatch, number), pytest.raises(Interrupted):
        submit(scratch)
    left = wait_until_none(before)
    assert (left, (scratch / "submit").exists()) == ([], True)


@pytest.mark.parametrize("number", [1, 2])
def test_a_start_that_is_interrupted_between_two_lines_leaves_no_process(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Behind the making of either process, before it has a name."""
    before, real, made = running_children(), subprocess.Popen, 0

    def start(*arguments: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        process = real(*arguments, **options)
        if made == number:
            raise Interrupted
        return process

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", start)
        with pytest.raises(Interrupted):
            submit(scratch)
    left = wait_until_none(before)
    assert (left, (scratch / "submit").exists()) == ([], True)


def wait_until_none(before: set[psutil.Process]) -> list[str]:
    """Wait until all is over that was not there before; end the rest, and return its command lines."""
    try:
        wait_for(lambda: running_children() <= before, PATIENCE_S)
    except AssertionError:
        left = running_children() - before
        lines = [" ".join(each.cmdline()) for each in left]
        for each in left:
            each.kill()
        return lines
    return []


def test_the_program_is_started_as_if_nothing_were_around_it(scratch: Path) -> None:
    """With variables whose name is none for a shell, its arguments, a session of its own and nothing to read."""
    program = (
        "import json, os, sys; print(json.dumps([sys.argv[1:], os.getpid() == os.getsid(0), "
        "sys.stdin.read(), dict(os.environ)]))"
    )
    told = submit(
        scratch, sys.executable, "-c", program, "a b", "$PATH", **{"spark.name": "a b", "WITH-DASH": "ü"}
    )
    arguments, leads, read, environment = json.loads(told)
    assert (arguments, leads, read) == (["a b", "$PATH"], True, "")
    assert environment.items() >= {"spark.name": "a b", "WITH-DASH": "ü"}.items()
