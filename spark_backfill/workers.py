"""Who runs the tasks of a run: Spark (`spark_backfill.on_spark`), or this process (`spark_backfill.in_process`).

The tasks are the same functions of Arrow batches, and so are the marks; only the shuffle between them differs.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Task = Callable[[Iterable[Any]], Iterable[Any]]
_YOUNG_OBJECTS: Final = 20_000
"""Above what the messages of a batch are, with their headers."""


class ReadTasks(NamedTuple):
    """Tasks that read: ``run`` gets batches whose first column has numbers below ``tasks``, one for each task.

    ``schema`` is that of the batches which they give, as Spark writes one.
    """

    tasks: int
    run: Task
    schema: str


Source: TypeAlias = "ReadTasks | DataFrame"


class Folding(NamedTuple):
    """The second half of a run: rows or blocks of one slot meet in one task, in an order, and ``task`` folds them.

    ``slots``: their number; ``order``: the columns to sort by (none: any order).
    """

    task: Task
    slots: int
    order: tuple[str, ...] = ()


class Workers(Protocol):
    """Runs the tasks of a run; one that cannot raises `spark_backfill.in_process.NeedsSparkError`, of any method.

    ``start_seconds``: how long its start took, 0 before it.
    """

    start_seconds: float

    def session(self) -> SparkSession:
        """Return the session that reads archives; it is started when it is first asked for."""

    def expect(self, rows: int) -> None:
        """Take note of how many offsets and marks there are to be read, more for those that take more than others."""

    def tasks_at_a_time(self) -> int:
        """Return how many tasks run at a time, now."""

    def watched(self, offsets: int) -> AbstractContextManager[object]:
        """Return a block in which people see how far the reading of so many offsets, and the writing, are."""

    def fold(self, sources: Sequence[Source], folding: Folding, description: str) -> list[str]:
        """Read the sources and fold what they give; return the texts of the folding task, one a row.

        ``description`` says what runs, for people who look at it.
        """


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector begin at `_YOUNG_OBJECTS` new objects inside the block, not at some hundred.

    Messages are freed without it. It would visit each of them, and now and then all that is imported, which took much
    of the time of a task that reads.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _YOUNG_OBJECTS:
        # It is off, or rare already, perhaps for a block of another thread, which undoes it.
        yield
        return
    gc.set_threshold(_YOUNG_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
