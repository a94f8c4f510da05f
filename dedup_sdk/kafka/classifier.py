"""From a batch of messages to the messages that the application is to see, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import ne
from typing import Any, NamedTuple

from dedup_sdk.core.flight import OFFERED, Chunk
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import Ids
from dedup_sdk.kafka.assignment import State
from dedup_sdk.kafka.fields import MessageFields, coordinates_of, offsets_of, timestamps_ms
from dedup_sdk.kafka.session import Session
from dedup_sdk.marks import Int64s

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
        offsets = offsets_of(batch)
        runs = _runs(batch)
        lacking = self._lacking(batch, ids) if self._fail and ids.missing else None
        if lacking is not None:
            return self._up_to_missing(batch, ids, runs, offsets, lacking)
        columns = _Columns(batch, offsets, timestamps_ms(batch), ids)
        judged: list[PartitionBatch] = []
        messages: list[Any] = []
        claims = self._engine.claims
        admitted: list[_Admitted] = []
        doubted: set[tuple[str, int]] = set()
        for run in runs:
            held = self.partition_of(run.topic, run.partition)
            if held is None:
                continue
            part = columns if len(runs) == 1 else columns.cut(run.rows)
            flight = held.flight
            if flight.is_another_log(part.offsets, part.leader_epochs):
                self._session.doubt(run.topic, run.partition)
                doubted.add((run.topic, run.partition))
                continue
            other = held.contradiction(part.offsets, part.timestamps, part.ids)
            if other is not None:
                self._session.doubt(run.topic, run.partition, contradicted_at=other)
                doubted.add((run.topic, run.partition))
                continue
            try:
                chunks = held.admit(
                    part.offsets,
                    part.timestamps,
                    part.ids,
                    part.messages,
                    discard_unkeyed=self._discard and not self._observing,
                    reveals=self._observing,
                )
            except DedupError as error:
                messages += self._claimed(admitted)
                return Classified(messages, judged, batch[run.rows.start :], error, frozenset(doubted))
            except Exception:
                held.note_failure()
                raise
            if held.gates:
                self._engine.look_across(held)
            flight.note_epoch(part.messages[-1].leader_epoch())
            judged += [PartitionBatch(held, chunk) for chunk in chunks]
            if claims is None:
                messages += self._deliver(part.messages, chunks)
            else:
                admitted.append(_Admitted(held, part.messages, chunks))
        messages += self._claimed(admitted)
        return Classified(messages, judged, [], None, frozenset(doubted))

    def _claimed(self, admitted: list[_Admitted]) -> list[Any]:
        """Claim what a batch is to deliver in the shared memory, all of it at once; return what may be delivered now."""
        claims = self._engine.claims
        if claims is None or not admitted:
            return []
        claims.admit([each.partition for each in admitted])
        return [message for each in admitted for message in self._deliver(each.messages, each.chunks)]

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

    def _deliver(self, messages: list[Any], chunks: Sequence[Chunk]) -> list[Any]:
        if self._observing:
            return messages
        # Late records, if there are any, are a chunk of their own.
        states = chunks[0].states if len(chunks) == 1 else b"".join([chunk.states for chunk in chunks])
        if states.count(OFFERED) == len(states):
            return messages
        return list(compress(messages, states.translate(_SHOWN)))

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


def _runs(batch: list[Any]) -> list[_Run]:
    topics, partitions = coordinates_of(batch)
    count = len(batch)
    if partitions.count(partitions[0]) == count and topics.count(topics[0]) == count:
        return [_Run(topics[0], partitions[0], slice(0, count))]
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
