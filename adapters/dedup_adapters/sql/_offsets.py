"""Offsets kept in the database, moved by the transaction that handles their messages.

The inbox is not told whether a transaction in which it moved an offset was committed, and a commit that
seemed to fail may have succeeded. So it records each attempt with the offset before it. The next statement
moves the offset only from the value that it has if all attempts were committed. If it finds another value,
that value tells which attempts were rolled back, or that another owner of the partition continued. So two
owners need no lease.

The offset does not move over duplicates that a `DedupConsumer` hid. A batch may consist of such duplicates
only, and then there is no transaction to move the offset in. If one of them is delivered after all (because
the store was lost meanwhile), it must be a duplicate, not an `OutOfOrderError`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import methodcaller
from threading import Lock
from typing import Any, Final, Literal, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition, Uuid
from confluent_kafka.admin import AdminClient
from sqlalchemy import Connection, Engine, Table, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.util import greenlet_spawn

from dedup_adapters.sql._asynchronous import Awaited, beside_the_loop, refuse_blocking
from dedup_adapters.sql._errors import InboxError, OutOfOrderError
from dedup_sdk import ConfigurationError, Record
from dedup_sdk.errors import shown

_error: Final = methodcaller("error")
_topic: Final = methodcaller("topic")


class RecordRef(NamedTuple):
    """Topic, partition and offset."""

    topic: str
    partition: int
    offset: int


def topics_of(messages: Sequence[Any]) -> list[str]:
    """Return the topic of each message; raises as `place_of` does."""
    try:
        if not any(map(_error, messages)):
            return list(map(_topic, messages))
    except (AttributeError, TypeError):
        pass
    return [place_of(message).topic for message in messages]


def place_of(message: Any) -> RecordRef:
    """Return a message's coordinates; raises `ConfigurationError` for an error event, or another type."""
    if isinstance(message, Record):
        return RecordRef(message.topic, message.partition, message.offset)
    try:
        error = message.error()
        if error is None:
            return RecordRef(message.topic(), message.partition(), message.offset())
    except AttributeError:
        raise ConfigurationError(
            f"{type(message).__name__} is not a message; give a message of the consumer, or a Record"
        ) from None
    raise ConfigurationError(
        f"an error event is not a message ({error}); skip messages whose error() is not None"
    )


class Attempt(NamedTuple):
    """The messages that a transaction handled: the next offset before it, and their offsets."""

    before: int
    offsets: frozenset[int]


class OffsetMove(NamedTuple):
    """The result of judging a batch: the offset moves from ``before`` to ``after`` (not if they are equal).

    ``handled`` are the offsets of messages that were handled before.
    """

    before: int
    after: int
    handled: frozenset[int]


@dataclass(slots=True)
class Progress:
    """The progress of one partition.

    ``last`` is the next offset if every attempt was committed; ``attempts`` are those of the latest
    transaction. A commit that succeeded though it seemed to fail may be unknown to the caller, who then
    handles the messages again: ``certain`` are committed offsets that may still come again, ``theirs`` are
    offsets that another owner handled.
    """

    topic: str
    partition: int
    topic_id: str
    last: int
    attempts: list[Attempt] = field(default_factory=list)
    certain: frozenset[int] = frozenset()
    theirs: tuple[range, ...] = ()
    transaction: object = None
    version: int = 0
    """The number of recorded attempts."""

    def hopeful(self, offsets: list[int]) -> OffsetMove | None:
        """Return the step if every attempt so far was committed; None where the messages contradict that."""
        return OffsetMove(self.last, offsets[-1] + 1, frozenset()) if offsets[0] >= self.last else None

    def step(self, offsets: list[int], found: int | None) -> OffsetMove:
        """Return the step from the offset found in the database (None: no row)."""
        if found is None:
            raise InboxError(
                f"{self.name}: its offset is no longer in the database; assign the partition again"
            )
        begin = self.attempts[0].before if self.attempts else self.last
        if found < self.last:
            self._check_order(offsets, found, begin)
        if found not in (self.last, *(each.before for each in self.attempts)):
            # Another owner of the partition handled them, in order: this one lost it, or got it while that
            # one was not through.
            self.theirs = (*self.theirs, range(begin, found))
        done = self._done(found)
        handled = frozenset(
            each
            for each in offsets
            if each < found and (each in done or any(each in there for there in self.theirs))
        )
        late = next((each for each in offsets if each < found and each not in handled), None)
        if late is not None:
            raise OutOfOrderError(
                f"{self.name}: offset {late} came after all messages below {found} were handled; handle the "
                "messages of a partition in their order (set the group back with inbox.offsets.move), or keep "
                "offsets in Kafka (without offsets=)"
            )
        return OffsetMove(found, max(offsets[-1] + 1, found), handled)

    def note(self, step: OffsetMove, offsets: list[int], transaction: object) -> None:
        """Record a step that was executed."""
        if transaction is not self.transaction:
            # What another transaction finds in the database was committed; what lies before its first
            # message does not come again.
            done = self._done(step.before) | step.handled
            self.certain = frozenset(each for each in done if each >= offsets[0])
            self.theirs = tuple(there for there in self.theirs if there.stop > offsets[0])
            self.attempts, self.transaction = [], transaction
        elif step.before != self.last:
            self.attempts = [each for each in self.attempts if each.before < step.before]
        if step.after > step.before:
            self.attempts.append(Attempt(step.before, frozenset(offsets) - step.handled))
        self.last = step.after
        self.version += 1

    @property
    def name(self) -> str:
        """Topic and partition."""
        return f"{self.topic}[{self.partition}]"

    def _done(self, found: int) -> frozenset[int]:
        """Return the individually known offsets that are handled if the database has this offset."""
        return self.certain.union(*(each.offsets for each in self.attempts if each.before < found))

    def _check_order(self, offsets: list[int], found: int, begin: int) -> None:
        """Raise unless the first message is the first rolled-back one, or lies before it."""
        if found < begin:
            raise InboxError(
                f"{self.name}: its offset in the database was set back to {found}; assign the partition again"
            )
        undone = min(
            (offset for each in self.attempts for offset in each.offsets if offset >= found), default=found
        )
        if offsets[0] > undone:
            raise OutOfOrderError(
                f"{self.name}: offset {offsets[0]} came, but {undone} was rolled back and comes first; "
                "handle it, or keep offsets in Kafka "
                "(without offsets=)"
            )


logger = logging.getLogger("dedup_adapters")

Reset = Literal["earliest", "latest", "error"]

_ASK_S: Final = 10.0
_PAUSE_S: Final = 0.1
_COORDINATOR_MOVES: Final = (
    KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)  # fmt: skip
_NO_ID: Final = str(Uuid(0, 0))
_TRIES: Final = 3
_MOST_TURNS: Final = 100
Coordinates = tuple[str, int]


class KeptOffsets:
    """The offsets of a group, in your database.

    A partition begins at the offset in the database, whatever Kafka has committed. Where the database has
    none it begins at the group's committed offset, else by ``reset``.

    Args:
        cluster: used to read the topics' IDs, so that a topic that was deleted and created again is
            recognised.
        reset: where to begin a partition without a usable offset: the group has none, the topic was created
            again, or the log begins or ends elsewhere. ``earliest`` loses nothing, and known IDs are not
            handled again; ``latest`` skips the existing messages; ``error`` raises `InboxError`.
    """

    def __init__(self, cluster: AdminClient, *, reset: Reset = "earliest") -> None:
        if reset not in ("earliest", "latest", "error"):
            raise ConfigurationError(f"reset={shown(reset)}: choose earliest, latest or error")
        given: object = cluster  # what callers without a type checker pass
        if not isinstance(given, AdminClient):
            raise ConfigurationError(
                f"cluster={shown(cluster)}: give an AdminClient, e.g. "
                f"AdminClient({{'bootstrap.servers': 'localhost:9092'}})"
            )
        self._cluster, self._reset = cluster, reset
        self._known: dict[Coordinates, Progress] = {}
        self._bound = False
        self._lock = Lock()

    def bind(self, engine: Engine, group: str, table: Table) -> None:
        """Set the database and the group; called by the inbox."""
        if self._bound:
            raise ConfigurationError("these KeptOffsets belong to another inbox; make one for each")
        self._bound = True
        self._engine, self._group, self._table = engine, group, table
        here = (
            table.c.consumer_group == bindparam("of_group"),
            table.c.topic == bindparam("of_topic"),
            table.c.partition_number == bindparam("of_partition"),
        )
        self._find = select(table.c.next_offset, table.c.topic_id).where(*here)
        self._place = update(table).where(*here)
        # Others may have moved the offset: read its current value, also in a transaction with an older snapshot.
        self._find_now = self._find.with_for_update()
        move = self._place.where(
            table.c.next_offset == bindparam("before"), table.c.topic_id == bindparam("of_topic_id")
        )
        self._move = move.values(next_offset=bindparam("after"))
        self._set = move.values(next_offset=bindparam("after"), topic_id=bindparam("new_topic_id"))

    # --- assignment ----------------------------------------------------------------------------------------------

    def on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """Assign partitions at the offsets of the database.

        Use it as ``consumer.subscribe(topics, on_assign=inbox.offsets.on_assign)``.
        """
        refuse_blocking(self._engine, "subscribe with on_assign=inbox.offsets.on_assign_async")
        begun = self.begin(consumer, partitions)
        try:
            consumer.incremental_assign(begun)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                raise
            # The group assigns eagerly.
            consumer.assign(begun)

    async def on_assign_async(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        """`on_assign`, for an `AsyncDedupConsumer`."""
        await greenlet_spawn(self.on_assign, Awaited(consumer), partitions)

    def begin(self, consumer: Any, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions with their start offsets.

        Use it as ``consumer.assign(inbox.offsets.begin(consumer, partitions))``. Messages that this process
        reads are judged from these offsets on. Raises `InboxError`, and the errors of the database and the
        client.
        """
        refuse_blocking(
            self._engine, "await consumer.assign(await inbox.offsets.begin_async(consumer, partitions))"
        )
        asked = [TopicPartition(each.topic, each.partition) for each in partitions]
        if not asked:
            return []
        topic_ids = beside_the_loop(self._engine, self._topic_ids, sorted({each.topic for each in asked}))
        bounds = [consumer.get_watermark_offsets(each, timeout=_ASK_S) for each in asked]
        begun = []
        for each, (low, high) in zip(asked, bounds, strict=True):
            start, topic_id = self._start(consumer, each, topic_ids[each.topic], low=low, high=high)
            with self._lock:
                self._known[each.topic, each.partition] = Progress(
                    each.topic, each.partition, topic_id, start
                )
            begun.append(TopicPartition(each.topic, each.partition, start))
        return begun

    async def begin_async(self, consumer: Any, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """`begin`, for an `AsyncDedupConsumer`."""
        return await greenlet_spawn(self.begin, Awaited(consumer), partitions)

    def move(self, connection: Connection, partitions: Iterable[TopicPartition]) -> None:
        """Set the group's offsets, in your transaction; you must then restart every reader of these partitions."""
        for each in partitions:
            if each.offset < 0:
                raise ConfigurationError(
                    f"{each.topic}[{each.partition}]: offset {each.offset} is below 0; give 0 or more"
                )
            here = _here(self._group, each.topic, each.partition)
            moved = connection.execute(self._place.values(next_offset=each.offset), here)
            if moved.rowcount == 0:
                raise InboxError(
                    f"{each.topic}[{each.partition}]: group {shown(self._group)} has no offset in the database; "
                    "begin the partition first"
                )

    def positions(self, connection: Connection) -> dict[Coordinates, int]:
        """Return the next offset of each partition of the group."""
        table = self._table
        rows = select(table.c.topic, table.c.partition_number, table.c.next_offset).where(
            table.c.consumer_group == self._group
        )
        return {(topic, partition): offset for topic, partition, offset in connection.execute(rows)}

    def _start(
        self, consumer: Any, at: TopicPartition, topic_id: str, *, low: int, high: int
    ) -> tuple[int, str]:
        here = _here(self._group, at.topic, at.partition)
        name = f"{at.topic}[{at.partition}]"
        for _ in range(_TRIES):
            with self._engine.begin() as connection:
                row = connection.execute(self._find, here).one_or_none()
            if row is None:
                committed = self._committed(consumer, at)
                start = (
                    committed
                    if low <= committed <= high
                    else self._by_reset(name, "is new to the group", low, high)
                )
                if self._insert(at, topic_id, start):
                    return start, topic_id
                continue
            kept: int = row.next_offset
            known = _told(row.topic_id)
            named = topic_id or known
            anew = bool(known) and named != known
            why = "was created again" if anew else f"has offsets from {low} to {high}"
            usable = low <= kept <= high and not anew
            if usable and named == row.topic_id:
                return kept, named
            start = kept if usable else self._by_reset(name, why, low, high)
            if not usable:
                logger.warning(
                    "%s: offset %d of group %s in the database is unusable, because the topic %s; continuing at %d",
                    name, kept, self._group, why, start,
                    extra={"event": "sql-offset-unusable"},
                )  # fmt: skip
            change = {"before": kept, "of_topic_id": row.topic_id, "after": start, "new_topic_id": named}
            with self._engine.begin() as connection:
                if connection.execute(self._set, {**here, **change}).rowcount:
                    return start, named
        raise InboxError(
            f"{name}: other processes keep moving its offset in the database; stop them, or assign it again"
        )

    def _committed(self, consumer: Any, at: TopicPartition) -> int:
        """Return the group's committed offset in Kafka, below 0 without one; retries while the coordinator moves."""
        until = time.monotonic() + _ASK_S
        while True:
            try:
                [stood] = consumer.committed([TopicPartition(at.topic, at.partition)], timeout=_ASK_S)
            except KafkaException as error:
                if error.args[0].code() not in _COORDINATOR_MOVES or time.monotonic() > until:
                    raise
                beside_the_loop(self._engine, time.sleep, _PAUSE_S)
            else:
                return int(stood.offset)

    def _by_reset(self, name: str, why: str, low: int, high: int) -> int:
        if self._reset == "error":
            raise InboxError(
                f"{name}: group {shown(self._group)} has no usable offset (the topic {why}), and reset=error; set one "
                "with move()"
            )
        return low if self._reset == "earliest" else high

    def _insert(self, at: TopicPartition, topic_id: str, start: int) -> bool:
        row = {
            "consumer_group": self._group, "topic": at.topic, "partition_number": at.partition,
            "next_offset": start, "topic_id": topic_id,
        }  # fmt: skip
        try:
            with self._engine.begin() as connection:
                connection.execute(insert(self._table), row)
        except IntegrityError:
            return False
        return True

    def _topic_ids(self, topics: list[str]) -> dict[str, str]:
        """Return each topic's ID; empty where the broker has no topic IDs."""
        # The consumer's own client cannot be asked in a callback.
        metadata: Any = self._cluster.list_topics(topics[0], timeout=_ASK_S)
        if (metadata.cluster_id or "").startswith("mockCluster"):
            return dict.fromkeys(topics, "")
        answers = self._cluster.describe_topics(TopicCollection(topics), request_timeout=_ASK_S)
        return {topic: _told(str(answers[topic].result(_ASK_S).topic_id or "")) for topic in topics}

    # --- messages ------------------------------------------------------------------------------------------------

    def advance(self, connection: Connection, places: Sequence[RecordRef]) -> set[int]:
        """Move the offsets behind these messages; return the indexes of messages that were handled before.

        Raises `OutOfOrderError` for messages that are not in their partition's order, `InboxError` for a
        partition that was not begun.
        """
        by_partition: dict[Coordinates, list[int]] = {}
        for index, place in enumerate(places):
            by_partition.setdefault((place.topic, place.partition), []).append(index)
        handled: set[int] = set()
        # Every batch in the same order, so that two batches cannot deadlock.
        for coordinates in sorted(by_partition):
            indexes = by_partition[coordinates]
            done = self._advance(connection, coordinates, [places[index].offset for index in indexes])
            handled.update(index for index in indexes if places[index].offset in done)
        return handled

    def _advance(
        self, connection: Connection, coordinates: Coordinates, offsets: list[int]
    ) -> frozenset[int]:
        progress = self._known.get(coordinates)
        if progress is None:
            raise InboxError(
                f"{coordinates[0]}[{coordinates[1]}] was not begun: subscribe with "
                "on_assign=inbox.offsets.on_assign, or assign "
                "inbox.offsets.begin(consumer, partitions)"
            )
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            raise InboxError(
                f"{progress.name}: offsets {offsets[:5]}... do not ascend; give messages in their order"
            )
        here = _here(self._group, *coordinates)
        for _ in range(_MOST_TURNS):
            with self._lock:
                version, step = progress.version, progress.hopeful(offsets)
            if step is None or not self._moved(connection, here, progress, step):
                row = connection.execute(self._find_now, here).one_or_none()
                with self._lock:
                    if progress.version != version:
                        # Another thread has moved the offset meanwhile.
                        continue
                    step = progress.step(
                        offsets, None if row is None or row.topic_id != progress.topic_id else row.next_offset
                    )
                if step.after != step.before and not self._moved(connection, here, progress, step):
                    continue
            with self._lock:
                progress.note(step, offsets, connection.get_transaction())
            return step.handled
        raise InboxError(
            f"{progress.name}: other processes keep moving its offset in the database; stop them, or assign it again"
        )

    def _moved(
        self, connection: Connection, here: dict[str, Any], progress: Progress, step: OffsetMove
    ) -> bool:
        values = {**here, "before": step.before, "after": step.after, "of_topic_id": progress.topic_id}
        return connection.execute(self._move, values).rowcount == 1


def _told(topic_id: str) -> str:
    """Return a topic ID; empty for the client's placeholder.

    A placeholder taken for an ID would make the topic look newly created once the broker has topic IDs.
    """
    return "" if topic_id == _NO_ID else topic_id


def _here(group: str, topic: str, partition: int) -> dict[str, Any]:
    return {"of_group": group, "of_topic": topic, "of_partition": partition}
