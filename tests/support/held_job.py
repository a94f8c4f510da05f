"""The job, with writing tasks that wait for the test: ``spark-submit held_job.py FOLDER FIRST OPTIONS...``.

The first attempt of each task from number FIRST on writes its files, says so by a file in FOLDER, named by its
process, and goes on when there is a file ``go``. So a test knows that it comes in the middle of the writing. A
later attempt, e.g. a speculative copy, waits until the first one has told of itself.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_backfill.backfill import backfill
from spark_backfill.on_spark import on_spark
from spark_backfill.options import parse_options
from spark_backfill.session import make_session

if TYPE_CHECKING:
    from collections.abc import Iterable


class Held:
    """Wraps a writing task; it travels to the workers by value, as it is defined in the main program."""

    def __init__(self, task: Any, folder: str, first: int) -> None:
        self._task = task
        self._folder = folder
        self._first = first

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run the task, tell of it, and wait."""
        from pyspark import TaskContext

        import spark_backfill

        context = TaskContext.get()
        assert context is not None
        while context.attemptNumber() and not self._first_told(context.partitionId()):
            time.sleep(0.05)
        outcomes = list(self._task(batches))
        name = f"{context.partitionId()}-{context.attemptNumber()}-{os.getpid()}"
        told = {"code": spark_backfill.__file__, "python": sys.executable, "cwd": str(Path.cwd())}
        (Path(self._folder) / f"{name}.partial").write_text(json.dumps(told))
        (Path(self._folder) / f"{name}.partial").rename(Path(self._folder) / f"{name}.json")
        while (
            context.partitionId() >= self._first
            and not context.attemptNumber()
            and not (Path(self._folder) / "go").exists()
        ):
            time.sleep(0.05)
        yield from outcomes

    def _first_told(self, number: int) -> bool:
        folder = Path(self._folder)
        return (folder / "go").exists() or any(folder.glob(f"{number}-0-*.json"))


def main() -> None:
    """Run the job and print its report."""
    folder, first = sys.argv[1], int(sys.argv[2])
    options = parse_options(sys.argv[3:], print)
    sys.stdout.write(
        f"{backfill(options, on_spark(make_session), around=lambda task: Held(task, folder, first))}\n"
    )


if __name__ == "__main__":
    main()
