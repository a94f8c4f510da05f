"""Workers that import what their tasks need while Spark still plans the first of them.

To import it takes a worker some two seconds, and Spark takes as long, on one core, to plan its first query.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_backfill.pieces import read_all_pieces
from spark_backfill.slot_writer import SlotWriter

NEEDED = (read_all_pieces, SlotWriter)
"""With them comes all that tasks use; a worker that runs `_touch` imports this module."""


def warm_up(session: SparkSession) -> None:
    """Have as many workers as run at a time begin, on a thread of its own; where that fails the tasks themselves do so."""
    threading.Thread(target=_begin, args=(session,), name="dedup-warm-up", daemon=True).start()


def _begin(session: SparkSession) -> None:
    with suppress(Exception):
        context = session.sparkContext
        count = context.defaultParallelism
        context.parallelize(range(count), count).foreachPartition(_touch)


def _touch(numbers: Iterable[int]) -> None:
    # Arrow looks for pandas when it makes its first array, and imports it.
    pa.array(list(numbers), pa.int64())
