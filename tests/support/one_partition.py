"""A cluster of one partition in a list, behind the interface that the Kafka side has of its client."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._kafka.client.reader import Readers, Slice, TailReader
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._marks import Int64s
from dedup_sdk.ids import Ids, digest_one
from tests.support.answering import Answering, OneTopicId, UndescribedClient

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from dedup_sdk._kafka.client.settings import Reset
    from dedup_sdk.ids._spec import ReadsKeys

TOPIC = "t"


@dataclass
class Cluster:
    """The log (an ID a record, None without one; its timestamp is its offset), and the group's commits of it.

    ``times``: timestamps (ms) of some offsets that are something else. ``writable``: whether the coordinator takes
    commits now. ``first``: where the log begins by now. ``topic_id`` is empty where the broker has none.
    ``undecided_from``: where an open transaction begins. ``ends``: leader epochs and where the log up to
    them ends; of others it is the log's end.
    """

    log: list[bytes | None] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    committed: TopicPartition | None = None
    writable: bool = True
    ends: dict[int, int] = field(default_factory=dict)
    undecided_from: int | None = None
    first: int = 0
    topic_id: str = "T"

    @property
    def decided(self) -> int:
        """The offset after the last record that a reader of committed ones may get."""
        return len(self.log) if self.undecided_from is None else min(self.undecided_from, len(self.log))

    def digests(self, start: int, end: int) -> list[bytes | None]:
        """The digests of some records."""
        return [None if each is None else digest_one(each) for each in self.log[start:end]]

    def timestamps(self, start: int, end: int) -> Int64s:
        """The timestamps (ms) of some records."""
        return np.asarray([self.times.get(offset, offset) for offset in range(start, end)], np.int64)


class ListReader(TailReader):
    """Reads the list."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """See `TailReader`; a few records a piece."""
        del spec
        assert end <= self._world.decided, "the reader would wait for records for ever"
        for first in range(start, end, 3):
            last = min(first + 3, end, len(self._world.log))
            if last <= first:
                return
            offsets = list(range(first, last))
            yield Slice(offsets, self._world.timestamps(first, last), self._world.digests(first, last), last)

    def bounds(self) -> tuple[int, int]:
        """See `TailReader`."""
        return self._world.first, self._world.decided

    def log_end(self) -> int:
        """See `TailReader`."""
        return len(self._world.log)

    def first_at(self, timestamp_ms: int) -> int | None:
        """See `TailReader`; a record's timestamp is its offset."""
        first = max(timestamp_ms, 0)
        return first if first < len(self._world.log) else None

    def same_until(self, offset: int, leader_epoch: int) -> Generator[None, None, int | None]:
        """See `TailReader`."""
        yield
        return min(offset, self._world.ends.get(leader_epoch, len(self._world.log)))

    def newest_before(self, end: int, start: int) -> Generator[None, None, int | None]:
        """See `TailReader`."""
        yield
        return end - 1 if end > start else None

    def close(self) -> None:
        """See `TailReader`."""


class ListClient(UndescribedClient):
    """A client of the list; asynchronous commits are answered when the test says so."""

    def __init__(self, cluster: Cluster) -> None:
        self._world = cluster
        self.readers = Readers(client_settings({"bootstrap.servers": "nowhere", "group.id": "g"}))
        self.requests = Answering()
        self.topics = OneTopicId(lambda: cluster.topic_id)
        self.unanswered: list[list[TopicPartition]] = []
        self.delivers = False

    def assign(self, partitions: list[TopicPartition], *, incremental: bool | None = None) -> None:
        """See `Client`."""
        del partitions, incremental
        self.delivers = False

    def pause(self, topic: str, partition: int) -> None:
        """See `Client`."""
        del topic, partition
        self.delivers = False

    def resume(self, topic: str, partition: int) -> None:
        """See `Client`."""
        del topic, partition
        self.delivers = True

    def seek(self, topic: str, partition: int, offset: int, *, leader_epoch: int | None = None) -> bool:
        """See `Client`."""
        del topic, partition, offset, leader_epoch
        return True

    def reassign(self, target: TopicPartition, others: list[TopicPartition]) -> bool:
        """See `Client`."""
        del target, others
        self.delivers = False
        return False

    def wake(self, partitions: list[TopicPartition]) -> None:
        """See `Client`."""

    def cluster_id(self) -> str:
        """See `Client`."""
        return "list"

    def committed(
        self, partitions: list[TopicPartition], timeout_s: float | None = None
    ) -> dict[tuple[str, int], TopicPartition]:
        """See `Client`."""
        del timeout_s
        held = self._world.committed
        return {
            (tp.topic, tp.partition): held or TopicPartition(tp.topic, tp.partition, -1001)
            for tp in partitions
        }

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition] | None:
        """See `Client`."""
        if asynchronous:
            self.unanswered.append(offsets)
            return None
        if not self._world.writable:
            raise KafkaException(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
        [self._world.committed] = offsets
        return offsets

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Client`."""
        del topic, partition
        return self._world.first, self._world.decided

    def log_end(self, topic: str, partition: int) -> int:
        """See `Client`."""
        del topic, partition
        return len(self._world.log)

    def edge(self, topic: str, partition: int, reset: Reset) -> int:
        """See `Client`."""
        del reset
        return self.bounds(topic, partition)[0]

    def first_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        """See `Client`."""
        del topic, partition
        return timestamp_ms if timestamp_ms < len(self._world.log) else None

    def tail_reader(self, topic: str, partition: int) -> TailReader:
        """See `Client`."""
        del topic, partition
        return ListReader(self._world)


def ids_of(cluster: Cluster, start: int, end: int) -> Ids:
    """The IDs that intake would read of some records."""
    digests = cluster.digests(start, end)
    return Ids(digests, {row: "absent" for row, digest in enumerate(digests) if digest is None})
