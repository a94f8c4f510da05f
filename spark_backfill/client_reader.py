"""Reading Kafka with confluent-kafka: in one Python process rows are read, digested and packed.

Rows do not pass through the JVM one by one, no jar has to be found, and the IDs come from the very code of the
consumer. Spark's own connector is half as fast, and computes IDs of its own. A Spark data source in Python would do
the same with one more Python process, which plans it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from dedup_sdk._kafka.client.reader import Readers, Slice, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids._spec import ReadsKeys
from spark_backfill.offset_range import Bounds
from spark_backfill.rows import RowKeys, Wanted, rows_batch

LEAST_OFFSETS: Final = 250_000
"""A task of fewer costs more to begin than it saves."""
MOST_OFFSETS: Final = 4_000_000
"""Offsets to read again when a task fails."""
_TASKS_A_CORE: Final = 2
PATIENCE_S: Final = 300.0
"""Seconds for which a broker may be silent; then the task fails, and Spark tries it again elsewhere."""


class Range(NamedTuple):
    """Offsets ``[begin, end)`` of a partition, read by one task."""

    partition: int
    begin: int
    end: int


def plan_ranges(bounds: Bounds, parallelism: int) -> tuple[Range, ...]:
    """Cut the offsets to read into ranges of about equal size.

    There are a few for each of the ``parallelism`` tasks that run at a time.
    """
    total = sum(end - begin for begin, end in bounds.values())
    size = min(max(-(-total // (parallelism * _TASKS_A_CORE)), LEAST_OFFSETS), MOST_OFFSETS)
    ranges = []
    for partition, (first, high) in bounds.items():
        count = -(-(high - first) // size)
        edges = [first + (high - first) * number // count for number in range(count)] + [high]
        ranges += [Range(partition, begin, end) for begin, end in pairwise(edges)]
    return tuple(ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRows:
    """A function for ``mapInArrow``: numbers of ranges in, their rows (`spark_backfill.rows`) out.

    ``settings`` are librdkafka's, bootstrap servers among them. Only committed records are read. Raises
    `RecoveryError` in the task where a range is not in the log any more, the broker refuses, or is silent for
    ``patience_s``.
    """

    settings: Mapping[str, str]
    topic: str
    wanted: Wanted
    ranges: tuple[Range, ...]
    patience_s: float = PATIENCE_S

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ranges."""
        keys = RowKeys(self.wanted.spec, self.wanted.group)
        with closing(_readers(self.settings)) as readers:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    wanted = self.ranges[number]
                    for block in _slices(readers, self.topic, wanted, keys, self.patience_s):
                        yield rows_batch(
                            self.wanted,
                            np.full(len(block.offsets), wanted.partition),
                            np.asarray(block.offsets, np.int64),
                            block.timestamps,
                            block.digests,
                            keys=keys,
                            key_column=lambda: pa.array(keys.fields.keys(), pa.binary()),
                        )


def _readers(settings: Mapping[str, str]) -> Readers:
    config: dict[str, Any] = {
        "group.id": "dedup-backfill",
        **settings,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
    }
    return Readers(client_settings(config))


def _slices(
    readers: Readers, topic: str, wanted: Range, keys: ReadsKeys, patience_s: float
) -> Iterator[Slice]:
    """Yield a range block by block, up to its end."""
    position, heard = wanted.begin, time.monotonic()
    with closing(TailReader(readers, topic, wanted.partition)) as reader:
        for block in reader.slices(wanted.begin, wanted.end, keys):
            if block is not None:
                position, heard = block.end, time.monotonic()
                yield block
            elif time.monotonic() - heard > patience_s:
                raise RecoveryError(
                    f"{topic}[{wanted.partition}] gave nothing from offset {position} on for {patience_s:g} s: is "
                    "its leader up? Run again when it is"
                )
    if position < wanted.end:
        raise RecoveryError(
            f"{topic}[{wanted.partition}] was cut while it was read: it ends at offset {position}, and was to be read "
            f"up to {wanted.end}; reset the group's offsets and run again"
        )
