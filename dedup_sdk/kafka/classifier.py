"""From a batch of messages to the messages that the application is to see, in one pass."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress, repeat
from operator import itemgetter, ne
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import Message

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import Ids
from dedup_sdk.kafka.assignment import State
from dedup_sdk.kafka.fields import MessageFields
from dedup_sdk.kafka.interruption import guarded
from dedup_sdk.kafka.session import Session
from dedup_sdk.lane.chunk import OFFERED, Chunk
from dedup_sdk.marks import Int64s

_offset: Callable[[Any], Any] = Message.offset
_topic: Callable[[Any], Any] = Message.topic
_partition: Callable[[Any], Any] = Message.partition
_timestamp: Callable[[Any], Any] = Message.timestamp
_time: Callable[[Any], Any] = itemgetter(1)
_SHOWN = bytes(state == OFFERED for state in range(256))


class PartitionBatch(NamedTuple):
    """A chunk and the partition that it belongs to."""

    partition: Partition
    chunk: Chunk


class Classified(NamedTuple):
    """What became of a batch: the messages to deliver, in the batch's order, and the chunks they are in.

    ``rest`` are messages that were not judged, because of ``error``; what is before them stands. ``doubted``: partitions that begin
    anew, because their log is another one.
    """

    messages: list[Any]
    chunks: list[PartitionBatch]
    rest: list[Any]
    error: DedupError | None = None
    doubted: frozenset[tuple[str, int]] = frozenset()


class BatchClassifier:
    """Judges batches of messages; ``observing`` hides nothing."""

    def __init__(self, engine: Deduplicator, session: Session, *, observing: bool) -> None:
        self._engine = engine
        self._session = session
        self._observing = observing
        self._spec = engine.keys
        self._discard = engine.strategy.on_missing_id == "discard"
        self._fail = engine.strategy.on_missing_id == "fail"

    def classify(self, batch: list[Any]) -> Classified:
        """Judge messages without errors. Those of partitions that do not deliver are dropped: they come again.

        A run of one partition is judged whole or not at all.
        """
        ids = self._spec.digests(MessageFields(batch))
        offsets: list[int] = list(map(_offset, batch))
        topics, partitions = list(map(_topic, batch)), list(map(_partition, batch))
        count = len(batch)
        one = partitions.count(partitions[0]) == count and topics.count(topics[0]) == count
        runs = [_Run(topics[0], partitions[0], slice(0, count))] if one else _runs(topics, partitions)
        if self._fail and ids.missing and (lacking := self._lacking(batch, ids)) is not None:
            return self._up_to_missing(batch, ids, runs, offsets, lacking)
        timestamps = np.fromiter(map(_time, map(_timestamp, batch)), np.int64, count)
        columns = _Columns(batch, offsets, timestamps, ids)
        admitted: list[_Admitted] = []
        doubted: set[tuple[str, int]] = set()
        error, rest = None, []
        for run in runs:
            assigned = self._session.assigned.get((run.topic, run.partition))
            held = assigned.held if assigned is not None and assigned.state is State.ACTIVE else None
            if held is None:
                continue
            part = columns if one else columns.cut(run.rows)
            lane = held.lane
            other, at = lane.is_another_log(part.offsets, part.leader_epochs), None
            if not other:
                at = held.contradiction(part.offsets, part.timestamps, part.ids)
            if other or at is not None:
                self._session.doubt(run.topic, run.partition, contradicted_at=at)
                doubted.add((run.topic, run.partition))
                continue
            lane.reveals = self._observing
            try:
                chunks = guarded(
                    held, held.admit, part.offsets, part.timestamps, part.ids, part.messages,
                    discard_unkeyed=self._discard and not self._observing,
                )  # fmt: skip
            except DedupError as refusal:
                error, rest = refusal, batch[run.rows.start :]
                break
            if held.gathers:
                self._engine.refuse_crossing(held)
            lane.note_epoch(part.messages[-1].leader_epoch())
            admitted.append(_Admitted(held, part.messages, chunks))
        if self._engine.claims is not None and admitted:
            # What the batch is to deliver, all of it at once.
            self._engine.claims.admit([each.partition for each in admitted])
        judged: list[PartitionBatch] = []
        messages: list[Any] = []
        for held, of_run, chunks in admitted:
            judged += map(PartitionBatch, repeat(held), chunks)
            # Late records, if there are any, are a chunk of their own.
            states = chunks[0].states if len(chunks) == 1 else b"".join([chunk.states for chunk in chunks])
            whole = self._observing or states.count(OFFERED) == len(states)
            messages += of_run if whole else compress(of_run, states.translate(_SHOWN))
        return Classified(messages, judged, rest, error, frozenset(doubted))

    def _lacking(self, batch: list[Any], ids: Ids) -> int | None:
        """Return the first message without an ID in a topic where IDs are looked up, None without one."""
        window_of = self._engine.strategy.window_of
        return min((row for row in ids.missing if not window_of(batch[row].topic()).is_off), default=None)

    def _up_to_missing(
        self, batch: list[Any], ids: Ids, runs: list[_Run], offsets: list[int], first: int
    ) -> Classified:
        """Judge what lies before the ``first`` message without an ID; with that one in front, refuse."""
        if first:
            return self.classify(batch[:first])._replace(rest=batch[first:])
        try:
            self._engine.refuse_missing(ids, runs[0].topic, runs[0].partition, offsets)
        except DedupError as error:
            return Classified([], [], batch, error)
        raise AssertionError("a missing ID was not refused")

    def partition_of(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that delivers, None where it is not ours or comes up to date."""
        assigned = self._session.assigned.get((topic, partition))
        return assigned.held if assigned is not None and assigned.state is State.ACTIVE else None


class _Admitted(NamedTuple):
    """What was judged here, and is to be claimed in the shared memory."""

    partition: Partition
    messages: list[Any]
    chunks: list[Chunk]


class _Run(NamedTuple):
    """Rows of a batch that are of one partition, one after the other: a fetch brings them so."""

    topic: str
    partition: int
    rows: slice


def _runs(topics: list[str], partitions: list[int]) -> list[_Run]:
    count = len(partitions)
    starts = [
        0,
        *compress(
            range(1, count),
            map(ne, zip(topics, partitions, strict=False), zip(topics[1:], partitions[1:], strict=False)),
        ),
    ]
    return [
        _Run(topics[at], partitions[at], slice(at, end))
        for at, end in zip(starts, [*starts[1:], count], strict=True)
    ]


def _cut(ids: Ids, rows: slice) -> Ids:
    missing = {row - rows.start: why for row, why in ids.missing.items() if rows.start <= row < rows.stop}
    return Ids(ids.digests[rows], missing)


class _Columns(NamedTuple):
    """Messages and what is read of them, parallel."""

    messages: list[Any]
    offsets: list[int]
    timestamps: Int64s
    ids: Ids

    def leader_epochs(self) -> list[int | None]:
        """Return the leader epoch in which each was written, None where the broker does not say."""
        return [message.leader_epoch() for message in self.messages]

    def cut(self, rows: slice) -> _Columns:
        """Return some rows of every column."""
        return _Columns(self.messages[rows], self.offsets[rows], self.timestamps[rows], _cut(self.ids, rows))
