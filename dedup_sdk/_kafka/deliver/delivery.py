"""Messages on their way: fetched (`Fetcher`), judged (`BatchClassifier`), delivered and completed (`Delivery`).

fetch position and its generation
    Every change of the position from which a partition is read (a pause, a seek, a rebalance) makes the messages that
    were fetched of it void, and gives the position a new generation. A fetch that began in an older generation brought
    messages of the old position; they are dropped, too, and the partition is read again from the position of judging
    before the next fetch. While another thread is inside the client, pauses and resumptions are only noted; the client
    gets the state of that moment when it is free.
batch
    messages that are judged together, in one pass. The application gets them one by one (`poll`) or all at once
    (`consume`). When it asks for more, the delivered ones are completed: with their whole chunk if the batch is over,
    else one by one. A message that was fetched with at most 11 others is a batch of its
    own if only its ID decides (`BatchClassifier.judge_one`).
individual
    messages outside a batch: waiting ones whose turn has come, and released ones. They are delivered first.
aside
    messages of partitions that the user paused; they are delivered when the partition is resumed.

A row that was promoted, released, or excluded by the application ends by itself (its state is `SINGLE`). The end
of a batch completes only the rows that were offered with it (`OFFERED`). Else a promoted record that waits in a queue
would be completed, unseen, at the end of its old batch. A ready message that is withdrawn before the application got it
becomes `SINGLE`, too: a commit of all delivered messages, as in the usual ``on_revoke``, must not complete it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain, compress, groupby, repeat
from operator import itemgetter, ne
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from confluent_kafka import KafkaError, Message, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._core.flight import OFFERED, SINGLE, Chunk, RecordRef
from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._engine.partition import AnotherLog, Partition
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.assignment import Coordinates, Pause, State
from dedup_sdk._kafka.client.fields import MessageFields, headers_of
from dedup_sdk._kafka.client.guards import ClientLock
from dedup_sdk._kafka.recover.session import Session
from dedup_sdk._marks import Int64s
from dedup_sdk._observe import Counters, PartitionCounters, of_partition
from dedup_sdk._strategy import LastId, Strategy
from dedup_sdk.errors import DedupError
from dedup_sdk.ids import Ids
from dedup_sdk.ids._columns import ReadOnce

if TYPE_CHECKING:
    from dedup_sdk._kafka.client.framed_keys import FramedKeys
    from dedup_sdk._kafka.client.missing_ids import MissingIds

T = TypeVar("T")

logger = logging.getLogger("dedup_sdk")

_offset: Callable[[Any], Any] = Message.offset
_topic: Callable[[Any], Any] = Message.topic
_partition: Callable[[Any], Any] = Message.partition
_timestamp: Callable[[Any], Any] = Message.timestamp
_time: Callable[[Any], Any] = itemgetter(1)
_Span = tuple[PartitionCounters, int]
_MOST_ENDED = 10_000
"""So many completed messages wait for the next batch, at most, to be freed with it."""
_SHOWN = bytes(state == OFFERED for state in range(256))


class Fetcher:
    """Fetches with the client. ``messages`` are the fetched messages, and the client's events, in the order they came.

    ``ran_dry``: the client had fewer messages ready than the last `fetch` asked for.

    The client counts a message as read when it returns it. So messages that are dropped here lie behind the client's
    own position: nothing more of that partition is kept until it is read again.
    """

    def __init__(self, consumer: Consumer, session: Session, lock: ClientLock) -> None:
        self.messages: list[Any] = []
        self.ran_dry = False
        self._consumer, self._session, self._lock = consumer, session, lock
        self._generation = 0
        self._generations: dict[Coordinates, int] = {}
        self._behind: set[Coordinates] = set()
        """Partitions of which messages were dropped: they must be read again before any message of them is kept."""

        self._is_under_way = False
        """Whether a call of the client has begun whose messages are not kept here yet."""
        self._untold: set[Coordinates] = set()
        """Partitions whose pause or resumption the client does not know yet: another thread was inside it."""

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch nothing of these; with the lock."""
        if self._is_free(partitions):
            Consumer.pause(self._consumer, partitions)

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Have the client fetch these again, except those that do not deliver now; with the lock."""
        if self._is_free(partitions):
            Consumer.resume(self._consumer, self._session.resumable(partitions))

    def _is_free(self, partitions: list[TopicPartition]) -> bool:
        """Whether the client may be called; if not, the partitions are noted, and it is told before the next fetch.

        Nobody waits for it: in a rebalance the thread inside it may wait for this one.
        """
        busy = self._lock.in_other_thread
        if busy:
            self._untold |= {(tp.topic, tp.partition) for tp in partitions}
        return not busy

    def fetch(self, at_most: int, wait_s: float) -> None:
        """Fetch until there are ``at_most`` messages, or the time is up."""
        room = at_most - len(self.messages)
        self.ran_dry = False
        if room > 0:
            if self._behind or self._untold:
                self._catch_up()
            began, self._is_under_way = self._generation, True
            came = self._lock.call_client(Consumer.consume, self._consumer, room, wait_s)
            self.ran_dry = len(came) < room
            if came:
                with self._lock.lock:
                    if self._behind or self._generation != began:
                        came = self._still_read(came, began)
                    self.messages = self.messages + came if self.messages else came
            self._is_under_way = False

    def listen(self, wait_s: float) -> None:
        """Serve the client; keep the message or event that it returns."""
        if self._behind or self._untold:
            self._catch_up()
        began, self._is_under_way = self._generation, True
        message = self._lock.call_client(Consumer.poll, self._consumer, wait_s)
        if message is not None:
            with self._lock.lock:
                came = [message]
                if self._behind or self._generation != began:
                    came = self._still_read(came, began)
                self.messages = self.messages + came if self.messages else came
        self._is_under_way = False

    def pass_holes(self) -> None:
        """Move the positions of partitions behind what the client returns to nobody; with the lock.

        The client's own position is behind markers of transactions, and aborted records. It proves nothing while a
        call of it runs, or was interrupted: records that it has taken out of its queue, and returned to nobody, count
        as read by it. The same holds for records that were returned, and are not judged or must be read again.
        """
        if self._is_under_way or self._lock.client_thread is not None:
            return
        waiting = {(message.topic(), message.partition()) for message in self.messages} | self._behind
        ready = {
            coordinates: assigned.engine_partition
            for coordinates, assigned in self._session.assigned.items()
            if assigned.state is State.ACTIVE and assigned.engine_partition and coordinates not in waiting
        }
        asked = [TopicPartition(*coordinates) for coordinates in ready]
        for tp in Consumer.position(self._consumer, asked) if asked else ():
            # Below zero before the first record since a seek.
            ready[tp.topic, tp.partition].pass_holes(tp.offset)

    def rest(self, messages: list[Any]) -> None:
        """Keep these fetched messages; the others are handled."""
        self.messages = messages

    def put_first(self, messages: list[Any]) -> None:
        """Put messages, or events, before all others."""
        self.messages = [*messages, *self.messages]

    def drop(self, gone: Collection[Coordinates]) -> None:
        """Drop the fetched messages of these partitions, and those of the running fetch."""
        self._generation += 1
        self._generations |= dict.fromkeys(gone, self._generation)
        if self.messages:
            self.note_stops()
            self.messages = self._without(self.messages, gone)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Drop messages and stop events of partitions that are revoked, or begin at another position."""
        self.drop(gone)
        self._drop_stops(gone)

    def read_again(self, partitions: Iterable[Coordinates]) -> None:
        """Have partitions read again from the position of judging, before the next fetch."""
        self._behind |= set(partitions)

    def note_stops(self) -> None:
        """Mark partitions for which a stop event is queued: the client does not read them, and cannot seek in them.

        Code that moves such a partition must assign it again. The event, which may be queued behind messages, then
        belongs to the old position, and is dropped.
        """
        for message in self.messages:
            if _is_stop(message):
                assigned = self._session.assigned.get((message.topic(), message.partition()))
                if assigned is not None:
                    assigned.note_stop()

    def drop_moved(self) -> None:
        """Drop the fetched messages of partitions whose position was changed since."""
        if moved := self._session.reading.take_moved():
            if self.messages:
                # Partitions that stopped again keep their event.
                still = {c for c, assigned in self._session.assigned.items() if assigned.stopped}
                self._drop_stops(moved - still)
            self.drop(moved)

    def _catch_up(self) -> None:
        """Before a fetch: pass noted pauses to the client, and seek back to messages that were dropped.

        Only the fetching thread does so: in the middle of its fetch, old and new messages could not be told apart.
        Partitions that the user paused are left as they are.
        """
        with self._lock.lock:
            self._tell_pauses()
            assigned = self._session.assigned
            due = {c for c in self._behind if c not in assigned or Pause.USER not in assigned[c].pauses}
            if due:
                self.note_stops()
                self._behind -= due
                self._session.refetch(due)
                self.drop_moved()

    def _tell_pauses(self) -> None:
        """Tell the client which partitions are paused now.

        Not one change after the other: a late resumption would undo the pause that followed it.
        """
        untold, self._untold = self._untold, set()
        for coordinates in untold & self._session.assigned.keys():
            paused = self._session.assigned[coordinates].pauses
            (self.pause if paused else self.resume)([TopicPartition(*coordinates)])

    def _drop_stops(self, moved: Collection[Coordinates]) -> None:
        """Drop stop events of these partitions: they are about an earlier position."""
        self.messages = [
            m for m in self.messages if not (_is_stop(m) and (m.topic(), m.partition()) in moved)
        ]

    def _still_read(self, messages: list[Any], began: int) -> list[Any]:
        """Return the messages of a fetch that began in a generation, except those of void positions."""
        void = {c for c, generation in self._generations.items() if generation > began}
        return self._without(messages, void | self._behind)

    def _without(self, messages: list[Any], gone: Collection[Coordinates]) -> list[Any]:
        kept = []
        for message in messages:
            coordinates = message.topic(), message.partition()
            if message.error() is None and coordinates in gone:
                self._behind.add(coordinates)
            else:
                kept.append(message)
        return kept


def _is_stop(message: Any) -> bool:
    """Whether it is a stop event: the client stopped reading a partition, because the log does not have its offset."""
    error = message.error()
    return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 (that is its public name)


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
    spans: list[_Span]
    rest: list[Any]
    error: DedupError | None = None
    doubted: frozenset[tuple[str, int]] = frozenset()


def _framed_keys(strategy: Strategy) -> FramedKeys | None:
    """Return who looks for schemas' IDs in keys, None where no key is an ID."""
    specs = [strategy.id]
    if isinstance(strategy, LastId) and strategy.source is not None:
        specs.append(strategy.source)
    if not any("key" in spec.needs for spec in specs):
        return None
    from dedup_sdk._kafka.client.framed_keys import FramedKeys

    found = FramedKeys(specs)
    return None if found.is_over else found


class BatchClassifier:
    """Judges batches of messages; if ``observing``, nothing is hidden."""

    def __init__(self, engine: Deduplicator, session: Session, *, observing: bool) -> None:
        self._engine = engine
        self._session = session
        self.observing = observing
        self._spec = engine.keys
        self._discard = engine.strategy.on_missing_id == "discard"
        self._fail = engine.strategy.on_missing_id == "fail"
        self._missing_ids: MissingIds | None = None
        """There since the first record without an ID."""
        self._framed_keys = _framed_keys(engine.strategy)
        self._read_digest = engine.keys.digest_reader()
        # A function of the application is called once for each message, and a shared memory once for each batch.
        self._one_by_one = not (observing or engine.gatekeeper is not None or "record" in engine.keys.needs)

    def judge_one(self, message: Any) -> PartitionBatch | None:
        """Judge one message, or event, by its ID alone; None, and nothing has changed, if `classify` must judge it."""
        looks = self._framed_keys is not None or (
            self._missing_ids is not None and self._missing_ids.counting
        )
        if not self._one_by_one or looks or message.error() is not None:
            return None
        partition = self.partition_of(message.topic(), message.partition())
        if partition is None or not partition.marks_single_ids or partition.gates:
            return None
        digest = self._digest_of(message)
        if digest is None:
            return None
        time_ms = message.timestamp()[1]
        place = _guarded(partition, partition.admit_one, message.offset(), time_ms, digest, message)
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
        is_counting = self._missing_ids is not None and self._missing_ids.counting
        if ids.missing or fields.failures or is_counting or self._framed_keys is not None:
            self._watch_ids(topics, batch, ids, fields)
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
                chunks = _guarded(
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
        spans: list[_Span] = []
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

    def _watch_ids(self, topics: list[str], batch: list[Any], ids: Ids, fields: ReadOnce) -> None:
        """Warn of an ID spec that does not fit the records."""
        if self._framed_keys is not None:
            self._framed_keys.note(topics[0], fields.keys())
            if self._framed_keys.is_over:
                self._framed_keys = None
        if self._missing_ids is None and (ids.missing or fields.failures):
            from dedup_sdk._kafka.client.missing_ids import MissingIds

            strategy = self._engine.strategy
            source = strategy.source if isinstance(strategy, LastId) else None
            self._missing_ids = MissingIds(strategy.id, strategy.window_of, source=source)
        if self._missing_ids is not None:
            self._missing_ids.note(topics, batch, ids, fields.failures)

    def warn_of_missing_ids(self, ending: Collection[Coordinates] = ()) -> None:
        """Warn of topics whose records have no IDs, if enough came in a minute, or partitions are ``ending``."""
        if self._missing_ids is not None and self._missing_ids.counting:
            self._missing_ids.look({topic for topic, _ in ending})

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
        return assigned.engine_partition if assigned is not None and assigned.state is State.ACTIVE else None


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


class CompletedBy(Enum):
    """The event that completes a delivered message, besides `DedupConsumer.complete`."""

    NEXT_CALL = "next call"
    """A call for more messages."""
    COMMIT = "commit"
    """A commit, or stored offsets, that name it."""
    NOTHING = "nothing"


class Delivery:
    """The messages between judging and completion. ``ready`` and ``individual`` are delivered next.

    ``partition_of`` returns a partition that delivers, by topic and number.

    Everything needs the consumer's lock, with one exception: the polling thread takes the first of ``ready`` without
    it. So nobody iterates over that queue, and messages leave it by ``pop``: the thread that pops a message owns it.
    """

    def __init__(
        self,
        partition_of: Callable[[str, int], Partition | None],
        completed_by: CompletedBy,
        counters: Counters,
    ) -> None:
        self._counters = counters
        # The polling thread takes messages without the lock, so that they are counted later: at the next call for
        # messages, or when somebody looks.
        self._spans: deque[_Span] = deque()
        self._uncounted = 0
        """How many messages of the batch, from its end on, are not counted as delivered; `_spans` says of which."""
        self._counts = True
        """False during a worker session, which counts the messages of its own."""
        self.completed_by = self._configured = completed_by
        self._before_run: list[Any] | None = None
        """Individual messages that were delivered before `begin_explicit`; None outside of it."""
        self.ready: deque[Any] = deque()
        self.individual: deque[Any] = deque()
        self._aside: dict[Coordinates, list[Any]] = {}
        self.partition_of = partition_of
        self._batch: list[Any] = []
        self._chunks: list[PartitionBatch] = []
        self._finished = 0
        self._individual_handed: list[Any] = []
        # The last hand-out by `take`, and how far it brought the batch: `poll` may have taken more since.
        self._last: tuple[Any, ...] = ()
        self._taken = 0
        # A finished batch is freed when the next one is here, while garbage collection is paused: a thousand freed
        # messages balance the thousand new ones, so that they trigger no collection.
        self._previous_batch: tuple[list[Any], list[PartitionBatch]] = ([], [])
        self._ended: list[Any] = []
        """Messages that were completed by a call: freed like a finished batch."""
        self.forgettings = 0
        """How often messages were forgotten: whoever keeps delivered ones looks which of them still count."""

    # --- giving out ----------------------------------------------------------------------------------------------

    def fill(self, judged: Classified) -> None:
        """Make a judged batch the current one; the one before is finished."""
        self._batch, self._chunks, self._finished, self._taken = judged.messages, judged.chunks, 0, 0
        self._last = ()
        self._previous_batch, self._ended = ([], []), []
        self.ready.clear()
        self._spans, self._uncounted = deque(judged.spans), len(judged.messages)
        self.ready.extend(judged.messages)

    def deliver_one(self, message: Any, judged: PartitionBatch) -> list[Any]:
        """Deliver a message that was judged by itself: it is the current batch. Only where `is_over` holds."""
        self._batch, self._chunks, self._finished, self._taken = [message], [judged], 0, 1
        self._ended = []
        self._last = (message,)
        if self._counts:
            judged.partition.own_counters.delivered += 1
        return [message]

    @property
    def is_over(self) -> bool:
        """Whether no message is queued, and each delivered one is finished."""
        return not (self._batch or self._individual_handed or self.ready or self.individual)

    def take(self, count: int) -> list[Any]:
        """Deliver at most ``count`` messages: individual ones first."""
        out = list[Any]()
        while self.individual and len(out) < count:
            message = self.individual.popleft()
            if message.error() is None:
                if self._unfinished(message) is None:
                    # A late thread completed it after it was released.
                    continue
                self._individual_handed.append(message)
                if self._counts:
                    of_partition(self._counters, *_coordinates(message)).delivered += 1
            out.append(message)
        if self.ready and len(out) < count:
            if not out and len(self.ready) <= count:
                out = list(self.ready)
                self.ready.clear()
            else:
                while self.ready and len(out) < count:
                    out.append(self.ready.popleft())
        if out:
            self._last, self._taken = tuple(out), len(self._batch) - len(self.ready)
        return out

    def count(self) -> None:
        """Count the messages of the batch that were delivered since the last time."""
        if self._uncounted > (ready := len(self.ready)):
            self._count_down_to(ready)

    def _count_down_to(self, ready: int) -> None:
        delivered, self._uncounted = self._uncounted - ready, ready
        while delivered > 0 and self._spans:
            counters, size = self._spans.popleft()
            if size > delivered:
                self._spans.appendleft((counters, size - delivered))
                size = delivered
            delivered -= size
            if self._counts:
                counters.delivered += size

    def _count_from(self, ready: list[Any]) -> None:
        """Note that the ready messages are these now."""
        by_partition = groupby(ready, _coordinates)
        spans = [(of_partition(self._counters, *place), len(list(each))) for place, each in by_partition]
        self._spans, self._uncounted = deque(spans), len(ready)

    def offer_event(self, event: Any) -> None:
        """Queue an event of the client for the application."""
        self.individual.append(event)

    def offer(self, places: Iterable[RecordRef]) -> None:
        """Queue messages outside their batch: promoted or released ones."""
        self._queue(place.chunk.items[place.row] for place in places)

    def put_back(self, messages: Sequence[Any]) -> None:
        """Queue delivered messages again, before all others, in this order; each ends by itself. Queued ones stay."""
        for message in reversed(messages):
            if not self.waits(message) and self.take_out(message):
                aside = self._aside.get(_coordinates(message))
                if aside is None:
                    self.individual.appendleft(message)
                else:
                    aside.insert(0, message)

    def _queue(self, messages: Iterable[Any]) -> None:
        for message in messages:
            self._aside.get(_coordinates(message), self.individual).append(message)

    def first_waiting(self, topic: str, partition: int) -> int | None:
        """Return the lowest offset of a partition that is queued, None if nothing is."""
        ready = self._first_ready(topic, partition)
        individual = [
            m.offset() for m in self.individual if m.error() is None and _coordinates(m) == (topic, partition)
        ]
        aside = [m.offset() for m in self._aside.get((topic, partition), ())]
        return min([*individual, *aside] if ready is None else [ready, *individual, *aside], default=None)

    def delivered_to(self, topic: str, partition: int, withdrawn: Collection[int]) -> int | None:
        """Return the offset after the last message of a partition that the application got; None before it delivers.

        A released message, which waits to come again, lies before it. ``withdrawn``: messages that no handler got.
        """
        opened = self.partition_of(topic, partition)
        if opened is None:
            return None
        first = self._first_ready(topic, partition)
        others = [*self.individual, *self._aside.get((topic, partition), ())]
        waiting = {m.offset() for m in others if m.error() is None and _coordinates(m) == (topic, partition)}
        waiting.update(withdrawn)
        place = opened.flight.position if first is None else first
        return opened.flight.delivered_until(place, waiting) if waiting else place

    def _first_ready(self, topic: str, partition: int) -> int | None:
        # The ready messages of a partition are in its order.
        of_batch = (m.offset() for m in list(self.ready) if m.partition() == partition and m.topic() == topic)
        return next(of_batch, None)

    def set_aside(self, paused: set[Coordinates]) -> None:
        """Set the queued messages of these partitions aside, until `bring_back`; each ends by itself from then on."""
        for coordinates in paused:
            self._aside.setdefault(coordinates, [])
        handed, ready = self._withdraw()
        kept = _without(ready, paused)
        self._batch = handed + kept
        for message in [*self._drop_individual(paused), *(m for m in ready if _coordinates(m) in paused)]:
            coordinates = _coordinates(message)
            partition = self.partition_of(*coordinates)
            place = partition.flight.place(message.offset()) if partition is not None else None
            if place is not None and place.chunk.states[place.row] == OFFERED:
                place.chunk.offer_individually(place.row)
            self._aside[coordinates].append(message)
        self._count_from(kept)
        self.ready.extend(kept)

    def take_back(self, chosen: Callable[[Partition, RecordRef], bool]) -> list[tuple[Partition, RecordRef]]:
        """Take the queued messages for which ``chosen`` is true out of the queues; return them."""
        taken: list[tuple[Partition, RecordRef]] = []

        def kept(messages: Iterable[Any]) -> list[Any]:
            left = []
            for message in messages:
                place = None if message.error() is not None else self._unfinished(message)
                partition = None if place is None else self.partition_of(*_coordinates(message))
                if place is not None and partition is not None and chosen(partition, place):
                    taken.append((partition, place))
                else:
                    left.append(message)
            return left

        handed, ready = self._withdraw()
        ready = kept(ready)
        self._batch = handed + ready
        individual = kept(list(self.individual))
        self.individual.clear()
        self.individual.extend(individual)
        self._aside = {coordinates: kept(aside) for coordinates, aside in self._aside.items()}
        self._count_from(ready)
        self.ready.extend(ready)
        return taken

    def bring_back(self, resumed: set[Coordinates]) -> None:
        """Queue the messages again that `set_aside` took."""
        for coordinates in resumed:
            self.individual.extend(self._aside.pop(coordinates, ()))

    # --- completing ----------------------------------------------------------------------------------------------

    @property
    def _handed(self) -> int:
        return len(self._batch) - len(self.ready)

    def finish(self) -> dict[int, Partition]:
        """Complete the delivered messages, if a call for more completes them; return the changed partitions, by `id`.

        Messages that waited for them are queued.
        """
        # As `count`, whose call each message would pay for.
        if self._uncounted > (left := len(self.ready)):
            self._count_down_to(left)
        if self.completed_by is not CompletedBy.NEXT_CALL:
            self._let_go()
            return {}
        touched: dict[int, Partition] = {}
        if self._individual_handed:
            handed, self._individual_handed = self._individual_handed, []
            self._finish_each(handed, touched, (OFFERED, SINGLE))
        handed_to = len(self._batch) - len(self.ready)
        if handed_to < len(self._batch):
            self._finish_each(self._batch[self._finished : handed_to], touched, (OFFERED,))
            self._finished = handed_to
        elif self._batch or self._chunks:
            chunks = self._chunks
            self._previous_batch = (self._batch, chunks)
            self._batch, self._chunks, self._finished, self._taken = [], [], 0, 0
            for partition, chunk in chunks:
                touched[id(partition)] = partition
                if freed := _guarded(partition, partition.complete_chunk, chunk):
                    self.offer(freed)
        return touched

    def _finish_each(
        self, messages: list[Any], touched: dict[int, Partition], states: tuple[int, ...]
    ) -> None:
        offsets: dict[Coordinates, list[int]] = {}
        for message in messages:
            offsets.setdefault(_coordinates(message), []).append(message.offset())
        for coordinates, ended in offsets.items():
            partition = self.partition_of(*coordinates)
            if partition is not None:
                touched[id(partition)] = partition
                self.offer(_guarded(partition, partition.complete, ended, states=states, quietly=True))

    def free_later(self, ended: list[Any]) -> None:
        """Free messages that a call has completed when the next batch is here, and not one by one before."""
        if len(self._ended) >= _MOST_ENDED:
            self._ended = []
        self._ended += ended

    def free(self, *, idle: bool) -> None:
        """Free these messages now if no batch is on its way."""
        if idle:
            self._ended = []

    def complete_all_but_last(self) -> list[Partition]:
        """Complete the messages delivered before the last call, if a call for more completes messages."""
        if self.completed_by is not CompletedBy.NEXT_CALL:
            return []
        handed = self._batch[self._finished : self._handed]
        last = set(map(id, self._last_given()))
        touched: dict[int, Partition] = {}
        self._finish_each([m for m in handed if id(m) not in last], touched, (OFFERED,))
        self._finish_each(
            [m for m in self._individual_handed if id(m) not in last], touched, (OFFERED, SINGLE)
        )
        return list(touched.values())

    def _last_given(self) -> Sequence[Any]:
        """Return the messages of the last call."""
        return self._last if self._handed == self._taken else self._batch[self._handed - 1 : self._handed]

    def withdraw_last(self) -> None:
        """Exclude the messages of the last call from completion by a commit: they may be unhandled."""
        if self.completed_by is not CompletedBy.COMMIT:
            return
        for message in self._last_given():
            if message.error() is None:
                self.take_out(message)

    @property
    def in_hand(self) -> int:
        """How many messages of the current batch are still to be completed by a call for more, delivered or not."""
        return len(self._batch) - self._finished if self.completed_by is CompletedBy.NEXT_CALL else 0

    def _let_go(self) -> None:
        """Forget the current batch without completing it: the application does that itself, or by its commits."""
        if not self.ready:
            self._batch, self._chunks, self._finished, self._taken = [], [], 0, 0
            if self.completed_by is CompletedBy.NOTHING:
                self._individual_handed = []

    def begin_explicit(self) -> None:
        """Have messages end by `DedupConsumer.complete` only, until `end_explicit`; with the lock."""
        self._before_run, self._individual_handed = self._individual_handed, []
        self.count()
        self.completed_by, self._counts = CompletedBy.NOTHING, False

    def end_explicit(self) -> None:
        """Have messages end as configured again; with the lock. Harmless when repeated, also after an interruption.

        Individual messages that were delivered before, and are to be completed by offsets, can be so again.
        """
        self.count()
        self.completed_by, self._counts = self._configured, True
        if self._before_run is not None and self.completed_by is CompletedBy.COMMIT:
            self._individual_handed = [m for m in self._before_run if self.in_flight(m) and not self.waits(m)]
        self._before_run = None

    def finish_below(self, partition: Partition, end: int | None) -> None:
        """Complete the delivered messages of a partition, of all batches, below an offset (None: all)."""
        topic, number = partition.topic, partition.partition
        # Queued individual messages, and those set aside, are in none of these states and lists; messages behind them
        # may be completed.
        waiting = self._first_ready(topic, number)
        stop = partition.flight.position if waiting is None else waiting
        if end is not None:
            stop = min(stop, end)
        due = [m for m in self._individual_handed if _coordinates(m) == (topic, number) and m.offset() < stop]
        ended = set(map(id, due))
        self._individual_handed = [m for m in self._individual_handed if id(m) not in ended]
        self._finish_each(due, {}, (OFFERED, SINGLE))
        self.offer(partition.complete(partition.flight.offered_below(stop), states=(OFFERED,), quietly=True))

    def finish_up_to(self, topic: str, partition: int, offset: int) -> list[Partition]:
        """Complete delivered messages of a partition up to and with ``offset``, if a call for more completes any."""
        if self.completed_by is not CompletedBy.NEXT_CALL:
            return []
        touched: dict[int, Partition] = {}

        def due(message: Any) -> bool:
            return _coordinates(message) == (topic, partition) and bool(message.offset() <= offset)

        individual = [message for message in self._individual_handed if due(message)]
        self._individual_handed = [message for message in self._individual_handed if not due(message)]
        self._finish_each(individual, touched, (OFFERED, SINGLE))
        batch = [message for message in self._batch[self._finished : self._handed] if due(message)]
        self._finish_each(batch, touched, (OFFERED,))
        return list(touched.values())

    def take_out(self, message: Any) -> bool:
        """Exclude a delivered message from implicit completion; False if it is not in flight."""
        place = self._unfinished(message)
        self._individual_handed = [m for m in self._individual_handed if not _same(m, message)]
        if place is None:
            return False
        place.chunk.offer_individually(place.row)
        return True

    def waits(self, message: Any) -> bool:
        """Whether a message was released and is queued to be delivered again."""
        return any(
            _same(each, message)
            for each in chain(self.individual, self._aside.get(_coordinates(message), ()))
        )

    def in_flight(self, message: Any) -> RecordRef | None:
        """Return the record of a message in flight; None if it ended, or another message has its offset now."""
        place = self._unfinished(message)
        return place if place is not None and place.chunk.items[place.row] is message else None

    def _unfinished(self, message: Any) -> RecordRef | None:
        partition = self.partition_of(message.topic(), message.partition())
        place = (
            partition.flight.place(message.offset()) if partition is not None and partition.started else None
        )
        return None if place is None or place.chunk.states[place.row] not in (OFFERED, SINGLE) else place

    # --- forgetting ----------------------------------------------------------------------------------------------

    def release_all(self) -> None:
        """Forget all delivered and queued messages: they come again."""
        self.forgettings += 1
        for message in self._withdraw()[1]:
            # The application never saw it: no later commit of all delivered messages may complete it.
            self.take_out(message)
        self.individual.clear()
        self._aside = {coordinates: [] for coordinates in self._aside}
        self._batch, self._chunks, self._finished, self._taken, self._individual_handed = [], [], 0, 0, []
        self._count_from([])
        self._last, self._ended = (), []

    def release(self, leaving: set[Coordinates]) -> None:
        """Forget the delivered and queued messages of these partitions: they come again, to the next owner."""
        _, ready = self._withdraw()
        for message in ready:
            if _coordinates(message) in leaving:
                # The application never saw it: no later commit of all delivered messages may complete it.
                self.take_out(message)
        self._count_from(ready)
        self.ready.extend(ready)
        self.purge(leaving)

    def purge(self, gone: set[Coordinates]) -> None:
        """Forget the messages of partitions that are not assigned any more."""
        self.forgettings += 1
        handed, ready = self._withdraw()
        kept = _without(ready, gone)
        self._taken = len(_without(handed[: self._taken], gone))
        self._finished = len(_without(handed[: self._finished], gone))
        self._batch = _without(handed, gone) + kept
        self._drop_individual(gone)
        self._individual_handed = _without(self._individual_handed, gone)
        self._chunks = [
            each for each in self._chunks if (each.partition.topic, each.partition.partition) not in gone
        ]
        self._aside = {
            coordinates: aside for coordinates, aside in self._aside.items() if coordinates not in gone
        }
        self._count_from(kept)
        self.ready.extend(kept)

    def _withdraw(self) -> tuple[list[Any], list[Any]]:
        """Empty the ready queue; return the delivered messages of the batch, and the ready ones.

        One by one, because another thread may poll meanwhile, and each message must go to one side only. From the end:
        the other thread takes the first, so the messages taken here are always the end of the batch.
        """
        ready: deque[Any] = deque()
        with suppress(IndexError):
            while True:
                ready.appendleft(self.ready.pop())
        self._count_down_to(len(ready))
        return self._batch[: len(self._batch) - len(ready)], list(ready)

    def _drop_individual(self, gone: set[Coordinates]) -> list[Any]:
        """Remove the individual messages of these partitions, and return them; events stay."""
        dropped = [m for m in self.individual if m.error() is None and _coordinates(m) in gone]
        queued = [m for m in self.individual if m.error() is not None or _coordinates(m) not in gone]
        self.individual.clear()
        self.individual.extend(queued)
        return dropped

    def place(self, message: Any) -> RecordRef | None:
        """Return the row of a message of the current batch, None if it is not in it."""
        coordinates, offset = _coordinates(message), message.offset()
        for partition, chunk in self._chunks:
            row = chunk.row_of(offset) if (partition.topic, partition.partition) == coordinates else None
            if row is not None:
                return RecordRef(chunk, row)
        return None


def _coordinates(message: Any) -> Coordinates:
    return message.topic(), message.partition()


def _without(messages: list[Any], gone: set[Coordinates]) -> list[Any]:
    return [message for message in messages if _coordinates(message) not in gone]


def _same(message: Any, other: Any) -> bool:
    return _coordinates(message) == _coordinates(other) and bool(message.offset() == other.offset())


def _guarded(partition: Partition, step: Callable[..., T], *arguments: Any, **named: Any) -> T:
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
