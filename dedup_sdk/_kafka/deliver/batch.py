"""The batch that was judged last: its messages in order, and a cursor that tells which of them the application got.

Each call here needs the consumer's lock, with one exception: the polling thread takes the first of `Batch.ready`
without it. So nobody iterates over that queue, and messages leave it by ``pop``: the thread that pops a message owns
it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import groupby
from typing import Any, Final

from dedup_sdk._core.flight import RecordRef
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.fields import coordinates
from dedup_sdk._kafka.deliver.classifier import Classified, PartitionBatch, Span
from dedup_sdk._observe import Counters, of_partition

_MOST_TO_FREE: Final = 10_000
"""So many completed messages wait for the next batch, at most, to be freed with it."""


class Batch:
    """The messages of a batch, from the first to the last: ended, given, ready.

    ``ready`` are those that the application gets next; `given` and `ended` are cursors into ``messages``.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self.counts = True
        """Whether given messages count as delivered here; a worker session counts those whose handlers it calls."""
        self.ready: deque[Any] = deque()
        self.messages: list[Any] = []
        self.chunks: list[PartitionBatch] = []
        self.ended = 0
        """How many messages, from the first one on, were completed because the application asked for more."""
        self.taken = 0
        """Where `given` stood at the end of the last `take`: the polling thread may have taken more since."""
        # A finished batch is freed when the next one is here, while garbage collection is paused: a thousand freed
        # messages balance the thousand new ones, so that they trigger no collection.
        self._previous: tuple[list[Any], list[PartitionBatch]] = ([], [])
        self._to_free: list[Any] = []
        """Messages that were completed by a call: freed like a finished batch."""
        # The polling thread takes messages without the lock, so that they are counted later: at the next call for
        # messages, or when somebody looks.
        self._spans: deque[Span] = deque()
        self._uncounted = 0
        """How many messages, from the end on, are not counted as delivered; `_spans` says of which partitions."""

    def fill(self, judged: Classified) -> None:
        """Hold a judged batch; the one before is finished."""
        self.messages, self.chunks, self.ended, self.taken = judged.messages, judged.chunks, 0, 0
        self._previous, self._to_free = ([], []), []
        self.ready.clear()
        self._spans, self._uncounted = deque(judged.spans), len(judged.messages)
        self.ready.extend(judged.messages)

    def fill_given(self, message: Any, judged: PartitionBatch) -> None:
        """Hold one message, which the application gets at once."""
        self.messages, self.chunks, self.ended, self.taken = [message], [judged], 0, 1
        self._to_free = []

    @property
    def given(self) -> int:
        """How many messages the application got."""
        return len(self.messages) - len(self.ready)

    def first_ready(self, topic: str, partition: int) -> int | None:
        """Return the offset of a partition's first ready message, None if it has none."""
        # The ready messages of a partition are in its order.
        offsets = (m.offset() for m in list(self.ready) if m.partition() == partition and m.topic() == topic)
        return next(offsets, None)

    def place(self, message: Any) -> RecordRef | None:
        """Return the row of a message, None if it is not in the batch."""
        offset = message.offset()
        for partition, chunk in self.chunks:
            same = (partition.topic, partition.partition) == coordinates(message)
            row = chunk.row_of(offset) if same else None
            if row is not None:
                return RecordRef(chunk, row)
        return None

    def take(self, count: int) -> list[Any]:
        """Give at most ``count`` messages, and remember where the call ended."""
        ready = self.ready
        if len(ready) <= count:
            out = list(ready)
            ready.clear()
        else:
            out = [ready.popleft() for _ in range(count)]
        self.taken = len(self.messages) - len(ready)
        return out

    def end_given(self, given: int | None = None) -> list[Any]:
        """Count the given messages (or the first ``given``) as ended; return those that were not before."""
        self.count()
        given = self.given if given is None else given
        ended, self.ended = self.messages[self.ended : given], given
        return ended

    def finish(self) -> list[PartitionBatch]:
        """Count the whole batch as ended; return its chunks. Its messages are freed when the next one is here."""
        if self._uncounted:
            self.count()
        chunks = self.chunks
        self._previous = (self.messages, chunks)
        self.messages, self.chunks, self.ended, self.taken = [], [], 0, 0
        return chunks

    def free_later(self, ended: list[Any]) -> None:
        """Free messages that a call has completed when the next batch is here, and not one by one before."""
        if len(self._to_free) >= _MOST_TO_FREE:
            self._to_free = []
        self._to_free += ended

    def free(self, *, idle: bool) -> None:
        """Free these messages now if no batch is on its way."""
        if idle:
            self._to_free = []

    def drop(self) -> None:
        """Hold no batch any more."""
        self.count()
        self.ready.clear()
        self.messages, self.chunks, self.ended, self.taken = [], [], 0, 0
        self._count_from([])

    def withdraw(self, chosen: Callable[[Any], bool]) -> list[Any]:
        """Take the ready messages for which ``chosen`` is true out of the batch; return them."""
        given, ready = self._empty()
        withdrawn = [message for message in ready if chosen(message)]
        gone = set(map(id, withdrawn))
        left = [message for message in ready if id(message) not in gone]
        self.messages = given + left
        self._refill(left)
        return withdrawn

    def forget(self, partitions: Collection[Coordinates]) -> None:
        """Drop all messages, and chunks, of partitions."""
        given, ready = self._empty()
        self.taken = len(_without(given[: self.taken], partitions))
        self.ended = len(_without(given[: self.ended], partitions))
        left = _without(ready, partitions)
        self.messages = _without(given, partitions) + left
        self.chunks = [
            each for each in self.chunks if (each.partition.topic, each.partition.partition) not in partitions
        ]
        self._refill(left)

    def _empty(self) -> tuple[list[Any], list[Any]]:
        """Empty the ready queue; return the given messages, and those that were ready.

        One by one, because another thread may poll meanwhile, and each message must go to one side only. From the end:
        the other thread takes the first, so the messages taken here are always the end of the batch.
        """
        ready: deque[Any] = deque()
        with suppress(IndexError):
            while True:
                ready.appendleft(self.ready.pop())
        self.count(len(ready))
        return self.messages[: len(self.messages) - len(ready)], list(ready)

    def _refill(self, ready: list[Any]) -> None:
        self._count_from(ready)
        self.ready.extend(ready)

    # --- counting ------------------------------------------------------------------------------------------------

    def count(self, ready: int | None = None) -> None:
        """Count the messages as delivered that the application got since the last time."""
        left = len(self.ready) if ready is None else ready
        delivered, self._uncounted = self._uncounted - left, left
        while delivered > 0 and self._spans:
            counters, size = self._spans.popleft()
            if size > delivered:
                self._spans.appendleft((counters, size - delivered))
                size = delivered
            delivered -= size
            if self.counts:
                counters.delivered += size

    def _count_from(self, ready: list[Any]) -> None:
        """Note that the ready messages are these now."""
        spans = [
            (of_partition(self._counters, *place), len(list(each)))
            for place, each in groupby(ready, coordinates)
        ]
        self._spans, self._uncounted = deque(spans), len(ready)


def grouped(messages: Iterable[Any]) -> dict[Coordinates, list[Any]]:
    """Return messages by topic and partition, in their order."""
    groups: dict[Coordinates, list[Any]] = {}
    for message in messages:
        groups.setdefault(coordinates(message), []).append(message)
    return groups


def _without(messages: list[Any], partitions: Collection[Coordinates]) -> list[Any]:
    return [message for message in messages if coordinates(message) not in partitions]
