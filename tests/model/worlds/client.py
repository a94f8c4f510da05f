"""The Kafka side's client and reader over a `Broker`."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._kafka.client.fields import MessageFields
from dedup_sdk._kafka.client.reader import HistoryGoneError, Readers, Slice, TailReader
from dedup_sdk._kafka.client.settings import Reset, client_settings
from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids._spec import ReadsKeys
from tests.model.worlds.broker import TOPIC, Broker, Entry
from tests.support.answering import Answering, OneTopicId, UndescribedClient

_SLICE = 5


@dataclass
class Sent:
    """A commit on its way: offsets, and the generation that each was sent in.

    ``taken`` once the coordinator has seen it.
    """

    offsets: list[TopicPartition]
    generations: list[int]
    taken: bool | None = None


class OutOfRange:
    """The client's event for an offset that the log does not have."""

    def __init__(self, partition: int, reason: str) -> None:
        self._partition, self._reason = partition, reason

    def topic(self) -> str:
        """As a message."""
        return TOPIC

    def partition(self) -> int:
        """As a message."""
        return self._partition

    def error(self) -> Any:
        """As a message."""
        return KafkaError(KafkaError._AUTO_OFFSET_RESET, self._reason)


def digests_of(entries: Iterable[Entry], keys: ReadsKeys) -> Sequence[bytes | None]:
    """The digests that travel in the place of the IDs of records."""
    return keys.digests(MessageFields([entry.message(0) for entry in entries])).digests


class ModelReader(TailReader):
    """Reads a log, without aborted records unless ``uncommitted``."""

    def __init__(self, broker: Broker, partition: int, *, uncommitted: bool) -> None:
        self._log, self._uncommitted = broker.logs[partition], uncommitted

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """See `TailReader`: a few records a piece, ending on position."""
        position, epoch = start, None
        while position < end:
            if epoch is not None and self._log.end_of(epoch) < position:
                raise RecoveryError(
                    f"the replay was refused: Partition log truncation detected at {position}"
                )
            if position < self._log.start:
                # Retention took it meanwhile: auto.offset.reset=error has the client say so.
                raise HistoryGoneError(f"the replay was refused: {position} is out of range")
            entries = self._log.read(position, _SLICE, aborted=self._uncommitted)
            position = min(end, entries[-1].offset + 1 if len(entries) == _SLICE else self._log.end)
            epoch = entries[-1].epoch if entries else epoch
            within = [entry for entry in entries if entry.offset < end]
            times = np.asarray([entry.timestamp_ms for entry in within], np.int64)
            yield Slice(
                [entry.offset for entry in within],
                times,
                digests_of(within, spec),
                position,
                within[-1].epoch if within else None,
            )
            if position >= self._log.end:
                return

    def bounds(self) -> tuple[int, int]:
        """See `TailReader`."""
        return self._log.start, self._log.end

    def log_end(self) -> int:
        """See `TailReader`: the model's brokers have told of ended transactions only."""
        return self._log.end

    def first_at(self, timestamp_ms: int) -> int | None:
        """See `TailReader`."""
        found = (entry.offset for entry in self._log.entries if entry.timestamp_ms >= max(timestamp_ms, 0))
        return next(found, None)

    def same_until(self, offset: int, leader_epoch: int) -> Generator[None, None, int | None]:
        """See `TailReader`."""
        yield
        return min(offset, self._log.end_of(leader_epoch))

    def newest_before(self, end: int, start: int) -> Generator[None, None, int | None]:
        """See `TailReader`: among the last few records before ``end``."""
        yield
        entries = [entry for entry in self._log.read(start, len(self._log.entries)) if entry.offset < end]
        return max((max(entry.timestamp_ms, 0) for entry in entries[-20:]), default=None)

    def close(self) -> None:
        """See `TailReader`."""


class ModelClient(UndescribedClient):
    """A client of the broker. Asynchronous commits wait in ``unanswered`` until the history has them arrive.

    ``in_time``: whether the coordinator takes the last commits of a member that leaves. Else the deadline has passed by
    the clock that the histories turn.
    """

    def __init__(self, broker: Broker, group: str, *, in_time: bool) -> None:
        self._broker, self._group, self._in_time = broker, group, in_time
        self.generations: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self.epochs: dict[int, int | None] = {}
        self.paused: set[int] = set()
        self.readers, self.requests = Readers(client_settings({"group.id": group})), Answering()
        self.topics = OneTopicId(lambda: broker.topic_id)
        self.unanswered: list[Sent] = []
        self.uncommitted = False

    # --- reading ---------------------------------------------------------------------------------------------------

    def fetch(self, partition: int, count: int) -> list[Message] | OutOfRange:
        """Read on, or say why not."""
        log, position = self._broker.logs[partition], self.positions[partition]
        epoch = self.epochs.get(partition)
        if epoch is not None and log.end_of(epoch) < position:
            self.paused.add(partition)
            end = log.end_of(epoch)
            return OutOfRange(
                partition,
                f"Partition log truncation detected at offset {position}: broker end offset is {end}",
            )
        if not log.start <= position <= log.end:
            self.paused.add(partition)
            return OutOfRange(partition, "Offset out of range")
        entries: list[Entry] = log.read(position, count)
        if entries:
            self.positions[partition], self.epochs[partition] = entries[-1].offset + 1, entries[-1].epoch
        return [entry.message(partition) for entry in entries]

    def assign(self, partitions: list[TopicPartition], *, incremental: bool | None = None) -> None:
        """See `Client`."""
        del incremental
        for tp in partitions:
            self.positions[tp.partition], self.epochs[tp.partition] = tp.offset, None
            self.paused.add(tp.partition)

    def pause(self, topic: str, partition: int) -> None:
        """See `Client`."""
        del topic
        self.paused.add(partition)

    def resume(self, topic: str, partition: int) -> None:
        """See `Client`."""
        del topic
        self.paused.discard(partition)

    def seek(self, topic: str, partition: int, offset: int, *, leader_epoch: int | None = None) -> bool:
        """See `Client`."""
        del topic
        self.positions[partition], self.epochs[partition] = offset, leader_epoch
        return True

    def reassign(self, target: TopicPartition, others: list[TopicPartition]) -> bool:
        """See `Client`."""
        del others
        self.assign([target])
        return False

    def wake(self, partitions: list[TopicPartition]) -> None:
        """See `Client`."""

    # --- committing ------------------------------------------------------------------------------------------------

    def committed(
        self, partitions: list[TopicPartition], timeout_s: float | None = None
    ) -> dict[tuple[str, int], TopicPartition]:
        """See `Client`."""
        del timeout_s
        held = self._broker.committed
        return {
            (tp.topic, tp.partition): held.get(
                (self._group, tp.partition), TopicPartition(tp.topic, tp.partition, -1001)
            )
            for tp in partitions
        }

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> list[TopicPartition] | None:
        """See `Client`."""
        sent = Sent(offsets, [self.generations.get(tp.partition, 0) for tp in offsets])
        if asynchronous:
            self.unanswered.append(sent)
            return None
        # A coordinator takes the commits of one client in order.
        for before in self.unanswered:
            self.arrive(before)
        if not self.arrive(sent):
            raise KafkaException(KafkaError(KafkaError.ILLEGAL_GENERATION))
        return offsets

    def with_seals(self, offsets: Iterable[TopicPartition]) -> list[TopicPartition]:
        """See `Client`."""
        return list(offsets)

    def commit_until(
        self, offsets: list[TopicPartition], until: float, *, in_any_case: bool = False
    ) -> list[TopicPartition] | None:
        """See `Client`."""
        if not self._in_time:
            return super().commit_until(offsets, until, in_any_case=in_any_case)
        return self.commit(offsets, asynchronous=False) or []

    def arrive(self, sent: Sent) -> bool:
        """Have the coordinator take a commit, or refuse it."""
        if sent.taken is None:
            pairs = zip(sent.generations, sent.offsets, strict=True)
            answers = [self._broker.commit(self._group, generation, tp) for generation, tp in pairs]
            sent.taken = all(answers)
        return sent.taken

    # --- asking ----------------------------------------------------------------------------------------------------

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """See `Client`."""
        del topic
        return self._broker.logs[partition].start, self._broker.logs[partition].end

    def log_end(self, topic: str, partition: int) -> int:
        """See `Client`."""
        return self.bounds(topic, partition)[1]

    def edge(self, topic: str, partition: int, reset: Reset) -> int:
        """See `Client`."""
        low, high = self.bounds(topic, partition)
        return low if reset == "earliest" else high

    def tail_reader(self, topic: str, partition: int) -> TailReader:
        """See `Client`."""
        del topic
        return ModelReader(self._broker, partition, uncommitted=self.uncommitted)

    def cluster_id(self) -> str:
        """See `Client`."""
        return "model"
