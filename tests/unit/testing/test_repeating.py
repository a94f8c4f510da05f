from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VARIABLES = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""Other plugins have nothing to do here, and take most of a second to load."""
CONFTEST = """
import pytest
from tests.support.fresh_seeds import FreshSeeds
from tests.support.repeating import Failures
def pytest_configure(config):
    seeds = FreshSeeds()
    config.pluginmanager.register(seeds)
    config.pluginmanager.register(Failures(seeds.first))
"""
HEAD = """
import os, pathlib, pytest
def run():
    counted = pathlib.Path(__file__).with_suffix(".runs")
    runs = int(counted.read_text()) + 1 if counted.exists() else 1
    counted.write_text(str(runs))
    return runs
"""
GREEN = "def test_green(): pass"
RACE = f"""{HEAD}
@pytest.mark.parametrize("case", ["a [b] :: c"])
def test_race(case):
    assert "DEDUP_TEST_FAILURES" not in os.environ
    assert run() > 1 and "MAKEFLAGS" not in os.environ, "beside others"
"""
RACE_AT_THE_END = f"""{HEAD}
@pytest.fixture
def resource():
    yield
    assert run() > 1, "beside others"
def test_end(resource): pass
"""
ALWAYS = "def test_always(): assert False"
SELDOM = f"""{HEAD}
def test_seldom(): assert run() in {2, 4}
"""
DRAWN = f"""{HEAD}
def test_drawn(fresh_seed):
    with pathlib.Path(__file__).with_suffix(".seeds").open("a") as seeds:
        seeds.write(f"{{fresh_seed}} ")
    assert run() > 1, "beside others"
"""
MANY = """
import pytest
@pytest.mark.parametrize("number", range(11))
def test_many(number): assert False
"""
RACE_NAME = "test_race.py::test_race[a [b] :: c]"


def repeated(
    folder: Path, *tests: str, command: tuple[str, ...] = (sys.executable, "-m", "pytest")
) -> tuple[int, list[str]]:
    """The status and the printed lines of a run of these test files."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "conftest.py").write_text(CONFTEST)
    for number, text in enumerate(tests):
        name = text.partition("def test_")[2].partition("(")[0]
        (folder / f"test_{name or number}.py").write_text(text)
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.repeating", *command],
        cwd=folder,
        env={**os.environ, **VARIABLES, "MAKEFLAGS": "-j4"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.splitlines()


def repetitions(lines: list[str]) -> int:
    """The number of repetitions that began."""
    return sum(line.startswith("---- ") and ": alone, " in line for line in lines)


def test_a_green_run_repeats_nothing(tmp_path: Path) -> None:
    """Nothing is printed besides what the command prints."""
    status, lines = repeated(tmp_path, GREEN)
    assert status == 0
    assert " 1 passed in " in lines[-1]


def test_a_failure_that_passes_alone_three_times_is_listed_and_the_run_is_green(tmp_path: Path) -> None:
    """The last line names the test, and its trace stands above; also a failure of a fixture's end is repeated."""
    status, lines = repeated(tmp_path, GREEN, RACE, RACE_AT_THE_END)
    assert status == 0
    assert lines[-2:] == [
        "passed only when alone: test_end.py::test_end",
        f"passed only when alone: {RACE_NAME}",
    ]
    assert repetitions(lines) == 6
    trace = lines[lines.index(f"---- {RACE_NAME}: failed beside the others:") : -2]
    assert any("AssertionError: beside others" in line for line in trace)


def test_a_failure_that_fails_alone_once_is_red(tmp_path: Path) -> None:
    """No repetition makes up for one that failed; another test may still be listed as a race."""
    status, lines = repeated(tmp_path, RACE, ALWAYS, SELDOM)
    assert status == 1
    assert lines[-3:] == [
        f"passed only when alone: {RACE_NAME}",
        "failed also alone (0 of 3 repetitions passed): test_always.py::test_always",
        "failed also alone (1 of 3 repetitions passed): test_seldom.py::test_seldom",
    ]
    assert repetitions(lines) == 3 + 1 + 2


def test_a_random_test_is_repeated_with_its_seed(tmp_path: Path) -> None:
    """Chance draws the seed once for a run; its first line and the trace tell it."""
    status, lines = repeated(tmp_path, DRAWN)
    assert status == 0
    [seed, *again] = (tmp_path / "test_drawn.seeds").read_text().split()
    assert again == [seed] * 3
    assert f"dedup: random tests begin with the seed {seed}; DEDUP_TEST_SEED={seed} repeats them" in lines
    name = f"test_drawn.py::test_drawn[{seed}]"
    trace = lines[lines.index(f"---- {name}: failed beside the others:") : -1]
    assert trace[-1] == f"DEDUP_TEST_SEED={seed} DEDUP_TEST_SEEDS=1 .venv/bin/pytest '{name}'"


def test_each_run_draws_another_seed(tmp_path: Path) -> None:
    """Unless it is given, with how many follow it."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_drawn.py").write_text(f"{HEAD}\ndef test_drawn(fresh_seed): assert fresh_seed < 0")

    def drawn(**variables: str) -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-rf", str(tmp_path)],
            cwd=tmp_path, env={**os.environ, **VARIABLES, "DEDUP_TEST_FAILURES": "", **variables},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        return re.findall(r"^FAILED .*test_drawn\[(\d+)\]", ended.stdout, re.MULTILINE)

    assert drawn() != drawn()
    assert drawn(DEDUP_TEST_SEED="7", DEDUP_TEST_SEEDS="2") == ["7", "8"]


def test_many_failures_are_red_at_once(tmp_path: Path) -> None:
    """Eleven tests do not fail by a race."""
    status, lines = repeated(tmp_path, MANY)
    assert status == 1
    assert lines[-1] == "failed, and not repeated because more than 10 failed: test_many.py::test_many[10]"
    assert repetitions(lines) == 0


BROKEN_FILE = "import no_such_module  # def test_file(): pass"
DYING = f"""{HEAD}
def test_dying(): os._exit(0 if run() > 1 else 1)
"""
DEAD_AFTERWARDS = f"""{HEAD}
import atexit
def test_afterwards(): atexit.register(os._exit, 3)
"""


@pytest.mark.parametrize("test", [BROKEN_FILE, DYING, DEAD_AFTERWARDS])
def test_what_is_no_failed_test_is_red(tmp_path: Path, test: str) -> None:
    """A file that cannot be imported, and a process that dies, cannot be repeated as a test."""
    status, lines = repeated(tmp_path, RACE, test)
    assert status not in {0, -signal.SIGTERM}
    assert repetitions(lines) == 0


def test_a_failing_command_is_red(tmp_path: Path) -> None:
    """A linter beside the tests fails the run, although each failed test would pass alone; the test is named."""
    both = ("sh", "-c", f"'{sys.executable}' -m pytest; exit 5")
    status, lines = repeated(tmp_path, RACE, command=both)
    assert status == 5
    assert lines[-1] == f"failed, and not repeated because something else failed, too: {RACE_NAME}"
    assert repetitions(lines) == 0


def test_without_the_command_a_failure_is_a_failure(tmp_path: Path) -> None:
    """Pytest alone ends with its own status."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_always.py").write_text(ALWAYS)
    environment = {name: value for name, value in os.environ.items() if name != "DEDUP_TEST_FAILURES"}
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path)],
        cwd=tmp_path, env={**environment, **VARIABLES}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert ended.returncode == 1


def test_a_signal_ends_the_command_first(tmp_path: Path) -> None:
    """SIGTERM, as of `timeout`: the command ends, and the status is a failure."""
    program = "import signal; print('at work', flush=True); signal.pause()"
    running = subprocess.Popen(
        [sys.executable, "-m", "tests.support.repeating", sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, **VARIABLES},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert "at work\n" in iter(running.stdout.readline, "")
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 1
