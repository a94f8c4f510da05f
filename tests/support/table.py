"""A table of messages that are out, over real partitions and without a client: records come when the test says so."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from confluent_kafka import Message

from dedup_sdk import Lookup, Window, header
from dedup_sdk._core.flight import OFFERED
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.client.guards import CallbackErrors, ClientLock, Interruption, Steps
from dedup_sdk._kafka.deliver.classifier import Classified, PartitionBatch
from dedup_sdk._kafka.deliver.completion import ByName, ByOffsets, OnNextCall
from dedup_sdk._kafka.deliver.delivery import CompletionPolicy, Delivery
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk._kafka.deliver.write_policy import WritePolicy
from dedup_sdk.ids import Ids
from tests.support.marks import digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dedup_sdk._engine.partition import Partition

TOPIC: Final = "orders"
POLICIES: Final = ("on next call", "by offsets", "only stored", "by name")
_WINDOW_MS: Final = 10
_APART_MS: Final = 1_000
_NOW_S: Final = 1_000_000.0


class Record(NamedTuple):
    """A record of the log: its partition and its ID."""

    partition: int
    name: str


def policy_of(delivery: Delivery, kind: str) -> CompletionPolicy:
    """Return a completion policy by its name."""
    if kind == "on next call":
        return OnNextCall(delivery)
    return ByName(delivery) if kind == "by name" else ByOffsets(delivery, only_stored=kind == "only stored")


class Table:
    """A `Delivery` with its `InHand`, and the log of two partitions.

    The timestamps of two records are always further apart than the window. So a record whose ID is in flight is held
    back, and is offered by itself when that ID has ended.
    """

    def __init__(self, policy: str, kind: type[Delivery] = Delivery) -> None:
        dedup = Lookup(id=header("dedup-id"), window=Window(milliseconds=_WINDOW_MS))
        self.engine = Deduplicator(dedup, clock=lambda: _NOW_S)
        self.log: dict[int, list[str]] = {0: [], 1: []}
        for partition in self.log:
            self.engine.open(TOPIC, partition, low=0, committed=0)
        self.delivery = kind(
            lambda topic, number: self.engine.partitions.get((topic, number)), self.engine.counters
        )
        self.delivery.use(policy_of(self.delivery, policy))
        session = SimpleNamespace(assigned=self.engine.partitions, is_current=self._is_current)
        handover = SimpleNamespace(session=session, delivery=self.delivery, attach=lambda _: None)
        interruption = Interruption()
        steps = Steps(ClientLock(interruption.note), interruption, CallbackErrors(interruption.note))
        writes = WritePolicy(self.engine, "batch")
        self.in_hand = InHand(self.engine, handover, writes, steps, observing=False)  # type: ignore[arg-type]
        self.interruption = interruption

    def _is_current(self, message: Message) -> bool:
        found = self.partition(number_of(message)).flight.place(offset_of(message))
        return found is None or found.chunk.items[found.row] is message

    def partition(self, number: int) -> Partition:
        """Return an open partition."""
        return self.engine.partitions[TOPIC, number]

    def write(self, *records: Record) -> None:
        """Append records to the log."""
        for record in records:
            self.log[record.partition].append(record.name)

    def read(self, order: Sequence[int]) -> Classified:
        """Judge the next record of each of these partitions, in this order; a partition without one is left out."""
        judged = Classified([], [], [], [])
        for number, group in groupby(order):
            partition = self.partition(number)
            start = partition.flight.position
            names = self.log[number][start : start + len(list(group))]
            if not names:
                continue
            offsets = list(range(start, start + len(names)))
            times = np.array([_APART_MS * offset for offset in offsets], np.int64)
            ids = Ids([digest(name) for name in names], {})
            items = [Message(topic=TOPIC, partition=number, offset=offset) for offset in offsets]
            before = len(judged.messages)
            for chunk in partition.admit(offsets, times, ids, items, discard_unkeyed=False):
                judged.chunks.append(PartitionBatch(partition, chunk))
                judged.messages.extend(
                    item for item, state in zip(chunk.items, chunk.states, strict=True) if state == OFFERED
                )
            judged.spans.append((partition.own_counters, len(judged.messages) - before))
        return judged

    def deliver_one(self, number: int) -> list[Any]:
        """Judge the next record of a partition by itself, and deliver it; nothing if it must be judged with others."""
        partition = self.partition(number)
        start = partition.flight.position
        if start >= len(self.log[number]):
            return []
        message = Message(topic=TOPIC, partition=number, offset=start)
        found = partition.admit_one(start, _APART_MS * start, digest(self.log[number][start]), message)
        if found is None:
            return []
        return self.delivery.deliver_one(message, PartitionBatch(partition, found.chunk))

    def reopen(self, number: int) -> None:
        """Open a partition again, from its store, at the first record that is not completed."""
        partition = self.partition(number)
        partition.persist()
        high = partition.flight.high
        self.engine.lose(TOPIC, number)
        self.engine.open(TOPIC, number, low=0, committed=high)


def number_of(message: Message) -> int:
    """Return the partition of a message."""
    number = message.partition()
    assert number is not None
    return number


def offset_of(message: Message) -> int:
    """Return the offset of a message."""
    offset = message.offset()
    assert offset is not None
    return offset
