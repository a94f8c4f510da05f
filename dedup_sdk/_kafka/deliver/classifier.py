"""Judges batches of messages: their partitions' memories decide, and each message becomes a row of a chunk.

batch
    messages that are judged together, in one pass. A message that was fetched with at most 11 others is a batch of its
    own if only its ID decides (`BatchClassifier.judge_one`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from itertools import compress, repeat
from operator import itemgetter, ne
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from confluent_kafka import Message

from dedup_sdk._core.flight import OFFERED, Chunk
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import AnotherLog, Partition
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.assignment import Recovered, State
from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.fields import MessageFields, headers_of
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._marks import Int64s
from dedup_sdk._observe import PartitionCounters
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import Ids
from dedup_sdk.ids._columns import ReadOnce

T = TypeVar("T")

logger = logging.getLogger("dedup_sdk")

_offset: Callable[[Any], Any] = Message.offset
_topic: Callable[[Any], Any] = Message.topic
_partition: Callable[[Any], Any] = Message.partition
_timestamp: Callable[[Any], Any] = Message.timestamp
_time: Callable[[Any], Any] = itemgetter(1)
Span = tuple[PartitionCounters, int]
_SHOWN = bytes(state == OFFERED for state in range(256))


class PartitionBatch(NamedTuple):
    """A chunk and its partition."""

    partition: Partition
    chunk: Chunk


class Classified(NamedTuple):
    """A judged batch: the messages to deliver, in the batch's order, and their chunks.

    ``spans``: how many adjacent messages are of one partition, in the same order, with the counters of that partition.
    ``rest`` are messages that were not judged, because of ``error``; the verdicts before them stand. ``doubted``:
    partitions that begin anew, because their log is another one.
    """

    messages: list[Any]
    chunks: list[PartitionBatch]
    spans: list[Span]
    rest: list[Any]
    error: DedupError | None = None
    doubted: frozenset[tuple[str, int]] = frozenset()


class IdWatch(Protocol):
    """Looks at the IDs of batches, to warn of a spec that does not fit the messages."""

    @property
    def is_looking(self) -> bool:
        """Whether it looks also at a batch in which no ID is missing, and no function of the application failed."""

    def note(self, topics: Sequence[str], messages: Sequence[Any], ids: Ids, fields: ReadOnce) -> None:
        """Take a batch into account: the topic, the ID and the fields of each message."""

    def look(self, ending: Collection[str]) -> None:
        """Warn where it is time, or partitions of topics are ``ending``."""


class BatchClassifier:
    """Judges batches of messages; if ``observing``, nothing is hidden.

    ``watch`` makes the one who looks at IDs: at once if they are made of keys, else when the first ID is missing.
    """

    def __init__(
        self, engine: Deduplicator, session: Session, *, observing: bool, watch: Callable[[], IdWatch]
    ) -> None:
        self._engine = engine
        self._session = session
        self.observing = observing
        self._spec = engine.keys
        self._discard = engine.strategy.on_missing_id == "discard"
        self._fail = engine.strategy.on_missing_id == "fail"
        self._make_watch = watch
        self._watch = watch() if "key" in engine.keys.needs else None
        self._read_digest = engine.keys.digest_reader()
        # A function of the application is called once for each message, and a shared memory once for each batch.
        self._one_by_one = not (observing or engine.gatekeeper is not None or "record" in engine.keys.needs)

    def judge_one(self, message: Any) -> PartitionBatch | None:
        """Judge one message, or event, by its ID alone; None, and nothing has changed, if `classify` must judge it."""
        is_watched = self._watch is not None and self._watch.is_looking
        if not self._one_by_one or is_watched or message.error() is not None:
            return None
        partition = self.partition_of(message.topic(), message.partition())
        if partition is None or not partition.marks_single_ids or partition.gates:
            return None
        digest = self._digest_of(message)
        if digest is None:
            return None
        time_ms = message.timestamp()[1]
        place = guarded(partition, partition.admit_one, message.offset(), time_ms, digest, message)
        if place is None:
            return None
        if (epoch := message.leader_epoch()) != partition.flight.epoch:
            partition.flight.note_epoch(epoch)
        return PartitionBatch(partition, place.chunk)

    def _digest_of(self, message: Any) -> bytes | None:
        if self._read_digest is not None:
            headers = headers_of(message)[0]
            digest = self._read_digest(headers) if headers else None
            if digest is not None:
                return digest
        return self._spec.digests(MessageFields([message])).digests[0]

    def classify(self, batch: list[Any]) -> Classified:
        """Judge messages, no events. Those of partitions that do not deliver now are dropped: they come again.

        Adjacent messages of one partition are all judged, or none of them.
        """
        fields = ReadOnce(MessageFields(batch))
        ids = self._spec.digests(fields)
        offsets: list[int] = list(map(_offset, batch))
        topics, partitions = list(map(_topic, batch)), list(map(_partition, batch))
        count = len(batch)
        if ids.missing or fields.failures or (self._watch is not None and self._watch.is_looking):
            self._watch = self._watch or self._make_watch()
            self._watch.note(topics, batch, ids, fields)
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
            partition = self.partition_of(run.topic, run.partition)
            if partition is None:
                continue
            part = self._without_repetition(partition, columns if one else columns.cut(run.rows), doubted)
            if not part.offsets:
                continue
            try:
                chunks = guarded(
                    partition, partition.admit, part.offsets, part.timestamps, part.ids, part.messages,
                    discard_unkeyed=self._discard and not self.observing, shows_duplicates=self.observing,
                )  # fmt: skip
            except DedupError as refusal:
                error, rest = refusal, batch[run.rows.start :]
                break
            if partition.gates:
                self._engine.look_across(partition)
            partition.flight.note_epoch(part.messages[-1].leader_epoch())
            admitted.append(_Admitted(partition, part.messages, chunks))
        if self._engine.gatekeeper is not None and admitted:
            # One question for all messages that the batch would deliver.
            self._engine.gatekeeper.admit([each.partition for each in admitted])
        judged: list[PartitionBatch] = []
        messages: list[Any] = []
        spans: list[Span] = []
        for partition, of_run, chunks in admitted:
            before = len(messages)
            judged += map(PartitionBatch, repeat(partition), chunks)
            # Late records, if there are any, are a chunk of their own.
            states = chunks[0].states if len(chunks) == 1 else b"".join([chunk.states for chunk in chunks])
            whole = self.observing or states.count(OFFERED) == len(states)
            messages += of_run if whole else compress(of_run, states.translate(_SHOWN))
            spans.append((partition.own_counters, len(messages) - before))
        return Classified(messages, judged, spans, rest, error, frozenset(doubted))

    def _without_repetition(
        self, partition: Partition, part: _Columns, doubted: set[Coordinates]
    ) -> _Columns:
        """Return messages without those that the client returned before, in the present assignment of their partition.

        All ways to the application pass here, but for `judge_one`, which leaves such messages to them. A repeated
        message is counted, and not judged: its record may be in flight. Messages of another log are not returned: their
        partition begins anew, and is added to ``doubted``.
        """
        first, again = part, None
        if partition.is_next(part.offsets):
            other = part.another_log(partition)
        else:
            rows, other = partition.first_reads(part.offsets, part.leader_epochs())
            first = part.take(rows)
            again = part.take(sorted({*range(len(part.offsets))} - {*rows}, key=part.offsets.__getitem__))
            # A record that contradicts the marks is no repetition of the one that they know.
            other = other or again.another_log(partition) or first.another_log(partition)
        if other is not None:
            self._session.recover_again(
                partition.topic, partition.partition, contradicted_at=other.first_offset
            )
            doubted.add((partition.topic, partition.partition))
            return part.take([])
        if again is not None:
            self._engine.counters.refetched += len(again.offsets)
            logger.debug(
                "%s[%d]: the client returned %d messages a second time, from offset %d on; they are dropped",
                partition.topic, partition.partition, len(again.offsets), again.offsets[0],
                extra={"event": "messages-refetched"},
            )  # fmt: skip
        return first

    def warn_of_missing_ids(self, ending: Collection[Coordinates] = ()) -> None:
        """Warn of topics whose records have no IDs, if enough came in a minute, or partitions are ``ending``."""
        if self._watch is not None and self._watch.is_looking:
            self._watch.look({topic for topic, _ in ending})

    def _lacking(self, batch: list[Any], ids: Ids) -> int | None:
        """Return the first message without an ID in a topic where IDs are looked up, None without one."""
        window_of = self._engine.strategy.window_of
        return min((row for row in ids.missing if not window_of(batch[row].topic()).is_off), default=None)

    def _up_to_missing(
        self, batch: list[Any], ids: Ids, runs: list[_Run], offsets: list[int], first: int
    ) -> Classified:
        """Judge the messages before the ``first`` one without an ID; if that one is in front, refuse it."""
        if first:
            return self.classify(batch[:first])._replace(rest=batch[first:])
        try:
            self._engine.refuse_missing(ids, runs[0].topic, runs[0].partition, offsets)
        except DedupError as error:
            return Classified([], [], [], batch, error)
        raise AssertionError("a missing ID was not refused")

    def partition_of(self, topic: str, partition: int) -> Partition | None:
        """Return a partition that delivers, None if it is not assigned or recovers."""
        assigned = self._session.assigned.get((topic, partition))
        # Not `Assigned.active`: a call less on the way of each record.
        if (
            assigned is None
            or assigned.state is not State.ACTIVE
            or not isinstance(assigned.phase, Recovered)
        ):
            return None
        return assigned.phase.partition


class _Admitted(NamedTuple):
    """A run that was judged, and has still to pass the gatekeeper."""

    partition: Partition
    messages: list[Any]
    chunks: list[Chunk]


class _Run(NamedTuple):
    """Adjacent rows of a batch that are of one partition."""

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
    """Messages and the values that were read from them, as parallel columns."""

    messages: list[Any]
    offsets: list[int]
    timestamps: Int64s
    ids: Ids

    def leader_epochs(self) -> list[int | None]:
        """Return the leader epoch of each message, None if the broker does not tell it."""
        return [message.leader_epoch() for message in self.messages]

    def another_log(self, partition: Partition) -> AnotherLog | None:
        """See `Partition.another_log`; the messages ascend by offset."""
        if not self.offsets:
            return None
        return partition.another_log(self.offsets, self.timestamps, self.ids, self.leader_epochs)

    def cut(self, rows: slice) -> _Columns:
        """Return some rows of every column."""
        return _Columns(self.messages[rows], self.offsets[rows], self.timestamps[rows], _cut(self.ids, rows))

    def take(self, rows: list[int]) -> _Columns:
        """Return these rows of every column, in this order."""
        missing = {at: self.ids.missing[row] for at, row in enumerate(rows) if row in self.ids.missing}
        return _Columns(
            [self.messages[row] for row in rows],
            [self.offsets[row] for row in rows],
            self.timestamps[rows],
            Ids([self.ids.digests[row] for row in rows], missing),
        )


def guarded(partition: Partition, step: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Do a step of a partition; an unexpected error, which may leave it half changed, is noted as its failure.

    An interruption is none of the partition, whatever its type.

    A second failure of a partition without progress closes it
    (`dedup_sdk._kafka.assign.assignment.Assigned.note_unexpected_error`).
    """
    try:
        return step(*arguments, **named)
    except DedupError:
        raise
    except BaseException as error:
        if not is_interruption(error):
            partition.note_failure()
        raise
