"""The source of a bridge: a member of a consumer group, its partitions, and how far each was copied.

Commits of a deleted topic are not valid for a new topic of the same name, whose records must not get IDs of
the old one. So no record of a partition is read before the topic's ID is known.

A partition is paused when it is assigned, and then always moved to its start position, even if the client
is there already: the client may have returned a record before the pause took effect. If a record or an end
of a partition lies before the copied offset, the topic is checked at once. After a failed transaction its
outcome is unknown until the next producer of the same ``transactional.id`` is ready; so the source
continues from the committed offsets, and not from its batch. A commit made meanwhile counts only if its
text names the log that is read. If the group does not answer either, the member joins again. An end of a
partition that the client reports counts only after the records before it are copied.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._commit_text import is_one_log
from dedup_sdk._kafka.assign.topic_watch import LOOK_SOON_S, TopicWatch
from dedup_sdk._kafka.client.client_errors import is_retriable, settings_refused, text_of
from dedup_sdk._kafka.client.closing import close_client, leave_group
from dedup_sdk._kafka.client.settings import membership_of
from dedup_sdk._masking import shown
from dedup_sdk.bridge._counters import BridgeCounters
from dedup_sdk.bridge._routes import PartitionCounts
from dedup_sdk.bridge._source_log import (
    Log,
    PartitionId,
    StartPosition,
    TopicLogs,
    id_prefix,
    parse_log,
    start_position,
)
from dedup_sdk.errors import BridgeError

log = logging.getLogger("dedup_sdk")

TOPICS_EVERY_S: Final = 3.0
"""Seconds between two checks of the topics' IDs.

Until the next check, records of a recreated topic get IDs of the old one, and are then copied again with new IDs.
"""
MISSING_S: Final = 30.0
"""Seconds for which a broker may not know a new topic yet."""
ASK_S: Final = 5.0
_UNKNOWN_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001


class _WatchedTopic(NamedTuple):
    topic: str
    partition: int
    log: str


class _Answer(NamedTuple):
    """The log that a broker named for a topic.

    A broker must name it again after ``until`` (monotonic seconds) before it counts.
    """

    name: str
    until: float


class SourcePartitions:
    """The partitions of one member: those that are read, and those that wait for the ID of their topic.

    Args:
        config: the configuration of the source's client.
        cluster_id: returns the source's cluster ID; raises `KafkaException`.
        names: topics given by name; all others were found by a pattern.
        counters: the bridge's counters.
    """

    def __init__(
        self, config: Mapping[str, Any], cluster_id: Callable[[], str], names: Iterable[str], counters: BridgeCounters
    ) -> None:  # fmt: skip
        self._logs, self._given_names, self._counters = (
            TopicLogs(config, cluster_id),
            frozenset(names),
            counters,
        )
        self._watch = TopicWatch(self._logs, every_s=TOPICS_EVERY_S)
        self.reading: dict[PartitionId, Log] = {}
        """The partitions that are read, and their logs."""
        self._waiting: dict[PartitionId, Log | None] = {}
        """The partitions that are not read for now, and the log that each had before."""
        self._missing: dict[str, float] = {}
        """Topics that no broker knows, and since when (monotonic seconds); infinity once that was logged."""
        self._revoked_topics: set[str] = set()
        """Topics of which the group has revoked every partition."""
        self._logged: set[tuple[str, str]] = set()
        self._recreated: dict[str, _Answer] = {}
        """Topics that one answer says were created again."""
        self._last: dict[str, str] = {}
        """The last log of each topic; after a deletion the group may revoke its partitions, and lose their offsets."""

    @property
    def waits(self) -> bool:
        """Whether a partition waits."""
        return bool(self._waiting)

    def log_of(self, partition_id: PartitionId) -> Log:
        """Return the last known log of a partition."""
        return self.reading.get(partition_id) or self._waiting.get(partition_id) or Log("")

    def add(self, partition_ids: Iterable[PartitionId]) -> None:
        """Add assigned partitions; they wait."""
        given = list(partition_ids)
        self._logs.forget({topic for topic, _ in given})
        self._revoked_topics -= {topic for topic, _ in given}
        self._waiting |= dict.fromkeys(given)

    def remove(self, partition_ids: Collection[PartitionId]) -> None:
        """Remove revoked partitions."""
        for partition_id in partition_ids:
            self.reading.pop(partition_id, None)
            self._waiting.pop(partition_id, None)
        self._revoked_topics |= {topic for topic, _ in partition_ids} - {
            topic for topic, _ in (*self.reading, *self._waiting)
        }

    def suspend(self, partition_ids: Iterable[PartitionId]) -> list[PartitionId]:
        """Let partitions wait until their topic is checked again; return those that were being read."""
        suspended = [partition_id for partition_id in partition_ids if partition_id in self.reading]
        self._logs.forget({topic for topic, _ in suspended})
        for partition_id in suspended:
            self._waiting[partition_id] = self.reading.pop(partition_id)
        return suspended

    def partitions_of_missing(self, topic: str) -> list[PartitionId] | None:
        """Return the partitions of a topic that the client reports missing; None where the topic was given by name."""
        return (
            None
            if topic in self._given_names
            else [partition_id for partition_id in self.reading if partition_id[0] == topic]
        )

    def changed(self) -> list[PartitionId]:
        """Return the partitions whose topics were created again, or are missing; asks the brokers every few seconds."""
        if time.monotonic() < self._watch.due_at:
            return []
        found = self._watch.look(
            [_WatchedTopic(*partition_id, log.name) for partition_id, log in self.reading.items()]
        )
        others = {each.topic for each in found} | self._watch.missing
        return [partition_id for partition_id in self.reading if partition_id[0] in others]

    def start_positions(
        self, consumer: Consumer, copied_to: Mapping[PartitionId, int]
    ) -> list[tuple[PartitionId, StartPosition]]:
        """Return the start positions of waiting partitions that are known by now.

        ``copied_to``: how far each was copied. Raises `KafkaException` where the group does not answer,
        `BridgeError` for a topic that cannot be read.
        """
        if not self._waiting:
            return []
        names = self._answers()
        asked = [TopicPartition(*partition_id) for partition_id in self._waiting if partition_id[0] in names]
        if not asked:
            return []
        found: dict[PartitionId, StartPosition] = {}
        for committed in consumer.committed(asked, timeout=ASK_S):
            if committed.error is not None:
                raise KafkaException(committed.error)
            partition_id = (committed.topic, committed.partition)
            previous = self._waiting[partition_id]
            found[partition_id] = start_position(
                names[committed.topic],
                committed.offset,
                committed.metadata,
                previous=previous,
                copied_to=copied_to.get(partition_id),
            )
        unconfirmed = self._unconfirmed(
            {topic for (topic, _), start in found.items() if start.recreated}, names
        )
        return [each for each in found.items() if each[0][0] not in unconfirmed]

    def _unconfirmed(self, recreated: set[str], names: Mapping[str, str]) -> set[str]:
        """Return the topics that only one answer calls recreated.

        A broker may have old metadata, so that two answers must agree.
        """
        now = time.monotonic()
        unconfirmed: set[str] = set()
        for topic, name in names.items():
            seen = self._recreated.pop(topic, None)
            if topic not in recreated or (seen is not None and seen.name == name and now >= seen.until):
                continue
            # The broker that answered a moment ago may be the one with old metadata.
            same = seen is not None and seen.name == name
            self._recreated[topic] = seen if seen is not None and same else _Answer(name, now + LOOK_SOON_S)
            self._logs.ask_again_after(topic, LOOK_SOON_S)
            unconfirmed.add(topic)
        return unconfirmed

    def begin(self, partition_id: PartitionId, start: StartPosition) -> None:
        """Mark a partition as read from now on."""
        del self._waiting[partition_id]
        self.reading[partition_id] = start.log
        topic = partition_id[0]
        told = (topic, start.log.name)
        last, self._last[topic] = self._last.get(topic, ""), start.log.name
        if (start.recreated or not is_one_log(last, start.log.name)) and told not in self._logged:
            self._logged.add(told)
            self._counters.made_anew += 1
            log.warning(
                "bridge: topic %s was deleted and created again; it is copied from its beginning, and its records "
                "get new IDs",
                topic,
                extra={"event": "bridge-topic-recreated"},
            )
        elif start.translated and told not in self._logged:
            self._logged.add(told)
            log.warning(
                "bridge: the group's offsets of topic %s were committed in another cluster; it is read "
                "from these offsets",
                topic,
                extra={"event": "bridge-offsets-of-another-cluster"},
            )

    def report_removed_topics(self) -> None:
        """Log topics whose partitions were revoked because the topics were deleted; raises as `beginnings`."""
        if self._revoked_topics and not self._waiting:
            self._answers()

    def _answers(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for topic, answer in self._logs.answers(
            {topic for topic, _ in self._waiting} | self._revoked_topics
        ).items():
            if isinstance(answer, str):
                names[topic] = answer
                self._missing.pop(topic, None)
                self._revoked_topics.discard(topic)
            elif answer.args[0].code() in _UNKNOWN_TOPIC:
                self._note_missing(topic)
            elif not is_retriable(answer):
                raise BridgeError(
                    f"the source does not return the ID of topic {shown(topic)}: {text_of(answer)}; allow the bridge "
                    "to describe it"
                )
        return names

    def _note_missing(self, topic: str) -> None:
        now = time.monotonic()
        if topic not in self._missing:
            # A broker may have old metadata: ask once more.
            self._missing[topic] = now
        elif topic not in self._given_names:
            self._revoked_topics.discard(topic)
            if self._missing[topic] < math.inf:
                self._missing[topic] = math.inf
                self._counters.gone += 1
                log.warning(
                    "bridge: topic %s was deleted at the source; its records that were not copied are lost",
                    topic,
                    extra={"event": "bridge-topic-gone"},
                )
        elif now - self._missing[topic] > MISSING_S:
            raise BridgeError(
                f"the source has no topic {shown(topic)} any more; create it again, or leave it out"
            )


_SLICE: Final = 1_000
_MOST_BYTES: Final = 32 * 2**20
_WAIT_S: Final = 0.2
_SOON_S: Final = 0.02
"""Seconds to wait for records while start positions are being read."""
_RETRIABLE_ERRORS: Final = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError._RESOLVE})  # noqa: SLF001
"""The group removed a member that did not poll for long: it joins again. A failed name resolution is retried."""
_BUSY: Final = frozenset({KafkaError._STATE, KafkaError._OUTDATED})  # noqa: SLF001 (as above)
"""A rebalance came between: the partition is asked about again, if it is still there."""
_SEEK_TRIES: Final = 50
_LEAVE_S: Final = 30.0
_SEEK_PAUSE_S: Final = 0.02


class Source:
    """Reads batches. For one thread; rebalances happen inside `read`, while it holds no batch.

    Args:
        config: the client's configuration, see `source_settings`.
        topics: names, and patterns that begin with ``^``.
        counters: the bridge's counters.
    """

    def __init__(self, config: dict[str, Any], topics: list[str], counters: BridgeCounters) -> None:
        self._config, self._topics, self._counters = config, topics, counters
        strategy = str(config.get("partition.assignment.strategy", "cooperative-sticky"))
        self._is_incremental = "cooperative" in strategy
        self._resets = str(config.get("auto.offset.reset")).lower() != "error"
        """Whether a group without committed offsets starts at the beginning; else the client reports an error."""
        self._cluster = ""
        self._assigned: set[PartitionId] = set()
        self._joined = False
        self._batch: list[Any] = []
        self._copied_to: dict[PartitionId, int] = {}
        """The next offset of each partition: up to there it is copied, or has no more records."""
        self._uncommitted: dict[PartitionId, int] = {}
        self._reported_ends: dict[PartitionId, int] = {}
        """Ends of partitions that the client reported beside a batch: valid once the batch is copied."""
        self._consumer = self._make()

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, most: int) -> list[Any]:
        """Return at most ``most`` records (and about 32 MiB) of this member's partitions, in order.

        The list is empty if none came for a short while. Raises `BridgeError` for an error that does not
        pass by itself.
        """
        self._batch = []
        self._start_known_partitions()
        self._take(1, _SOON_S if self._partitions.waits else _WAIT_S)
        size = 0
        while self._batch and len(self._batch) < most and size < _MOST_BYTES:
            before = len(self._batch)
            # With a timeout the client would wait for a full list.
            if not self._take(min(_SLICE, most - before), 0.0):
                break
            size += sum(map(len, self._batch[before:]))
        batch, self._batch = self._batch, []
        return batch

    def _take(self, most: int, wait_s: float) -> bool:
        try:
            found = self._consumer.consume(most, wait_s)
        except KafkaException as error:
            self._handle_error(error.args[0])
            return False
        reading = self._partitions.reading
        for message in found:
            told = message.error()
            if told is not None:
                self._handle_error(told, message)
            elif (message.topic(), message.partition()) in reading:
                self._batch.append(message)
        return bool(found)

    def _handle_error(self, error: KafkaError, message: Any = None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
            partition_id = (message.topic(), message.partition())
            if message.offset() < self._copied_to.get(partition_id, -1):
                self.recheck({partition_id: message.offset()})
            elif partition_id in self._partitions.reading:
                self._reported_ends[partition_id] = message.offset()
        elif (
            error.code() in _UNKNOWN_TOPIC
            and (partitions_of_missing := self._partitions_of_missing(message)) is not None
        ):
            self._suspend(partitions_of_missing)
        elif error.code() in _RETRIABLE_ERRORS or is_retriable(KafkaException(error)):
            log.debug("bridge: the source says: %s", error.str(), extra={"event": "bridge-source-error"})
        else:
            raise BridgeError(
                f"the source cannot be read: {error.str()}; fix the cause, and start the bridge again"
            )

    # --- the identity of the logs ----------------------------------------------------------------------------------

    def id_prefix(self, partition_id: PartitionId) -> str:
        """Return the beginning of the IDs of a partition's records, see `dedup_sdk.bridge._source_log.id_prefix`."""
        return id_prefix(self._cluster, partition_id, self._partitions.log_of(partition_id))

    def behind_copied(self, firsts: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Return the first offsets that lie before the copied ones: the topic was recreated, or its log truncated."""
        return {
            partition_id: first
            for partition_id, first in firsts.items()
            if first < self._copied_to.get(partition_id, -1)
        }

    def recheck(self, firsts: Mapping[PartitionId, int]) -> None:
        """Check the ID of these partitions' topics again.

        ``firsts``: the offsets to read from if the ID is the same.
        """
        if not firsts:
            return
        suspended = self._suspend(firsts)
        self._copied_to |= {partition_id: firsts[partition_id] for partition_id in suspended}

    def _partitions_of_missing(self, message: Any) -> list[PartitionId] | None:
        topic = None if message is None else message.topic()
        return None if topic is None else self._partitions.partitions_of_missing(topic)

    def _suspend(self, partition_ids: Iterable[PartitionId]) -> list[PartitionId]:
        suspended = self._partitions.suspend(partition_ids)
        for partition_id in suspended:
            self._reported_ends.pop(partition_id, None)
            # A partition that a rebalance revokes now cannot be paused.
            with suppress(KafkaException):
                self._consumer.pause([TopicPartition(*partition_id)])
        reading = self._partitions.reading
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) in reading]
        return suspended

    def _start_known_partitions(self) -> None:
        """Start waiting partitions whose position is known, and suspend those whose topic has changed."""
        try:
            for partition_id, start in self._partitions.start_positions(self._consumer, self._copied_to):
                self._start(partition_id, start)
            self._partitions.report_removed_topics()
            self._suspend(self._partitions.changed())
        except KafkaException as error:
            if not is_retriable(error) and error.args[0].code() not in (_UNKNOWN_TOPIC | _BUSY):
                raise BridgeError(
                    f"the group's offsets cannot be read: {text_of(error)}; check that the bridge may read the group"
                ) from None
            log.debug("bridge: %s; asked again", text_of(error), extra={"event": "bridge-asked-again"})

    def _start(self, partition_id: PartitionId, start: StartPosition) -> None:
        # Also where the client's position is the same: records that it returned before were dropped, and it
        # would go on behind them.
        if start.offset is not None:
            self._seek(partition_id, start.offset)
        elif self._resets:
            self._seek(partition_id, OFFSET_BEGINNING)
        if start.recreated:
            self._copied_to.pop(partition_id, None)
            self._uncommitted.pop(partition_id, None)
        self._consumer.resume([TopicPartition(*partition_id)])
        self._partitions.begin(partition_id, start)

    # --- the group -------------------------------------------------------------------------------------------------

    @property
    def member(self) -> object:
        """The member's metadata, for a transaction."""
        return self._consumer.consumer_group_metadata()

    def copied(self, offsets: dict[PartitionId, int], *, committed: bool) -> None:
        """Set how far partitions were copied; called without offsets when there was no batch.

        ``committed``: the offsets were part of the transaction. Other offsets are committed now. If that
        fails it is retried later, and until then records may be copied twice.
        """
        self._copied_to |= offsets
        if not committed:
            self._uncommitted |= offsets
        else:
            # A pending older commit would set the group back before the transaction's offsets.
            for partition_id in offsets:
                self._uncommitted.pop(partition_id, None)
        for partition_id, offset in self._reported_ends.items():
            if offset > self._copied_to.get(partition_id, -1):
                self._copied_to[partition_id] = self._uncommitted[partition_id] = offset
        self._reported_ends.clear()
        if self._uncommitted:
            self._commit()

    def _commit(self) -> None:
        try:
            self._consumer.commit(offsets=self.positions(self._uncommitted), asynchronous=False)
        except KafkaException as error:
            if not is_retriable(error):
                raise BridgeError(
                    f"the source refuses the group's commit: {text_of(error)}; check that the bridge may "
                    "write the group"
                ) from None
            log.info(
                "bridge: the group's commit failed and is retried: %s",
                text_of(error),
                extra={"event": "bridge-commit-failed"},
            )
        else:
            self._uncommitted.clear()

    def rewind(self, batch: Iterable[Any], *, to_committed: bool) -> None:
        """Read a batch again from its first records, or from the committed offsets; revoked partitions are skipped."""
        self._reported_ends.clear()
        firsts: dict[PartitionId, int] = {}
        for message in batch:
            firsts.setdefault((message.topic(), message.partition()), message.offset())
        targets = {
            partition_id: offset
            for partition_id, offset in firsts.items()
            if partition_id in self._partitions.reading
        }
        try:
            if to_committed and targets:
                asked = [TopicPartition(*partition_id) for partition_id in targets]
                committed_offsets = self._consumer.committed(asked, timeout=ASK_S)
                _raise_first_error(committed_offsets)
                targets |= {
                    (tp.topic, tp.partition): tp.offset
                    for tp in committed_offsets
                    if self._is_of_read_log(tp)
                }
            for partition_id, offset in targets.items():
                self._seek(partition_id, offset)
        except KafkaException as error:
            # No record of the batch may be skipped: a member that joins again begins with the committed offsets.
            log.info(
                "bridge: joins its group again: %s", text_of(error), extra={"event": "bridge-joins-again"}
            )
            self._leave()
            self._forget()
            self._consumer = self._make()

    def _is_of_read_log(self, committed: TopicPartition) -> bool:
        """Whether a committed offset belongs to the log that is read.

        An offset without a text was set by a tool before this bridge began.
        """
        told = parse_log(committed.metadata) if committed.offset >= 0 else None
        return told is not None and is_one_log(
            told.name, self._partitions.log_of((committed.topic, committed.partition)).name
        )

    def positions(self, offsets: Mapping[PartitionId, int]) -> list[TopicPartition]:
        """Return offsets as they are committed, each with the text that names its log."""
        texts = {partition_id: str(self._partitions.log_of(partition_id)) for partition_id in offsets}
        return [
            TopicPartition(*partition_id, offset, texts[partition_id])
            for partition_id, offset in offsets.items()
        ]

    def _seek(self, partition_id: PartitionId, offset: int) -> None:
        for left in reversed(range(_SEEK_TRIES)):
            try:
                self._consumer.seek(TopicPartition(*partition_id, offset))
            except KafkaException as error:
                # A partition that was assigned a moment ago cannot be moved yet.
                if not left or error.args[0].code() not in _BUSY:
                    raise
                time.sleep(_SEEK_PAUSE_S)
            else:
                return

    def close(self) -> None:
        """Leave the group."""
        if self._uncommitted:
            with suppress(BridgeError):
                self._commit()
        self._leave()

    def _leave(self) -> None:
        leave_group(self._consumer, membership_of(self._config), until=time.monotonic() + _LEAVE_S)
        close_client(self._consumer, within_s=_LEAVE_S)

    def has(self, partition_id: PartitionId) -> bool:
        """Whether this member reads a partition."""
        return partition_id in self._partitions.reading

    # --- offsets ---------------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""
        if not self._cluster:
            self._cluster = self._consumer.list_topics(timeout=ASK_S).cluster_id or ""
        return self._cluster

    def partitions(self, reads: Callable[[str], bool]) -> list[PartitionId]:
        """Return the partitions of all topics that the bridge reads; raises `KafkaException`."""
        counts = PartitionCounts(self._consumer.list_topics).all()
        return [(topic, number) for topic, count in counts.items() if reads(topic) for number in range(count)]

    def ends(self, partition_ids: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Return the current end offsets of the partitions that have records; raises `KafkaException`."""
        bounds = {
            partition_id: self._consumer.get_watermark_offsets(TopicPartition(*partition_id), timeout=ASK_S)
            for partition_id in partition_ids
        }
        return {partition_id: high for partition_id, (low, high) in bounds.items() if high > low}

    def ends_now(self, partition_ids: set[PartitionId]) -> dict[PartitionId, int | None]:
        """Return the current end offsets: 0 for an empty partition, None for an unlisted one.

        Raises `KafkaException`.
        """
        counts = PartitionCounts(self._consumer.list_topics).all()
        there = {(topic, number) for topic, number in partition_ids if number < counts.get(topic, 0)}
        return dict.fromkeys(partition_ids, None) | dict.fromkeys(there, 0) | self.ends(there)

    @property
    def has_joined(self) -> bool:
        """Whether the group has assigned this member its partitions."""
        return self._joined

    def reached(self, ends: Mapping[PartitionId, int]) -> set[PartitionId]:
        """Return the partitions of which the group has copied every record below these offsets."""
        done = {
            partition_id for partition_id, end in ends.items() if self._copied_to.get(partition_id, -1) >= end
        }
        rest = ends.keys() - done
        if not rest or not self._joined or not rest.isdisjoint(self._assigned):
            return done
        # Offsets of other members are read once the partitions of this member are done.
        try:
            committed_offsets = self._consumer.committed(
                [TopicPartition(*partition_id) for partition_id in rest], timeout=ASK_S
            )
        except KafkaException as error:
            log.debug(
                "bridge: the group's offsets cannot be read: %s",
                text_of(error),
                extra={"event": "bridge-offsets-unreadable"},
            )
            return done
        return done | {
            (tp.topic, tp.partition)
            for tp in committed_offsets
            if tp.error is None and tp.offset >= ends[tp.topic, tp.partition]
        }

    def lag(self) -> int:
        """Return how many offsets this member has not copied yet, as far as its client knows the ends."""
        total = 0
        for partition_id in self._assigned:
            with suppress(KafkaException):
                high = self._consumer.get_watermark_offsets(TopicPartition(*partition_id), cached=True)[1]
                total += max(0, high - self._copied_to.get(partition_id, high))
        return total

    # --- inside ----------------------------------------------------------------------------------------------------

    def _make(self) -> Consumer:
        with settings_refused(self._config, "--from-client-config"):
            consumer = Consumer(self._config)
        self._forget()
        consumer.subscribe(self._topics, on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke)
        return consumer

    def _forget(self) -> None:
        self._joined = False
        self._assigned, self._copied_to, self._uncommitted, self._reported_ends = set(), {}, {}, {}
        names = [each for each in self._topics if not each.startswith("^")]
        self._partitions = SourcePartitions(self._config, self.cluster_id, names, self._counters)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        # No record is read before the identity of the topics is known.
        (consumer.incremental_assign if self._is_incremental else consumer.assign)(partitions)
        consumer.pause(partitions)
        given = [(tp.topic, tp.partition) for tp in partitions]
        self._assigned |= set(given)
        self._partitions.add(given)

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self._assigned -= gone
        self._partitions.remove(gone)
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) not in gone]
        for partition_id in gone:
            self._copied_to.pop(partition_id, None)
            self._uncommitted.pop(partition_id, None)
            self._reported_ends.pop(partition_id, None)


def _raise_first_error(answers: Iterable[TopicPartition]) -> None:
    for tp in answers:
        if tp.error is not None:
            raise KafkaException(tp.error)


ENDS_EVERY_S: Final = 5.0
"""Seconds between two checks of the current end offsets."""
GONE_S: Final = 60.0
"""Seconds until an unlisted partition counts as deleted; a broker that just started may list it late."""


class EndSource(Protocol):
    """The questions that `EndOffsets` asks of the source."""

    def ends_now(self, partition_ids: set[PartitionId]) -> dict[PartitionId, int | None]:
        """See `Source.ends_now`."""

    def reached(self, ends: dict[PartitionId, int]) -> set[PartitionId]:
        """See `Source.reached`."""

    @property
    def has_joined(self) -> bool:
        """See `Source.has_joined`."""


class EndOffsets:
    """The end offsets at the start of a run; the run stops when all are reached. Empty partitions are left out.

    A log that was recreated or truncated may never reach its end again: when two checks find the same lower
    end, that one counts.
    """

    def __init__(self, ends: dict[PartitionId, int]) -> None:
        self._ends = ends
        self._lower: dict[PartitionId, int] = {}
        self._unlisted: dict[PartitionId, float] = {}
        self._look_at = time.monotonic() + ENDS_EVERY_S

    def are_reached(self, source: EndSource) -> bool:
        """Whether the group has copied all records below the ends; called when no records come."""
        for partition_id in source.reached(self._ends):
            del self._ends[partition_id]
        if self._ends and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + ENDS_EVERY_S
            self._look(source)
        # A member that is about to join must not leave: its client would wait long for it.
        return not self._ends and source.has_joined

    def _look(self, source: EndSource) -> None:
        try:
            now = source.ends_now(set(self._ends))
        except KafkaException as error:
            log.debug(
                "bridge: the end offsets cannot be read: %s",
                text_of(error),
                extra={"event": "bridge-ends-unreadable"},
            )
            return
        self._retry_later({partition_id for partition_id, end in now.items() if end is None})
        before, self._lower = (
            self._lower,
            {
                partition_id: end
                for partition_id, end in now.items()
                if end is not None and end < self._ends[partition_id]
            },
        )
        for partition_id, end in self._lower.items():
            if before.get(partition_id) != end:
                continue
            log.warning(
                "bridge: %s[%d] ended at %d when the run began, and ends at %d now; it is copied up to the latter",
                *partition_id,
                self._ends[partition_id],
                end,
                extra={"event": "bridge-log-truncated"},
            )
            if end:
                self._ends[partition_id] = end
            else:
                del self._ends[partition_id]

    def _retry_later(self, unlisted: set[PartitionId]) -> None:
        """Drop partitions that have not been listed for long."""
        seen = time.monotonic()
        self._unlisted = {partition_id: self._unlisted.get(partition_id, seen) for partition_id in unlisted}
        for partition_id, since in self._unlisted.items():
            if seen - since >= GONE_S:
                log.warning(
                    "bridge: %s[%d] had records up to %d when the run began, and the source no longer lists it; "
                    "its uncopied records are missing at the target",
                    *partition_id, self._ends.pop(partition_id),
                    extra={"event": "bridge-partition-gone"},
                )  # fmt: skip
