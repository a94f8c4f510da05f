"""Writing tasks of the backfill that are killed or fail at random attempts, where driver and tasks share a disk."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, NoReturn
from unittest import mock

from dedup_sdk._store.output_folder import OutputFolder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from spark_backfill.workers import Task

READING, PUTTING, KILLED, FAILED = "killed-reading", "killed-putting", "killed-put", "failed-put"
ENDS: Final = (READING, PUTTING, KILLED, FAILED)
"""SIGKILL after the first rows, between the two files of a slot, and after both; and an error after both."""
ENDURED: Final = 2
"""Attempts of a task that may end badly: one less than the session of the tests makes."""


@dataclass(frozen=True)
class DyingTask:
    """Wraps a writing task: the seed says how each attempt ends.

    Attributes:
        task: what it wraps.
        folder: each attempt that ends badly leaves an empty file here, ``<task>-<attempt>-<end>``.
        seed: of the draw.
    """

    task: Task
    folder: Path
    seed: int

    def __call__(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Run the task up to the end that was drawn."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        number, attempt = context.partitionId(), context.attemptNumber()
        drawn = Random(f"{self.seed}/{number}/{attempt}").choice([*ENDS, None])
        end = drawn if attempt < ENDURED else None
        told = self.folder / f"{number}-{attempt}-{end}"
        with _killing_between_files(told) if end == PUTTING else nullcontext():
            outcomes = list(self.task(_killing(batches, told) if end == READING else batches))
        if end == KILLED:
            _kill(told)
        if end == FAILED:
            told.touch()
            raise RuntimeError("the disk of this worker is gone")
        yield from outcomes


def ends_in(folder: Path) -> set[str]:
    """The ends that attempts told of."""
    return {path.name.split("-", 2)[2] for path in folder.iterdir()}


def _killing(batches: Iterable[Any], told: Path) -> Iterator[Any]:
    for batch in batches:
        yield batch
        _kill(told)


@contextmanager
def _killing_between_files(told: Path) -> Iterator[None]:
    """Have this process killed when it has put one file; if it puts none, the next task in it lives."""
    put = OutputFolder.put

    def put_and_die(*arguments: Any) -> NoReturn:
        put(*arguments)
        _kill(told)

    with mock.patch.object(OutputFolder, "put", put_and_die):
        yield


def _kill(told: Path) -> NoReturn:
    told.touch()
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a process that was killed goes on")
