"""The job of `tests.support.held_job`, submitted to Spark as a process of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from spark_backfill import launch
from tests.support.spark_cluster import kill_tree, wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

STEP_S = 300.0
_PROGRAM = Path(__file__).with_name("held_job.py")


class HeldJob:
    """The job in a process of its own; a context manager that leaves no process.

    Writing tasks from number ``first`` on wait for the file ``go``. ``options`` are those of spark-submit, ``settings``
    those of Spark, as ``name=value``; ``arguments`` are the job's.
    """

    def __init__(
        self,
        options: Sequence[str],
        settings: Sequence[str],
        arguments: Sequence[str],
        folder: Path,
        *,
        first: int,
    ) -> None:
        self.folder = folder
        self.held = folder / "held"
        self.held.mkdir(parents=True)
        given = [*settings, f"spark.local.dir={folder / 'local'}"]
        line = [
            "spark-submit", *options, *(text for each in given for text in ("--conf", each)),
            str(_PROGRAM), str(self.held), str(first), *arguments,
        ]  # fmt: skip
        with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
            started = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, cwd=folder,
                env=launch.environment(folder), start_new_session=True,
            )  # fmt: skip
        self.process = psutil.Process(started.pid)
        self._started = started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()
        kill_tree(self.process)
        shutil.rmtree(self.folder / "local", ignore_errors=True)

    def told(self) -> dict[str, dict[str, str]]:
        """The facts that each attempt at a writing task told of itself, by ``task-attempt-process``."""
        return {path.stem: json.loads(path.read_text()) for path in self.held.glob("*.json")}

    def wait_until_told(self, tasks: set[str]) -> None:
        """Return when an attempt at each of these tasks has written its files."""

        def told() -> bool:
            assert self._started.poll() is None, self.trouble()
            return tasks <= {name.partition("-")[0] for name in self.told()}

        wait_for(told, STEP_S)

    def go_on(self) -> None:
        """Let the tasks go on."""
        (self.held / "go").touch()

    def report(self) -> dict[str, Any]:
        """Return the report when the job is over."""
        wait_for(lambda: self._started.poll() is not None, STEP_S)
        assert self._started.returncode == 0, self.trouble()
        report: dict[str, Any] = json.loads((self.folder / "stdout").read_text().splitlines()[-1])
        return report

    def trouble(self) -> str:
        """The last that was said."""
        return "\n".join((self.folder / name).read_text()[-2_000:] for name in ("stdout", "stderr"))
