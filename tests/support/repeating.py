"""Repeats alone what failed beside everything else: ``python -m tests.support.repeating make -k ci-parts``.

While the command runs, pytest (by `Failures`) and the chaos command write what failed into the folder that
``DEDUP_TEST_FAILURES`` names, and end as if nothing had failed. When the command has ended, each of these failures is
repeated three times: alone, in a process of its own. The exit status is 0 if every repetition passed; the last lines
then list the failures as ``passed only when alone``, and each is a finding. A failure that cannot be repeated (a
linter, a build, a test file that cannot be imported, a process that died) fails the command, and so the run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.support.commands import end_by_signals, run
from tests.support.fresh_seeds import SEED, TITLE

FOLDER: Final = "DEDUP_TEST_FAILURES"
"""The environment variable with the folder of the failures."""
_TIMES: Final = 3
_MOST_FAILURES: Final = 10
"""More failures than these have a common cause, which is no race."""
_LAST_START_S: Final = 1200.0
"""Seconds after which no repetition begins: `.ci/run` ends a run that takes too long."""
_TRACE_LINES: Final = 60
_OF_MAKE: Final = frozenset({"MAKEFLAGS", "MFLAGS", "MAKELEVEL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One test or one chaos scenario that failed.

    Attributes:
        name: the test's node ID, or the scenario with its choice.
        trace: the report of the failure.
        command: runs the test or the scenario alone; the exit status is 0 if it passes.
        folder: where the command runs.
    """

    name: str
    trace: str
    command: tuple[str, ...]
    folder: str


def hand_over(failures: Iterable[Failure], folder: str) -> bool:
    """Write down failures that are to be repeated; return False if nobody repeats them, so that the caller fails."""
    if not folder:
        return False
    for failure in failures:
        name = f"{time.time_ns()}-{uuid.uuid4().hex}.json"
        Path(folder, name).write_text(json.dumps(asdict(failure)), encoding="utf-8")
    return True


class Failures:
    """The pytest plugin that hands failed tests over; it does nothing where nobody repeats them.

    ``seed`` is that of the run's random tests: they are repeated with it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # Not for the pytest and the chaos commands that tests start: their failures are expected ones.
        self._folder = os.environ.pop(FOLDER, "")
        self._traces: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that failed, or whose setup or end did."""
        if report.failed:
            sections = (text for title, text in report.sections if title == TITLE)
            self._traces.setdefault(report.nodeid, "\n".join([report.longreprtext, *sections]))

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Make the run a green one if all tests ran, and nothing but tests failed."""
        if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or not self._traces:
            return
        command = (
            "env",
            f"{SEED}={self._seed}",
            sys.executable,
            "-m",
            "pytest",
            "-o",
            "cache_dir=.pytest_cache/alone",
        )
        folder = str(session.config.rootpath)
        failures = (
            Failure(name=name, trace=trace, command=(*command, name), folder=folder)
            for name, trace in self._traces.items()
        )
        if hand_over(failures, self._folder):
            session.exitstatus = pytest.ExitCode.OK


def main(command: list[str]) -> int:
    """Run a command, repeat what was handed over, and return the status of all; 1 after an interruption."""
    end_by_signals()
    try:
        with tempfile.TemporaryDirectory(prefix="failures-") as folder:
            status = run(command, {**os.environ, FOLDER: folder})
            failures = _read(Path(folder))
        if status or len(failures) > _MOST_FAILURES:
            why = "something else failed, too" if status else f"more than {_MOST_FAILURES} failed"
            _say(f"failed, and not repeated because {why}: {each.name}" for each in failures)
            return status or 1
        return _repeat(failures)
    except KeyboardInterrupt:
        return 1


def _read(folder: Path) -> list[Failure]:
    return [Failure(**json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.iterdir())]


def _repeat(failures: list[Failure]) -> int:
    """Repeat each failure alone, and list the outcomes; return 0 if every repetition passed."""
    variables = {name: value for name, value in os.environ.items() if name not in {FOLDER, *_OF_MAKE}}
    deadline = time.monotonic() + _LAST_START_S
    passed = [_passed(failure, variables, deadline) for failure in failures]
    findings = [failure for failure, times in zip(failures, passed, strict=True) if times == _TIMES]
    for failure in findings:
        _say([f"---- {failure.name}: failed beside the others:", *failure.trace.splitlines()[-_TRACE_LINES:]])
    _say(f"passed only when alone: {failure.name}" for failure in findings)
    _say(
        f"failed also alone ({times} of {_TIMES} repetitions passed): {failure.name}"
        for failure, times in zip(failures, passed, strict=True)
        if failure not in findings
    )
    return int(len(findings) < len(failures))


def _passed(failure: Failure, variables: Mapping[str, str], deadline: float) -> int:
    """Return how many repetitions passed before one failed, or before the time was over."""
    for number in range(_TIMES):
        if time.monotonic() > deadline:
            _say([f"---- {failure.name}: no time is left for repetition {number + 1}"])
            return number
        _say([f"---- {failure.name}: alone, {number + 1} of {_TIMES}"])
        if run(failure.command, variables, Path(failure.folder)):
            return number
    return _TIMES


def _say(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
