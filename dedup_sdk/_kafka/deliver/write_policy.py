"""When completed records are written to the key stores."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import Partition

MOST_UNWRITTEN: Final = 20_000
"""The most completed records of a partition in memory with ``durability="commit"``; above it they are written."""

Durability = Literal["record", "batch", "commit"]


class WritePolicy:
    """``durability`` of `DedupConsumer`; ``commit`` leaves the records to the next commit, which writes them first."""

    def __init__(self, engine: Deduplicator, durability: Durability) -> None:
        self._partitions = engine.partitions
        self._durability: Final = durability
        self.defers: Final = durability == "batch"
        """Whether `write_all` writes the records that no call has named, e.g. when the application asked for more."""

    def write(self, partitions: Iterable[Partition]) -> None:
        """Write the completed records of these partitions: calls that named them have completed them."""
        for partition in partitions:
            if self._durability != "commit" or partition.flight.unwritten >= MOST_UNWRITTEN:
                partition.persist()

    def write_all(self) -> None:
        """Write what is completed and not written yet."""
        for partition in self._partitions.values():
            if partition.started and partition.flight.is_dirty:
                self.write([partition])
