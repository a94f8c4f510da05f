"""The tasks of a small run, one after the other in this process.

Java and Spark take some five seconds to start, in which one process reads two million records. For each record their
shuffle costs as much CPU time as all that is done here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_backfill.progress import Meter, Progress, StageCount
from spark_backfill.workers import Folding, ReadTasks, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS: Final = 5_000_000
"""Offsets to read, and marks of a base, that are folded without Spark: of small records 14 s, and 0.8 GiB of memory."""
MOST_PARTITIONS: Final = 200
"""Each takes some 50 ms to plan, read and write, however small it is."""
MOST_BYTES: Final = 2**28
"""What may be in memory between reading and folding; Spark shuffles on disk."""
_BATCH_ROWS: Final = 50_000
_RECORDS: Final = "records"
"""The column of `spark_backfill.runs.BLOCK_SCHEMA`; blocks of a fold in offset order have none."""


class NeedsSparkError(Exception):
    """A history is too large for one process, or lies where only Spark reads it; nothing was written."""


class InProcess:
    """Runs them one after the other in this process, and keeps what they read in memory.

    ``tell`` gets how far it is.
    """

    def __init__(self, tell: Callable[[Progress], None] = lambda _seen: None) -> None:
        self.start_seconds = 0.0
        self._tell = tell
        self._meter = Meter(0)
        self._stage = StageCount(0, 0, 0, writes=False)
        self._records = 0

    def session(self) -> SparkSession:
        """Raise `NeedsSparkError`: there is none."""
        raise NeedsSparkError

    def expect(self, rows: int) -> None:
        """Raise `NeedsSparkError` for more than `MOST_ROWS`."""
        if rows > MOST_ROWS:
            raise NeedsSparkError

    def tasks_at_a_time(self) -> int:
        """Return one."""
        return 1

    @contextmanager
    def watched(self, offsets: int) -> Iterator[None]:
        """Tell how many of the offsets are read before each task, and with each batch that it gives."""
        self._meter, self._records = Meter(offsets), 0
        yield

    def fold(self, sources: Sequence[Source], folding: Folding, _description: str) -> list[str]:
        """Read, sort and fold in memory; raises `NeedsSparkError` for more than `MOST_BYTES`."""
        batches = list[pa.RecordBatch]()
        size = 0
        tasks, done = sum(each.tasks for each in sources if isinstance(each, ReadTasks)), 0
        for source in sources:
            if not isinstance(source, ReadTasks):
                raise NeedsSparkError
            for batch in source.run(self._numbers(source.tasks, done, tasks)):
                batches.append(batch)
                size += batch.nbytes
                if size > MOST_BYTES:
                    raise NeedsSparkError
                if _RECORDS in batch.schema.names:
                    self._records += sum(batch.column(_RECORDS).to_pylist())
                self._look(self._stage)
            done += source.tasks
        self._look(StageCount(1, folding.slots, 0, writes=True))
        if not batches:
            # All offsets are of aborted records, or of markers.
            return []
        table = pa.Table.from_batches(batches)
        del batches
        if folding.order:
            table = table.sort_by([(column, "ascending") for column in folding.order])
        folded = folding.task(table.to_batches(max_chunksize=_BATCH_ROWS))
        return [text for batch in folded for text in batch.column(0).to_pylist()]

    def _look(self, stage: StageCount) -> None:
        self._stage = stage
        seen = self._meter.look([stage], time.monotonic(), records=self._records)
        if seen is not None and seen.tasks:
            self._tell(seen)

    def _numbers(self, count: int, done: int, tasks: int) -> Iterator[pa.RecordBatch]:
        for number in range(count):
            self._look(StageCount(0, tasks, done + number, writes=False))
            yield pa.RecordBatch.from_arrays([pa.array([number], pa.int64())], ["id"])
