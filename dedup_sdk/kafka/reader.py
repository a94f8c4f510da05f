"""A plain assigned reader of the source topic, outside any group: IDs only, in slices, ending on position.

`Readers` keeps the connections that one recovery leaves to the next: a client that was just made asks its first question a tenth of a second
later, because it has to meet the brokers first, and a wave of partitions that recover one after the other would pay that several times each.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids.spec import ReadsKeys
from dedup_sdk.kafka.fields import MessageFields, offsets_of, timestamps_ms
from dedup_sdk.kafka.settings import ASK_S, ClientSettings, reader_settings
from dedup_sdk.marks import Int64s

logger = logging.getLogger("dedup_sdk")

_BATCH = 1_000
"""Records at once: the columns of more do not stay in the processor's cache."""
_SLICE_S = 0.02
_PAUSE_S = 0.005
_END_LOOK_S = 1.0
"""Seconds between two questions whether a log that seems to end too early still ends there."""
SILENCE_S = 60.0
"""Seconds without an answer after which a question is asked anew, and a replay says that it waits."""
_MEETING_S = 2.0
"""Seconds that a question of a reader that was just made may take at least, to a broker that has just answered another."""
_PARTED = re.compile(r"broker end offset is (\d+)")
_error: Callable[[Any], Any] = Message.error


class Readers:
    """Consumers outside any group; the idle ones wait for the next who needs one. Not thread-safe.

    ``isolation``: at which level they read; None: at the consumer's own.
    """

    def __init__(self, settings: ClientSettings, *, isolation: str | None = None) -> None:
        self._settings = settings
        self._own = {} if isolation is None else {"isolation.level": isolation}
        self._idle: list[Consumer] = []
        self.answer_s = ASK_S
        """Seconds that a question may take now."""
        self._others: dict[str, Readers] = {}

    def at(self, isolation: str) -> Readers:
        """Return readers at this isolation level: ``read_uncommitted`` ones see the records of open and aborted transactions too."""
        if isolation not in self._others:
            self._others[isolation] = Readers(self._settings, isolation=isolation)
        others = self._others[isolation]
        others.wait_at_most(max(self.answer_s, _MEETING_S))
        return others

    def take(self) -> Consumer:
        """Return a consumer that reads nothing; to be given back, or closed."""
        return self._idle.pop() if self._idle else Consumer({**reader_settings(self._settings), **self._own})

    def give_back(self, reader: Consumer) -> None:
        """Let the next one have it, without an assignment."""
        try:
            reader.unassign()
        except KafkaException:
            reader.close()
        else:
            self._idle.append(reader)

    def wait_at_most(self, answer_s: float) -> None:
        """Have questions take so many seconds at most, from now on."""
        self.answer_s = answer_s

    @contextmanager
    def patient(self) -> Iterator[None]:
        """Wait as long as a caller may who asked for it."""
        before, self.answer_s = self.answer_s, ASK_S
        try:
            yield
        finally:
            self.answer_s = before

    def close(self) -> None:
        """End the connections of the idle ones."""
        while self._idle:
            self._idle.pop().close()
        for others in self._others.values():
            others.close()


class Slice(NamedTuple):
    """Records ``[start, end)`` of a replay, as columns; ``end`` is a position, so holes are passed.

    ``epoch``: the leader epoch of the last of them, None where there is none or the broker does not say.
    """

    offsets: list[int]
    timestamps: Int64s
    digests: list[bytes | None]
    end: int
    epoch: int | None = None


class TailReader:
    """Reads one partition from one offset to another, outside any group."""

    def __init__(self, readers: Readers, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._readers = readers
        self._consumer: Consumer = readers.take()
        self._clean = True
        """Whether the connections may serve another: nothing that was asked for can still come, and no question has failed."""
        self._until = 0
        """Up to where is read; once the client said that there is no more, ``_ask_end_at`` is when to ask the broker whether
        that is so (monotonic seconds), and ``_cut`` what is known of it."""
        self._ask_end_at: float | None = None
        self._cut = False

    def bounds(self) -> tuple[int, int]:
        """Return the first offset that is still there and the one after the last that is decided.

        At ``read_committed`` the log may be longer: records behind the first one of an open transaction are not decided
        (see `log_end`). Asked here and not of the consumer itself: a broker answers a connection in order, and there it first waits for
        records that may be long in coming.
        """
        asked = TopicPartition(self._topic, self._partition)
        with self._failing_once():
            low, high = self._consumer.get_watermark_offsets(asked, timeout=self._readers.answer_s)
        return low, high

    def log_end(self) -> int:
        """Return the offset after the last record of the log, those of open transactions included."""
        readers = self._readers.at("read_uncommitted")
        reader = readers.take()
        asked = TopicPartition(self._topic, self._partition)
        try:
            end = int(reader.get_watermark_offsets(asked, timeout=readers.answer_s)[1])
        except BaseException:
            reader.close()
            raise
        readers.give_back(reader)
        return end

    def first_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is not older than the timestamp, None when the broker names none."""
        asked = [TopicPartition(self._topic, self._partition, max(timestamp_ms, 0))]
        with self._failing_once():
            answer = self._consumer.offsets_for_times(asked, timeout=self._readers.answer_s)[0]
        if answer.error is not None:
            raise RecoveryError(
                f"{self._topic}[{self._partition}]: the broker did not say where {timestamp_ms} ms lies: {answer.error}"
            )
        return answer.offset if answer.offset >= 0 else None

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """Yield ``[start, end)`` piece by piece; None while nothing has arrived. Each step takes a few milliseconds.

        Ends when the position reaches ``end``: compaction and transaction markers leave holes, so the last record seen says
        nothing. It ends before where the log was cut, so that it no longer goes so far. Raises `RecoveryError` when the
        broker refuses; one that is silent is waited for, with a line in the log a minute.
        """
        self._read_from(start, end)
        position = start
        heard = time.monotonic()
        while position < end:
            arrived: list[Any] = self._consumer.consume(_BATCH, _SLICE_S)
            try:
                heard = self._heard(heard, position, end, arrived=bool(arrived))
            except KafkaException as error:
                # Not begun anew: it may be a long stretch of aborted records, which are read and not handed over.
                logger.warning("%s; the replay goes on when something comes", error.args[0].str())
                heard = time.monotonic()
            if self._is_cut():
                return
            if not arrived:
                yield None
                continue
            records, position = self._sorted_out(arrived, position)
            offsets = offsets_of(records)
            if offsets and offsets[-1] >= end:
                del offsets[bisect_left(offsets, end) :]
                records = records[: len(offsets)]
            if records or position >= end:
                piece = Slice(
                    offsets,
                    timestamps_ms(records),
                    spec.digests(MessageFields(records)).digests,
                    min(position, end),
                    records[-1].leader_epoch() if records else None,
                )
                # The garbage collector walks objects that are alive between two steps each time: a tenth of a replay.
                del arrived, records
                yield piece
        self._consumer.unassign()
        self._clean = True

    def _sorted_out(self, arrived: list[Any], position: int) -> tuple[list[Any], int]:
        """Return the records among what arrived, and the position behind all of it."""
        records = arrived
        if _error(arrived[-1]) is None:
            self._ask_end_at = None
        # An error is never false, and so many calls are what a replay is made of.
        if any(map(_error, arrived)):
            records = [message for message in arrived if message.error() is None]
            events = [message for message in arrived if message.error() is not None]
            position = max(position, *map(self._ended, events))
        if records and not self._is_ours(records[0]):
            # Left over from the reader before us; it can only come first.
            records = [message for message in records if self._is_ours(message)]
        return records, max(position, records[-1].offset() + 1) if records else position

    def _is_ours(self, message: Any) -> bool:
        return bool(message.partition() == self._partition and message.topic() == self._topic)

    def _ended(self, message: Any) -> int:
        if message.topic() is not None and not self._is_ours(message):
            return -1
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
            self._ask_end_at = 0.0
            return int(message.offset())
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 (as above)
            self._cut = parted_at(error.str()) is not None or self.bounds()[1] < self._until
            if self._cut:
                return -1
        if error.retriable() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):  # noqa: SLF001
            return -1
        raise RecoveryError(f"{self._topic}[{self._partition}]: the replay was refused: {error}")

    def _read_from(self, start: int, end: int) -> None:
        self._clean = self._cut = False
        self._until, self._ask_end_at = end, None
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def _is_cut(self) -> bool:
        """Whether the log no longer goes as far as it is to be read; the broker is asked where it seemed to end before that."""
        now = time.monotonic()
        if not self._cut and self._ask_end_at is not None and now >= self._ask_end_at:
            self._ask_end_at = now + _END_LOOK_S
            with suppress(KafkaException):
                self._cut = self.bounds()[1] < self._until
        return self._cut

    def same_until(self, offset: int, leader_epoch: int) -> Generator[None, None, int | None]:
        """Return up to where the log before ``offset`` is the one of that leader epoch, as the broker says: ``offset`` if all is.

        None where the log has no such offset (give none above its end), so that nobody says.
        Each step takes a few milliseconds; raises `RecoveryError` when the broker refuses, `KafkaException` when it stays silent.
        """
        self._clean = False
        # Only a seek has the client ask the broker, and one before something has come may be overtaken by the assignment.
        self._consumer.assign([TopicPartition(self._topic, self._partition, max(offset - 1, 0))])
        fetched = sought = False
        heard = time.monotonic()
        while True:
            yield
            if fetched and not sought:
                sought = self._sought(TopicPartition(self._topic, self._partition, offset, "", leader_epoch))
                continue
            arrived: list[Any] = self._consumer.consume(1, _SLICE_S)
            heard = self._heard(heard, offset, offset, arrived=bool(arrived))
            for message in arrived:
                trouble = message.error()
                missing = trouble is not None and trouble.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
                if sought and missing:
                    # Any other offset that is not there says nothing of the records before it.
                    parted = parted_at(trouble.str())
                    return None if parted is None else min(offset, parted)
                if missing:
                    self._consumer.assign([TopicPartition(self._topic, self._partition, OFFSET_BEGINNING)])
                elif trouble is None or self._ended(message) >= 0:
                    if sought:
                        return offset
                    fetched = True

    @contextmanager
    def _failing_once(self) -> Iterator[None]:
        """Use another client for the next question where this one fails: a client believes for minutes the leader that it was told.

        But where it has met no broker yet it was told nothing. One that hangs keeps it from others for a second, longer than it is waited for; the
        next question finds it with them, and another client could meet the one that hangs again.
        """
        try:
            yield
        except KafkaException as error:
            self._clean = self._clean and error.args[0].code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 (that is its public name)
            raise

    def _sought(self, target: TopicPartition) -> bool:
        """Move where the partition is read; False while the client cannot yet."""
        try:
            self._consumer.seek(target)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                raise
            time.sleep(_PAUSE_S)
            return False
        return True

    def newest_before(self, end: int, start: int) -> Generator[None, None, int | None]:
        """Return the newest timestamp (ms) among the last records before ``end``, None when no record has one.

        Looks at the last 100 offsets first, then further back, never before ``start``; a record without a timestamp (-1)
        says nothing of time. Of a log that was cut below ``end`` it is the newest that was found before. Each step takes a few
        milliseconds; raises `RecoveryError` when the broker refuses, `KafkaException` when it stays silent.
        """
        span = 100
        while True:
            begin = max(start, end - span)
            newest_ms = None
            heard = time.monotonic()
            self._read_from(begin, end)
            position = begin
            while position < end:
                yield
                arrived: list[Any] = self._consumer.consume(min(span, _BATCH), _SLICE_S)
                heard = self._heard(heard, position, end, arrived=bool(arrived))
                if self._is_cut():
                    return newest_ms
                for message in arrived:
                    if message.error() is not None:
                        position = max(position, self._ended(message))
                        continue
                    if not self._is_ours(message):
                        continue
                    position = max(position, message.offset() + 1)
                    if message.offset() < end and message.timestamp()[1] >= 0:
                        newest_ms = max(newest_ms or 0, message.timestamp()[1])
            if newest_ms is not None or begin == start:
                self._consumer.unassign()
                self._clean = True
                return newest_ms
            span *= 10

    def _heard(self, heard: float, position: int, end: int, *, arrived: bool) -> float:
        """Return when something arrived last."""
        now = time.monotonic()
        if not arrived and now - heard > SILENCE_S:
            what = (
                f"{self._topic}[{self._partition}]: nothing came from offset {position} for {SILENCE_S:g} s while reading "
                f"up to {end}; is the broker up?"
            )
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, what, retriable=True))  # noqa: SLF001 (that is its public name)
        return now if arrived else heard

    def close(self) -> None:
        """Leave the connections to the next reader, unless an answer to an earlier request may still come.

        What the next one may still get from before is left out by its coordinates: a record of another partition would
        become a mark that nobody completed.
        """
        if self._clean:
            self._readers.give_back(self._consumer)
        else:
            self._consumer.close()


def parted_at(reason: str) -> int | None:
    """Return where the client says that a log parts from the one that was read; None where it says nothing of the kind.

    The client knows the offset from the broker, and has no field for it but the reason of its error; 0 where it is missing there.
    """
    if "truncation" not in reason:
        return None
    told = _PARTED.search(reason)
    return 0 if told is None else int(told[1])
