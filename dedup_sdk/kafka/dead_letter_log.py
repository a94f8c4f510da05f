"""What a dead-letter topic says of the past: which messages this group gave up, and so did not handle.

Recovery folds records of the source topic into marks, as if each had been handled. Those that were given up must not be
among them, or sending them again would be taken for a duplicate, and lost. So their coordinates are left out. Where the
dead-letter topic has lost its beginning, what was given up before cannot be known: older records are left out as a whole,
and coverage begins later. The same where the topic is not to be found, and the group's commits say that it gave something up.

The dead letters of a partition are a chain: each names the one before it, and the commits name the last. So what a topic of the same
name no longer has, because it was deleted and made anew, is missed, also by who never saw the old one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk.engine.partition import Partition
from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.dead_letters import DeadLetter, bears_names
from dedup_sdk.kafka.reader import SILENCE_S, Slice
from dedup_sdk.kafka.readers import Readers
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.lane.plan import NOTHING_KNOWN, StartPlan
from dedup_sdk.lane.state import GRACE

logger = logging.getLogger("dedup_sdk")

DISORDER_MS = 300_000
"""Milliseconds by which dead letters may lie out of order: producers repeat for so long, and clocks differ."""
ABSENT_S = 0.2
"""Seconds for which a topic has to be missing before that is believed: one broker of many may know less than the others."""
MISSED_S = 3.0
"""The same of a topic that is known to have been there."""
_BATCH = 5_000
_SLICE_S = 0.02
_PAUSE_S = 0.01

_NOT_THERE = (
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 (that is its public name)
    KafkaError.TOPIC_EXCEPTION, KafkaError.TOPIC_AUTHORIZATION_FAILED,
)  # fmt: skip
"""The topic is not there, cannot be (a group's name may be no topic's), or nobody tells this group. Any other error says nothing."""
_LONGEST_NAME = 249

_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)  # noqa: SLF001 (these are their public names)

Coordinates = tuple[str, int]


@dataclass(slots=True)
class GivenUp:
    """Which records of one partition were given up.

    ``digests``: offset -> digest (16 bytes) of its ID, None without one. ``timestamps``: offset -> timestamp (ms), of those
    only whose dead letters all say the same of time and ID. ``since_ms``: of records older than that it is not
    known whether they were; None: it is known of all, `NOTHING_KNOWN`: of none. ``known_from``: the same by offsets, of
    records before that one.
    """

    digests: dict[int, bytes | None] = field(default_factory=dict)
    since_ms: int | None = None
    timestamps: dict[int, int] = field(default_factory=dict)
    known_from: int = 0
    named: set[int] = field(default_factory=set)
    """What dead letters say that was given up before them (`DeadLetter.before`)."""

    def add(self, letter: DeadLetter) -> None:
        """Take in a dead letter of this partition."""
        offset, said = letter.offset, (letter.digest, letter.timestamp_ms)
        if offset not in self.digests and letter.timestamp_ms >= 0:
            self.timestamps[offset] = letter.timestamp_ms
        elif said != (self.digests.get(offset), self.timestamps.get(offset)):
            self.timestamps.pop(offset, None)
        self.digests[offset] = letter.digest
        if letter.before is not None:
            self.named.add(letter.before)

    def missing(self, buried: int | None) -> set[int]:
        """Return what the chain lacks: offsets after records that are named as given up, and have no dead letter.

        ``buried``: the one that the group's commits name, if any.
        """
        named = self.named if buried is None else {buried, *self.named}
        return {end for end in named if end - 1 not in self.digests}

    @property
    def unknown(self) -> bool:
        """Whether it is not known of any record."""
        return self.since_ms == NOTHING_KNOWN

    def spoils_marks(self, held: Partition, plan: StartPlan, client: Client) -> Generator[None, None, bool]:
        """Whether marks made without us, of a snapshot, may be of records given up that nobody knows of any more."""
        window = held.window
        if self.known_from > plan.progress.low:
            return _say_it_spoils(held)
        if self.since_ms is None:
            return False
        if window.time_ms is not None and not held.hangs_on_order and not self.unknown:
            with closing(client.tail_reader(held.topic, held.partition)) as reader:
                newest_ms = yield from reader.newest_before(plan.replay_to, plan.replay_from)
            reach_ms = window.time_ms + window.time_ms // GRACE
            if newest_ms is None or self.since_ms <= min(newest_ms, _now_ms()) - reach_ms:
                # What is older is in no window any more.
                return False
        return _say_it_spoils(held)

    def without(self, held: Partition, piece: Slice) -> list[bytes | None]:
        """Return the digests of a slice of the source topic, None for what was given up or may have been.

        Where the latter leaves something out, the partition's coverage begins later from now on.
        """
        digests = list(piece.digests)
        for row, offset in enumerate(piece.offsets) if self.digests else ():
            if offset in self.digests and not self._is_another(
                offset, held.keys.name_of(digests[row]), int(piece.timestamps[row])
            ):
                digests[row] = held.keys.given_up(digests[row])
        if self.since_ms is not None:
            early = np.flatnonzero(piece.timestamps < self.since_ms).tolist()
            for row in early:
                digests[row] = held.keys.given_up(digests[row])
            if early:
                # Where nothing was known before this slice, it would begin with a record that is left out.
                held.lane.know_from(piece.timestamps.clip(max=_now_ms()))
                held.lane.pass_uncounted(len(early))
                held.lane.forgot_before(self.since_ms)
        return digests

    def _is_another(self, offset: int, digest: bytes | None, timestamp_ms: int) -> bool:
        """Whether a record is not the one that was given up at its offset, but of a topic that was made anew since.

        Its ID alone does not say so, because the ID spec may have changed.
        """
        given_up = self.digests[offset]
        if given_up is None or offset not in self.timestamps:
            return False
        return digest != given_up and timestamp_ms != self.timestamps[offset]

    def between(self, low: int, high: int) -> dict[int, bytes]:
        """Return offset -> digest of the records in ``[low, high)`` that bear an ID: a snapshot may have marks of them."""
        return {
            offset: digest
            for offset, digest in self.digests.items()
            if digest is not None and low <= offset < high
        }


def _now_ms() -> int:
    return int(time.time() * 1000)


def _say_it_spoils(held: Partition) -> bool:
    logger.warning(
        "%s[%d]: snapshot not taken: the beginning of the dead-letter topic is gone, or all of it, so that the snapshot may have marks "
        "of messages that were given up; keep dead letters longer than the window", held.topic, held.partition,
    )  # fmt: skip
    return True


class DeadLetterLog:
    """One dead-letter topic, as far as it was read; read on, not again, by each recovery.

    ``expected``: the user named it, so that it has to be there; else no such topic means that nothing was given up but what the
    group's commits tell of.
    """

    def __init__(
        self, settings: ClientSettings, topic: str, *, expected: bool, readers: Readers | None = None
    ) -> None:
        self._settings = settings
        self._shared = readers is not None
        self._readers = Readers(settings) if readers is None else readers
        self._topic = topic
        self._expected = expected
        self._positions: dict[int, int] = {}
        self._cut: set[int] = set()
        self._missed: set[tuple[Coordinates, int]] = set()
        """What is not there, by a reading of the whole topic."""
        self._since_ms: int | None = None
        self._given_up: dict[Coordinates, GivenUp] = {}
        self._unreadable = 0
        self._absence_told = False
        self.there = False
        """Whether the topic was there when it was read last."""

    def read(
        self, topic: str, partition: int, *, buried: int | None = None
    ) -> Generator[None, None, GivenUp]:
        """Read to the end; return what was given up of a partition. Each step takes a few milliseconds.

        ``buried``: the offset before which the group gave something up of it, as it noted itself; None: it noted nothing.
        Raises `RecoveryError` when the broker refuses, `KafkaException` when it does not say now.
        """
        reader = self._readers.take()
        try:
            partitions = yield from self._found(reader, missed=self._expected or buried is not None)
            self.there = bool(partitions)
            if self.there:
                anew = not self._positions
                yield from self._read_on(reader, partitions, anew=anew)
                if not anew and not self._missing(topic, partition, buried) <= self._missed:
                    # It was made anew, perhaps, and has grown beyond where the old one was read to.
                    yield from self._read_on(reader, partitions, anew=True)
                self._missed |= self._missing(topic, partition, buried)
        except BaseException:
            reader.close()
            raise
        self._readers.give_back(reader)
        if not self._shared:
            self._readers.close()
        if not self.there:
            return self._without_topic(topic, partition, buried)
        known = self.known(topic, partition, buried)
        if known.known_from:
            logger.warning(
                "%s[%d]: dead letters of this group of messages before offset %d are missing in topic %s: what hangs on older records is "
                "unverified until the window has filled; was it deleted and made anew, is it compacted, or had dead_letters= another name?",
                topic, partition, known.known_from, self._topic,
            )  # fmt: skip
        return known

    def _missing(self, topic: str, partition: int, buried: int | None) -> set[tuple[Coordinates, int]]:
        found = self._given_up.get((topic, partition), GivenUp())
        return {((topic, partition), end) for end in found.missing(buried)}

    def _read_on(self, reader: Consumer, partitions: list[int], *, anew: bool) -> Generator[None, None, None]:
        """Read on to the end, ``anew`` from the beginning. Several recoveries may be at it by turns, each from its own position."""
        positions = {} if anew else dict(self._positions)
        try:
            ends = self._bounds(reader, partitions, positions)
            yield
            yield from self._read_to(reader, positions, ends)
        finally:
            self._positions.update(positions)

    def _found(self, reader: Consumer, *, missed: bool) -> Generator[None, None, list[int]]:
        """Return the topic's partitions, none when it is not there; raises `KafkaException` when the broker cannot say."""
        until = time.monotonic() + (MISSED_S if missed or self._positions else ABSENT_S)
        while len(self._topic) <= _LONGEST_NAME:
            # By name: of all topics a broker leaves out those that the group may not see.
            topics = reader.list_topics(self._topic, timeout=self._readers.answer_s).topics
            error = topics[self._topic].error if self._topic in topics else None
            if error is not None and error.code() not in _NOT_THERE:
                said = f"dead-letter topic {self._topic}: {error.str()}"
                raise KafkaException(KafkaError(error.code(), said, retriable=True))
            if error is None and self._topic in topics and topics[self._topic].partitions:
                return list(topics[self._topic].partitions)
            if time.monotonic() >= until:
                break
            again_at = time.monotonic() + ABSENT_S
            while time.monotonic() < again_at:
                yield
                time.sleep(_PAUSE_S)
        return []

    def known(self, topic: str, partition: int, buried: int | None) -> GivenUp:
        """Return what was given up of a partition, as far as the dead-letter topic was read; ``buried`` as in `read`."""
        found = self._given_up.get((topic, partition), GivenUp())
        # A letter names the highest offset of all before it: what else is missing lies before the highest that is.
        return replace(found, since_ms=self._since_ms, known_from=max(found.missing(buried), default=0))

    def _without_topic(self, topic: str, partition: int, buried: int | None) -> GivenUp:
        known = self.known(topic, partition, buried)
        if buried is not None and not self._expected:
            logger.warning(
                "%s[%d]: this group has given up messages before offset %d, and its dead-letter topic %s is not there: what hangs on "
                "older records is unverified until the window has filled; was it deleted, or may the group not read it?",
                topic, partition, buried, self._topic,
            )  # fmt: skip
            return replace(known, known_from=max(buried, known.known_from))
        if not self._expected:
            if not self._absence_told:
                self._absence_told = True
                logger.info(
                    "there is no dead-letter topic %s that this group may read, and its commits tell of nothing that was given up",
                    self._topic,
                )
            return known
        logger.warning(
            "%s[%d]: the dead-letter topic %s is not there, so that nobody knows what was given up: what hangs on the past is "
            "unverified until the window has filled; create the topic", topic, partition, self._topic,
        )  # fmt: skip
        return replace(known, since_ms=NOTHING_KNOWN)

    def _bounds(self, reader: Consumer, partitions: list[int], positions: dict[int, int]) -> dict[int, int]:
        """Return where to read each partition to; note what is gone of it."""
        ends = {}
        for number in partitions:
            asked = TopicPartition(self._topic, number)
            low, high = reader.get_watermark_offsets(asked, timeout=self._readers.answer_s)
            ends[number] = high
            position = positions.get(number, 0)
            if position > high:
                # It was made anew, and what it said before still counts.
                position = 0
            if low > position:
                self._cut.add(number)
                if low >= high:
                    self._since_ms = NOTHING_KNOWN
                position = low
            positions[number] = position
        return ends

    def _read_to(
        self, reader: Consumer, positions: dict[int, int], ends: dict[int, int]
    ) -> Generator[None, None, None]:
        behind = [number for number, end in ends.items() if positions[number] < end]
        if not behind:
            return
        reader.assign([TopicPartition(self._topic, number, positions[number]) for number in behind])
        heard = time.monotonic()
        while any(positions[number] < ends[number] for number in behind):
            arrived: list[Any] = reader.consume(_BATCH, _SLICE_S)
            if arrived:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_S:
                said = f"dead-letter topic {self._topic}: nothing came for {SILENCE_S:g} s; is the broker up?"
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, said, retriable=True))  # noqa: SLF001 (that is its public name)
            for message in arrived:
                self._take(message, positions)
            yield

    def _take(self, message: Any, positions: dict[int, int]) -> None:
        number, error = message.partition(), message.error()
        if message.topic() is not None and message.topic() != self._topic:
            return
        if error is None:
            positions[number] = max(positions[number], message.offset() + 1)
            self._note(message)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
            positions[number] = max(positions[number], message.offset())
        elif not (error.retriable() or error.code() in _PASSING):
            raise RecoveryError(
                f"dead-letter topic {self._topic} cannot be read: {error}; check access rights"
            )

    def _note(self, message: Any) -> None:
        if message.partition() in self._cut:
            # The first that is left: those before it are older, but for the disorder.
            self._cut.remove(message.partition())
            sent_ms = message.timestamp()[1]
            known_ms = sent_ms + DISORDER_MS if sent_ms >= 0 else NOTHING_KNOWN
            self._since_ms = max(self._since_ms or 0, known_ms)
        letter = DeadLetter.read(message)
        if letter is None:
            self._note_unreadable(message)
        elif letter.group == self._settings.group:
            self._given_up.setdefault((letter.topic, letter.partition), GivenUp()).add(letter)

    def _note_unreadable(self, message: Any) -> None:
        if not bears_names(message, self._settings.group):
            return
        self._unreadable += 1
        if self._unreadable == 1:
            logger.warning(
                "%s[%d]@%d is a dead letter of group %s whose partition and offset cannot be read, so that its message is taken for "
                "handled: see who changed its headers; others of that kind are not told", self._topic, message.partition(),
                message.offset(), self._settings.group,
            )  # fmt: skip
