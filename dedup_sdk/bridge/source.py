"""The source end of a bridge: a member of a consumer group, its partitions, and how far each was copied.

What was committed of a topic says nothing of a new topic with the same name, whose records must not get IDs
of the old one. So no record of a partition is read before the identity of its topic is known.

A partition is paused when it is assigned, and then moved to its start also if the client stands there
already: a record may have been handed over before the pause took effect. A record, or an end, that lies
before what was copied has the topic checked at once. After a failed transaction nobody knows whether it was
committed until the next producer of the same ``transactional.id`` is ready; so the source reads again from
the committed offsets, and not from its batch. A commit that was made meanwhile counts only if its text
names the log that is read. If the group does not answer either, the member joins anew. An end of a
partition that the client reports counts only when the records before it are copied.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, Protocol

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.bridge.counters import BridgeCounters
from dedup_sdk.bridge.routes import PartitionCounts
from dedup_sdk.bridge.source_log import (
    Log,
    PartitionId,
    StartPosition,
    TopicLogs,
    id_prefix,
    parse_log,
    start_position,
)
from dedup_sdk.errors import BridgeError
from dedup_sdk.kafka.client_errors import passes, settings_refused, text_of
from dedup_sdk.kafka.closing import close_client, leave_group
from dedup_sdk.kafka.commit_text import is_one_log
from dedup_sdk.kafka.settings import membership_of
from dedup_sdk.kafka.topic_watch import LOOK_SOON_S, TopicWatch

log = logging.getLogger("dedup_sdk")

TOPICS_EVERY_S: Final = 3.0
"""Seconds between two checks of the topics' IDs. Until then records of a topic that was made anew get IDs of the old one, and are copied again with new ones."""
MISSING_S: Final = 30.0
"""Seconds for which a broker may not know a new topic yet."""
ASK_S: Final = 5.0
_UNKNOWN_TOPIC: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 (that is its public name)


class _Followed(NamedTuple):
    topic: str
    partition: int
    log: str


class _Answer(NamedTuple):
    """The log that a broker named for a topic; it must say so again after ``until`` (monotonic seconds) to be believed."""

    name: str
    until: float


class SourcePartitions:
    """The partitions of one member: those that are read, and those that wait until the identity of their topic is known.

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
        self._left: set[str] = set()
        """Topics of which the group has revoked every partition."""
        self._logged: set[tuple[str, str]] = set()
        self._anew: dict[str, _Answer] = {}
        """Topics that one answer says were made anew."""
        self._last: dict[str, str] = {}
        """The last log of each topic; when a topic is deleted, the group may revoke its partitions, and forget their offsets."""

    @property
    def waits(self) -> bool:
        """Whether a partition waits."""
        return bool(self._waiting)

    def log_of(self, place: PartitionId) -> Log:
        """Return the last known log of a partition."""
        return self.reading.get(place) or self._waiting.get(place) or Log("")

    def take(self, places: Iterable[PartitionId]) -> None:
        """Add assigned partitions; they wait."""
        given = list(places)
        self._logs.forget({topic for topic, _ in given})
        self._left -= {topic for topic, _ in given}
        self._waiting |= dict.fromkeys(given)

    def drop(self, places: Collection[PartitionId]) -> None:
        """Remove revoked partitions."""
        for place in places:
            self.reading.pop(place, None)
            self._waiting.pop(place, None)
        self._left |= {topic for topic, _ in places} - {topic for topic, _ in (*self.reading, *self._waiting)}

    def hold(self, places: Iterable[PartitionId]) -> list[PartitionId]:
        """Let partitions wait until the identity of their topic is checked again; return those that were read until now."""
        held = [place for place in places if place in self.reading]
        self._logs.forget({topic for topic, _ in held})
        for place in held:
            self._waiting[place] = self.reading.pop(place)
        return held

    def partitions_of_missing(self, topic: str) -> list[PartitionId] | None:
        """Return the partitions of a topic that the client reports missing; None where the topic was given by name."""
        return None if topic in self._given_names else [place for place in self.reading if place[0] == topic]

    def changed(self) -> list[PartitionId]:
        """Return the partitions whose topics were made anew, or are missing; asks the brokers every few seconds."""
        if time.monotonic() < self._watch.due_at:
            return []
        found = self._watch.look([_Followed(*place, log.name) for place, log in self.reading.items()])
        others = {each.topic for each in found} | self._watch.missing
        return [place for place in self.reading if place[0] in others]

    def beginnings(
        self, consumer: Consumer, at: Mapping[PartitionId, int]
    ) -> list[tuple[PartitionId, StartPosition]]:
        """Return the start positions of waiting partitions that are known by now; ``at``: how far each was copied.

        Raises `KafkaException` where the group cannot be asked, `BridgeError` for a topic that cannot be read.
        """
        if not self._waiting:
            return []
        names = self._answers()
        asked = [TopicPartition(*place) for place in self._waiting if place[0] in names]
        if not asked:
            return []
        found: dict[PartitionId, StartPosition] = {}
        for stands in consumer.committed(asked, timeout=ASK_S):
            if stands.error is not None:
                raise KafkaException(stands.error)
            place = (stands.topic, stands.partition)
            stood = self._waiting[place]
            found[place] = start_position(
                names[stands.topic], stands.offset, stands.metadata, stood=stood, at=at.get(place)
            )
        doubted = self._doubted({topic for (topic, _), begins in found.items() if begins.anew}, names)
        return [each for each in found.items() if each[0][0] not in doubted]

    def _doubted(self, anew: set[str], names: Mapping[str, str]) -> set[str]:
        """Return the topics of which one answer says that they were made anew: a broker may be behind, so that two answers must agree."""
        now = time.monotonic()
        doubted: set[str] = set()
        for topic, name in names.items():
            seen = self._anew.pop(topic, None)
            if topic not in anew or (seen is not None and seen.name == name and now >= seen.until):
                continue
            # A broker that was asked a moment ago may be the one that is behind.
            same = seen is not None and seen.name == name
            self._anew[topic] = seen if seen is not None and same else _Answer(name, now + LOOK_SOON_S)
            self._logs.doubt(topic, LOOK_SOON_S)
            doubted.add(topic)
        return doubted

    def begin(self, place: PartitionId, begins: StartPosition) -> None:
        """Mark a partition as read from now on."""
        del self._waiting[place]
        self.reading[place] = begins.log
        topic = place[0]
        told = (topic, begins.log.name)
        last, self._last[topic] = self._last.get(topic, ""), begins.log.name
        if (begins.anew or not is_one_log(last, begins.log.name)) and told not in self._logged:
            self._logged.add(told)
            self._counters.made_anew += 1
            log.warning(
                "bridge: topic %s was deleted and made anew; it is copied from its beginning, and its "
                "records get new IDs",
                topic,
            )
        elif begins.translated and told not in self._logged:
            self._logged.add(told)
            log.warning(
                "bridge: the group's offsets of topic %s were committed in another cluster; it is read "
                "from these offsets",
                topic,
            )

    def report_removed_topics(self) -> None:
        """Log topics whose partitions were revoked because the topics were deleted; raises as `beginnings`."""
        if self._left and not self._waiting:
            self._answers()

    def _answers(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for topic, answer in self._logs.answers({topic for topic, _ in self._waiting} | self._left).items():
            if isinstance(answer, str):
                names[topic] = answer
                self._missing.pop(topic, None)
                self._left.discard(topic)
            elif answer.args[0].code() in _UNKNOWN_TOPIC:
                self._miss(topic)
            elif not passes(answer):
                raise BridgeError(
                    f"the source does not say what topic {topic!r} is: {text_of(answer)}; may the bridge describe it?"
                )
        return names

    def _miss(self, topic: str) -> None:
        now = time.monotonic()
        if topic not in self._missing:
            # A broker may be behind: ask once more.
            self._missing[topic] = now
        elif topic not in self._given_names:
            self._left.discard(topic)
            if self._missing[topic] < math.inf:
                self._missing[topic] = math.inf
                self._counters.gone += 1
                log.warning(
                    "bridge: topic %s was deleted at the source; its records that were not copied are lost",
                    topic,
                )
        elif now - self._missing[topic] > MISSING_S:
            raise BridgeError(f"the source has no topic {topic!r} any more; create it again, or leave it out")


_SLICE: Final = 1_000
_MOST_BYTES: Final = 32 * 2**20
_WAIT_S: Final = 0.2
_SOON_S: Final = 0.02
"""The same while start positions are asked for."""
_COMES_BACK: Final = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError._RESOLVE})  # noqa: SLF001 (those are their public names)
"""The group removed a member that was silent for long: it joins again. A name server that is away is asked again."""
_BUSY: Final = frozenset({KafkaError._STATE})  # noqa: SLF001 (as above)
_NOT_THERE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 (as above)
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
        """Return at most ``most`` records (and about 32 MiB) of this member's partitions, in order; an empty list after a short while.

        Raises `BridgeError` for an error that does not pass by itself.
        """
        self._batch = []
        self._place_partitions()
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
            place = (message.topic(), message.partition())
            if message.offset() < self._copied_to.get(place, -1):
                self.doubt({place: message.offset()})
            elif place in self._partitions.reading:
                self._reported_ends[place] = message.offset()
        elif (
            error.code() in _NOT_THERE
            and (partitions_of_missing := self._partitions_of_missing(message)) is not None
        ):
            self._hold(partitions_of_missing)
        elif error.code() in _COMES_BACK or passes(KafkaException(error)):
            log.debug("bridge: the source says: %s", error.str())
        else:
            raise BridgeError(
                f"the source cannot be read: {error.str()}; fix the cause, and start the bridge again"
            )

    # --- the identity of the logs ----------------------------------------------------------------------------------

    def id_prefix(self, place: PartitionId) -> str:
        """Return the beginning of the IDs of a partition's records, see `dedup_sdk.bridge.source_log.id_prefix`."""
        return id_prefix(self._cluster, place, self._partitions.log_of(place))

    def behind_copied(self, firsts: Mapping[PartitionId, int]) -> dict[PartitionId, int]:
        """Return those of a batch's first offsets that were copied already: the topic was made anew, or its log was cut."""
        return {place: first for place, first in firsts.items() if first < self._copied_to.get(place, -1)}

    def doubt(self, firsts: Mapping[PartitionId, int]) -> None:
        """Check the identity of these partitions' topics again; ``firsts``: the offsets to read from where it is the same."""
        if not firsts:
            return
        held = self._hold(firsts)
        self._copied_to |= {place: firsts[place] for place in held}

    def _partitions_of_missing(self, message: Any) -> list[PartitionId] | None:
        topic = None if message is None else message.topic()
        return None if topic is None else self._partitions.partitions_of_missing(topic)

    def _hold(self, places: Iterable[PartitionId]) -> list[PartitionId]:
        held = self._partitions.hold(places)
        for place in held:
            self._reported_ends.pop(place, None)
            # A partition that a rebalance revokes now cannot be paused.
            with suppress(KafkaException):
                self._consumer.pause([TopicPartition(*place)])
        reading = self._partitions.reading
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) in reading]
        return held

    def _place_partitions(self) -> None:
        """Start waiting partitions whose position is known by now, and stop those whose topic has changed."""
        try:
            for place, begins in self._partitions.beginnings(self._consumer, self._copied_to):
                self._start(place, begins)
            self._partitions.report_removed_topics()
            self._hold(self._partitions.changed())
        except KafkaException as error:
            if not passes(error) and error.args[0].code() not in (_NOT_THERE | _BUSY):
                raise BridgeError(
                    f"the group's offsets cannot be read: {text_of(error)}; check that the bridge may read the group"
                ) from None
            log.debug("bridge: %s; asked again", text_of(error))

    def _start(self, place: PartitionId, begins: StartPosition) -> None:
        # Also where the client's position is the same: records that it returned before were dropped, and it
        # would go on behind them.
        if begins.offset is not None:
            self._seek(place, begins.offset)
        elif self._resets:
            self._seek(place, OFFSET_BEGINNING)
        if begins.anew:
            self._copied_to.pop(place, None)
            self._uncommitted.pop(place, None)
        self._consumer.resume([TopicPartition(*place)])
        self._partitions.begin(place, begins)

    # --- the group -------------------------------------------------------------------------------------------------

    @property
    def member(self) -> object:
        """The member's metadata, for a transaction."""
        return self._consumer.consumer_group_metadata()

    def copied(self, offsets: dict[PartitionId, int], *, committed: bool) -> None:
        """Set how far partitions were copied; ``committed``: the offsets were part of the transaction. Called without offsets when there was no batch.

        Other offsets are committed now. Where that fails it is tried again later, and until then records
        may be copied twice.
        """
        self._copied_to |= offsets
        if not committed:
            self._uncommitted |= offsets
        else:
            # An older commit that waits would set the group back behind the transaction's offsets.
            for place in offsets:
                self._uncommitted.pop(place, None)
        for place, offset in self._reported_ends.items():
            if offset > self._copied_to.get(place, -1):
                self._copied_to[place] = self._uncommitted[place] = offset
        self._reported_ends.clear()
        if self._uncommitted:
            self._commit()

    def _commit(self) -> None:
        try:
            self._consumer.commit(offsets=self.positions(self._uncommitted), asynchronous=False)
        except KafkaException as error:
            if not passes(error):
                raise BridgeError(
                    f"the source refuses the group's commit: {text_of(error)}; check that the bridge may "
                    "write the group"
                ) from None
            log.info("bridge: the group's commit is tried again: %s", text_of(error))
        else:
            self._uncommitted.clear()

    def step_back(self, batch: Iterable[Any], *, to_committed: bool) -> None:
        """Read a batch again from its first records, or from the committed offsets; revoked partitions are left out."""
        self._reported_ends.clear()
        firsts: dict[PartitionId, int] = {}
        for message in batch:
            firsts.setdefault((message.topic(), message.partition()), message.offset())
        targets = {place: offset for place, offset in firsts.items() if place in self._partitions.reading}
        try:
            if to_committed and targets:
                asked = [TopicPartition(*place) for place in targets]
                stands = self._consumer.committed(asked, timeout=ASK_S)
                _raise_first_error(stands)
                targets |= {(tp.topic, tp.partition): tp.offset for tp in stands if self._is_ours(tp)}
            for place, offset in targets.items():
                self._seek(place, offset)
        except KafkaException as error:
            # No record of the batch may be skipped: a member that joins again begins with the committed offsets.
            log.info("bridge: joins its group again: %s", text_of(error))
            self._leave()
            self._forget()
            self._consumer = self._make()

    def _is_ours(self, stands: TopicPartition) -> bool:
        """Whether a committed offset belongs to the log that is read; a tool set one without a text before this bridge began."""
        told = parse_log(stands.metadata) if stands.offset >= 0 else None
        return told is not None and is_one_log(
            told.name, self._partitions.log_of((stands.topic, stands.partition)).name
        )

    def positions(self, offsets: Mapping[PartitionId, int]) -> list[TopicPartition]:
        """Return offsets as they are committed, each with the text that names its log."""
        texts = {place: str(self._partitions.log_of(place)) for place in offsets}
        return [TopicPartition(*place, offset, texts[place]) for place, offset in offsets.items()]

    def _seek(self, place: PartitionId, offset: int) -> None:
        for left in reversed(range(_SEEK_TRIES)):
            try:
                self._consumer.seek(TopicPartition(*place, offset))
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
        leave_group(self._consumer, membership_of(self._config), within_s=_LEAVE_S)
        close_client(self._consumer, within_s=_LEAVE_S)

    def has(self, place: PartitionId) -> bool:
        """Whether this member reads a partition."""
        return place in self._partitions.reading

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

    def ends(self, places: Iterable[PartitionId]) -> dict[PartitionId, int]:
        """Return the current end offsets of the partitions that have records; raises `KafkaException`."""
        bounds = {
            place: self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
            for place in places
        }
        return {place: high for place, (low, high) in bounds.items() if high > low}

    def ends_now(self, places: set[PartitionId]) -> dict[PartitionId, int | None]:
        """Return the current end offsets, 0 for an empty partition, None for one that is not listed; raises `KafkaException`."""
        counts = PartitionCounts(self._consumer.list_topics).all()
        there = {(topic, number) for topic, number in places if number < counts.get(topic, 0)}
        return dict.fromkeys(places, None) | dict.fromkeys(there, 0) | self.ends(there)

    @property
    def has_joined(self) -> bool:
        """Whether the group has assigned this member its partitions."""
        return self._joined

    def reached(self, ends: Mapping[PartitionId, int]) -> set[PartitionId]:
        """Return the partitions of which the group has copied every record below these offsets."""
        done = {place for place, end in ends.items() if self._copied_to.get(place, -1) >= end}
        rest = ends.keys() - done
        if not rest or not self._joined or not rest.isdisjoint(self._assigned):
            return done
        # Partitions of other members are asked for once those of this member are done.
        try:
            stands = self._consumer.committed([TopicPartition(*place) for place in rest], timeout=ASK_S)
        except KafkaException as error:
            log.debug("bridge: the group's offsets cannot be asked for: %s", text_of(error))
            return done
        return done | {(tp.topic, tp.partition) for tp in stands if tp.error is None and tp.offset >= ends[tp.topic, tp.partition]}  # fmt: skip

    def lag(self) -> int:
        """Return how many offsets this member has not copied yet, as far as its client knows the ends."""
        total = 0
        for place in self._assigned:
            with suppress(KafkaException):
                high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
                total += max(0, high - self._copied_to.get(place, high))
        return total

    # --- inside ----------------------------------------------------------------------------------------------------

    def _make(self) -> Consumer:
        with settings_refused(self._config, "--from"):
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
        self._partitions.take(given)

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self._assigned -= gone
        self._partitions.drop(gone)
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) not in gone]
        for place in gone:
            self._copied_to.pop(place, None)
            self._uncommitted.pop(place, None)
            self._reported_ends.pop(place, None)


def _raise_first_error(answers: Iterable[TopicPartition]) -> None:
    for tp in answers:
        if tp.error is not None:
            raise KafkaException(tp.error)


ENDS_EVERY_S: Final = 5.0
"""Seconds between two checks of the current end offsets."""
GONE_S: Final = 60.0
"""Seconds until a partition that is not listed is given up: a broker that just started, or has trouble with a topic, lists it late."""


class EndSource(Protocol):
    """The questions that `EndOffsets` asks of the source."""

    def ends_now(self, places: set[PartitionId]) -> dict[PartitionId, int | None]:
        """See `Source.ends_now`."""

    def reached(self, ends: dict[PartitionId, int]) -> set[PartitionId]:
        """See `Source.reached`."""

    @property
    def has_joined(self) -> bool:
        """See `Source.has_joined`."""


class EndOffsets:
    """The end offsets of the partitions when a run began, without those of empty ones: such a run stops when all are reached.

    A log that was made anew, or cut, may never reach its end again: when two checks find the same lower
    end, that one counts.
    """

    def __init__(self, ends: dict[PartitionId, int]) -> None:
        self._ends = ends
        self._lower: dict[PartitionId, int] = {}
        self._unlisted: dict[PartitionId, float] = {}
        self._look_at = time.monotonic() + ENDS_EVERY_S

    def are_reached(self, source: EndSource) -> bool:
        """Whether the group has copied all records below the ends; called when no records come."""
        for place in source.reached(self._ends):
            del self._ends[place]
        if self._ends and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + ENDS_EVERY_S
            self._look(source)
        # A member that is about to join must not leave: its client would wait long for it.
        return not self._ends and source.has_joined

    def _look(self, source: EndSource) -> None:
        try:
            now = source.ends_now(set(self._ends))
        except KafkaException as error:
            log.debug("bridge: the end offsets cannot be asked for: %s", text_of(error))
            return
        self._retry_later({place for place, end in now.items() if end is None})
        before, self._lower = (
            self._lower,
            {place: end for place, end in now.items() if end is not None and end < self._ends[place]},
        )
        for place, end in self._lower.items():
            if before.get(place) != end:
                continue
            log.warning(
                "bridge: %s[%d] ended at %d when the run began, and ends at %d now; it is copied up to the latter",
                *place,
                self._ends[place],
                end,
            )
            if end:
                self._ends[place] = end
            else:
                del self._ends[place]

    def _retry_later(self, unlisted: set[PartitionId]) -> None:
        """Give up partitions that have not been listed for long."""
        seen = time.monotonic()
        self._unlisted = {place: self._unlisted.get(place, seen) for place in unlisted}
        for place, since in self._unlisted.items():
            if seen - since >= GONE_S:
                log.warning(
                    "bridge: %s[%d] had records up to %d when the run began, and the source does not list "
                    "it any more; its records that were not "
                    "copied are missing at the target",
                    *place, self._ends.pop(place),
                )  # fmt: skip
