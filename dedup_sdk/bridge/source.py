"""The end that records come from: a member of a group, what it was given, and how far that was read."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.bridge.counters import BridgeCounters
from dedup_sdk.bridge.placing import ASK_S, Placing
from dedup_sdk.bridge.position import Beginning, Place, lane_name, parse_log
from dedup_sdk.bridge.topics import Topics
from dedup_sdk.errors import BridgeError
from dedup_sdk.kafka.closing import close_client, leave_group
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.refusals import settings_refused, text_of
from dedup_sdk.kafka.settings import membership_of
from dedup_sdk.rule_fingerprint import is_one_log

log = logging.getLogger("dedup_sdk")

_SLICE: Final = 1_000
_MOST_BYTES: Final = 32 * 2**20
_WAIT_S: Final = 0.2
_SOON_S: Final = 0.02
"""The same while it is asked from where a partition is to be read."""
_COMES_BACK: Final = frozenset({KafkaError._MAX_POLL_EXCEEDED, KafkaError._RESOLVE})  # noqa: SLF001 (those are their public names)
"""The group put a member out that was silent for long: it joins again. A name server that is away is asked again."""
_BUSY: Final = frozenset({KafkaError._STATE})  # noqa: SLF001 (as above)
_NOT_THERE: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001 (as above)
_SEEK_TRIES: Final = 50
_LEAVE_S: Final = 30.0
_SEEK_PAUSE_S: Final = 0.02


class Source:
    """Reads batches. For one thread, which hears of rebalances inside `read`: no batch is in hand then.

    Args:
        config: of the client, see `source_settings`.
        topics: names, and patterns that begin with ``^``.
        counters: those of the bridge.
    """

    def __init__(self, config: dict[str, Any], topics: list[str], counters: BridgeCounters) -> None:
        self._config, self._topics, self._counters = config, topics, counters
        strategy = str(config.get("partition.assignment.strategy", "cooperative-sticky"))
        self._is_incremental = "cooperative" in strategy
        self._resets = str(config.get("auto.offset.reset")).lower() != "error"
        """Whether a group that has committed nothing begins by itself, at the beginning; else the client says that it cannot."""
        self._cluster = ""
        self._assigned: set[Place] = set()
        self._joined = False
        self._batch: list[Any] = []
        self._at: dict[Place, int] = {}
        """How far partitions of ours were copied, or have no more: the next offset."""
        self._uncommitted: dict[Place, int] = {}
        self._ends_heard: dict[Place, int] = {}
        """Where partitions have no more, told beside the records in hand: true once these are copied."""
        self._consumer = self._make()

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, most: int) -> list[Any]:
        """Return records of partitions that are ours, in their order, at most ``most`` (and about 32 MiB); none after a short while.

        Raises `BridgeError` for what does not pass by itself.
        """
        self._batch = []
        self._place()
        self._take(1, _SOON_S if self._placing.waits else _WAIT_S)
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
            self._hear(error.args[0])
            return False
        placed = self._placing.placed
        for message in found:
            told = message.error()
            if told is not None:
                self._hear(told, message)
            elif (message.topic(), message.partition()) in placed:
                self._batch.append(message)
        return bool(found)

    def _hear(self, error: KafkaError, message: Any = None) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
            place = (message.topic(), message.partition())
            if message.offset() < self._at.get(place, -1):
                self.doubt({place: message.offset()})
            elif place in self._placing.placed:
                self._ends_heard[place] = message.offset()
        elif error.code() in _NOT_THERE and (missed := self._missed(message)) is not None:
            self._hold(missed)
        elif error.code() in _COMES_BACK or passes(KafkaException(error)):
            log.debug("bridge: the source says: %s", error.str())
        else:
            raise BridgeError(
                f"the source cannot be read: {error.str()}; see to it, and start the bridge again"
            )

    # --- which log it is -------------------------------------------------------------------------------------------

    def lies_in(self, place: Place) -> str:
        """Return what the IDs of a partition's records begin with, see `lane_name`."""
        return lane_name(self._cluster, place, self._placing.log_of(place))

    def gone_back(self, firsts: Mapping[Place, int]) -> dict[Place, int]:
        """Return those of a batch's first offsets that lie before what was copied already: the log is another, or was cut."""
        return {place: first for place, first in firsts.items() if first < self._at.get(place, -1)}

    def doubt(self, firsts: Mapping[Place, int]) -> None:
        """Ask anew which logs these partitions are; ``firsts``: from where they are read where they are the same."""
        if not firsts:
            return
        held = self._hold(firsts)
        self._at |= {place: firsts[place] for place in held}

    def _missed(self, message: Any) -> list[Place] | None:
        topic = None if message is None else message.topic()
        return None if topic is None else self._placing.missed(topic)

    def _hold(self, places: Iterable[Place]) -> list[Place]:
        held = self._placing.hold(places)
        for place in held:
            self._ends_heard.pop(place, None)
            # What a rebalance takes away now is not there to be paused.
            with suppress(KafkaException):
                self._consumer.pause([TopicPartition(*place)])
        placed = self._placing.placed
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) in placed]
        return held

    def _place(self) -> None:
        """Read what waits and is known by now, and have wait what is of another topic than before."""
        try:
            for place, begins in self._placing.beginnings(self._consumer, self._at):
                self._begin(place, begins)
            self._placing.look_after_those_that_left()
            self._hold(self._placing.changed())
        except KafkaException as error:
            if not passes(error) and error.args[0].code() not in (_NOT_THERE | _BUSY):
                raise BridgeError(
                    f"the group cannot be asked where it stands: {text_of(error)}; may the bridge read it?"
                ) from None
            log.debug("bridge: %s; asked again", text_of(error))

    def _begin(self, place: Place, begins: Beginning) -> None:
        # Also to where the client stands: what it handed over before was not taken, and it goes on behind that.
        if begins.offset is not None:
            self._seek(place, begins.offset)
        elif self._resets:
            self._seek(place, OFFSET_BEGINNING)
        if begins.anew:
            self._at.pop(place, None)
            self._uncommitted.pop(place, None)
        self._consumer.resume([TopicPartition(*place)])
        self._placing.begin(place, begins)

    # --- the group -------------------------------------------------------------------------------------------------

    @property
    def member(self) -> object:
        """Who this is to the group, for a transaction."""
        return self._consumer.consumer_group_metadata()

    def copied(self, offsets: dict[Place, int], *, committed: bool) -> None:
        """Note how far was copied; ``committed``: in one transaction with that. Called with nothing when there was nothing to copy.

        What is not committed is committed now. Where that is not possible it is tried again later, and may come twice until then.
        """
        self._at |= offsets
        if not committed:
            self._uncommitted |= offsets
        else:
            # An older commit that waits would set the group back to before what was copied in one transaction with its offsets.
            for place in offsets:
                self._uncommitted.pop(place, None)
        for place, offset in self._ends_heard.items():
            if offset > self._at.get(place, -1):
                self._at[place] = self._uncommitted[place] = offset
        self._ends_heard.clear()
        if self._uncommitted:
            self._commit()

    def _commit(self) -> None:
        try:
            self._consumer.commit(offsets=self.positions(self._uncommitted), asynchronous=False)
        except KafkaException as error:
            if not passes(error):
                raise BridgeError(
                    f"the source does not take the group's commit: {text_of(error)}; may the group be written?"
                ) from None
            log.info("bridge: the group's commit waits: %s", text_of(error))
        else:
            self._uncommitted.clear()

    def step_back(self, batch: Iterable[Any], *, to_committed: bool) -> None:
        """Read a batch again, from its first records, or from what is committed by now; what went to others stays with them."""
        self._ends_heard.clear()
        firsts: dict[Place, int] = {}
        for message in batch:
            firsts.setdefault((message.topic(), message.partition()), message.offset())
        targets = {place: offset for place, offset in firsts.items() if place in self._placing.placed}
        try:
            if to_committed and targets:
                asked = [TopicPartition(*place) for place in targets]
                stands = self._consumer.committed(asked, timeout=ASK_S)
                _raise_first_error(stands)
                targets |= {(tp.topic, tp.partition): tp.offset for tp in stands if self._is_ours(tp)}
            for place, offset in targets.items():
                self._seek(place, offset)
        except KafkaException as error:
            # Nothing that was read may be passed over: a member that joins anew begins with what is committed.
            log.info("bridge: joins its group anew: %s", text_of(error))
            self._leave()
            self._forget()
            self._consumer = self._make()

    def _is_ours(self, stands: TopicPartition) -> bool:
        """Whether a committed offset is of the log that is read; one that says nothing is what a tool set before this bridge began."""
        told = parse_log(stands.metadata) if stands.offset >= 0 else None
        return told is not None and is_one_log(
            told.name, self._placing.log_of((stands.topic, stands.partition)).name
        )

    def positions(self, offsets: Mapping[Place, int]) -> list[TopicPartition]:
        """Return offsets as they are committed, each with a text that says of which log it is."""
        texts = {place: str(self._placing.log_of(place)) for place in offsets}
        return [TopicPartition(*place, offset, texts[place]) for place, offset in offsets.items()]

    def _seek(self, place: Place, offset: int) -> None:
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

    def has(self, place: Place) -> bool:
        """Whether a partition is ours, and read."""
        return place in self._placing.placed

    # --- how far ---------------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""
        if not self._cluster:
            self._cluster = self._consumer.list_topics(timeout=ASK_S).cluster_id or ""
        return self._cluster

    def partitions(self, reads: Callable[[str], bool]) -> list[Place]:
        """Return the partitions of all topics that are read; raises `KafkaException`."""
        counts = Topics(self._consumer.list_topics).all()
        return [(topic, number) for topic, count in counts.items() if reads(topic) for number in range(count)]

    def ends(self, places: Iterable[Place]) -> dict[Place, int]:
        """Return where the logs end now, of those that have anything; raises `KafkaException`."""
        bounds = {
            place: self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=ASK_S)
            for place in places
        }
        return {place: high for place, (low, high) in bounds.items() if high > low}

    def ends_now(self, places: set[Place]) -> dict[Place, int | None]:
        """Return where these logs end now, 0 where there is nothing, None where no such partition is listed; raises `KafkaException`."""
        counts = Topics(self._consumer.list_topics).all()
        there = {(topic, number) for topic, number in places if number < counts.get(topic, 0)}
        return dict.fromkeys(places, None) | dict.fromkeys(there, 0) | self.ends(there)

    @property
    def has_joined(self) -> bool:
        """Whether the group has said which partitions are ours."""
        return self._joined

    def reached(self, ends: Mapping[Place, int]) -> set[Place]:
        """Return the places of which the group has copied all up to some ends."""
        done = {place for place, end in ends.items() if self._at.get(place, -1) >= end}
        rest = ends.keys() - done
        if not rest or not self._joined or not rest.isdisjoint(self._assigned):
            return done
        # What another member has is asked for when all that is ours is done.
        try:
            stands = self._consumer.committed([TopicPartition(*place) for place in rest], timeout=ASK_S)
        except KafkaException as error:
            log.debug("bridge: the group's offsets cannot be asked for: %s", text_of(error))
            return done
        return done | {(tp.topic, tp.partition) for tp in stands if tp.error is None and tp.offset >= ends[tp.topic, tp.partition]}  # fmt: skip

    def lag(self) -> int:
        """Return how many offsets the partitions of this member have before them, as far as the client has heard."""
        total = 0
        for place in self._assigned:
            with suppress(KafkaException):
                high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)[1]
                total += max(0, high - self._at.get(place, high))
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
        self._assigned, self._at, self._uncommitted, self._ends_heard = set(), {}, {}, {}
        names = [each for each in self._topics if not each.startswith("^")]
        self._placing = Placing(self._config, self.cluster_id, names, self._counters)

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        # Nothing is read of them before it is known which logs they are.
        (consumer.incremental_assign if self._is_incremental else consumer.assign)(partitions)
        consumer.pause(partitions)
        given = [(tp.topic, tp.partition) for tp in partitions]
        self._assigned |= set(given)
        self._placing.take(given)

    def _revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(tp.topic, tp.partition) for tp in partitions}
        self._assigned -= gone
        self._placing.drop(gone)
        self._batch = [each for each in self._batch if (each.topic(), each.partition()) not in gone]
        for place in gone:
            self._at.pop(place, None)
            self._uncommitted.pop(place, None)
            self._ends_heard.pop(place, None)


def _raise_first_error(answers: Iterable[TopicPartition]) -> None:
    for tp in answers:
        if tp.error is not None:
            raise KafkaException(tp.error)
