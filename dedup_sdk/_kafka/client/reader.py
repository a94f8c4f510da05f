"""Reading a partition outside any group: replays, timestamps and log positions.

`Readers` pools the consumers: a new client needs a tenth of a second until it is connected and sends its first
request, and in a rebalance each recovering partition would pay that several times.
"""

from __future__ import annotations

import logging
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.client.closing import call_with_timeout, made_aside
from dedup_sdk._kafka.client.fields import MessageFields, offsets_of, timestamps_ms
from dedup_sdk._kafka.client.settings import ASK_S, ClientSettings, reader_settings
from dedup_sdk._marks import Int64s
from dedup_sdk.errors import RecoveryError
from dedup_sdk.ids._spec import ReadsKeys

logger = logging.getLogger("dedup_sdk")

_BATCH = 1_000
"""Records per batch: the columns of more do not fit into the processor's cache."""
_SLICE_S = 0.02
_PAUSE_S = 0.005
_END_LOOK_S = 1.0
"""Seconds between two requests for the log end, where the log seems to end too early."""
SILENCE_S = 60.0
"""Seconds without an answer after which a request fails, and a replay logs that it waits."""
MEETING_S: Final = 2.0
"""Minimum timeout of a request from a new reader, in seconds: it must connect first."""
_CLOSE_S: Final = 1.0
"""Seconds that the closing of readers is waited for; it takes milliseconds, but the client promises no end."""
_DIVERGED = re.compile(r"broker end offset is (\d+)")
_error: Callable[[Any], Any] = Message.error


class Readers:
    """A pool of consumers outside any group. Not thread-safe.

    ``isolation`` is their isolation level; None: that of the consumer.
    """

    def __init__(
        self, settings: ClientSettings, *, isolation: str | None = None, others: set[Consumer] | None = None
    ) -> None:
        self._settings = settings
        self.open: set[Consumer] = set() if others is None else others
        """All consumers, idle or taken, those of other isolation levels (``others``) included."""
        self._own = {} if isolation is None else {"isolation.level": isolation}
        self._idle: list[Consumer] = []
        self.timeout_s = ASK_S
        """The current timeout of a request, in seconds."""
        self._others: dict[str, Readers] = {}

    def at(self, isolation: str) -> Readers:
        """Return the pool for an isolation level; ``read_uncommitted`` includes open and aborted transactions."""
        if isolation not in self._others:
            self._others[isolation] = Readers(self._settings, isolation=isolation, others=self.open)
        others = self._others[isolation]
        others.set_timeout(max(self.timeout_s, MEETING_S))
        return others

    def take(self) -> Consumer:
        """Return a consumer without an assignment; you must give it back or close it."""
        if self._idle:
            return self._idle.pop()
        reader = made_aside(lambda: Consumer({**reader_settings(self._settings), **self._own}))
        self.open.add(reader)
        return reader

    def give_back(self, reader: Consumer) -> None:
        """Return a consumer to the pool, without an assignment."""
        try:
            reader.unassign()
        except KafkaException:
            self.discard(reader)
        else:
            self._idle.append(reader)

    def discard(self, reader: Consumer) -> None:
        """Close a consumer instead of giving it back; see `close_readers`."""
        self.open.discard(reader)
        close_readers(reader)

    def serve(self) -> None:
        """Have the consumers without an assignment write their log lines, which they do only when polled.

        A reading one writes them while it reads; here it might give away a record.
        """
        for reader in [*self.open]:
            if not reader.assignment():
                reader.poll(0)

    def log_in(self, username: str, password: str) -> None:
        """Have all consumers use these credentials from their next login on."""
        for reader in [*self.open]:
            reader.set_sasl_credentials(username, password)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the timeout of requests, in seconds."""
        self.timeout_s = timeout_s

    @contextmanager
    def default_timeout(self) -> Iterator[None]:
        """Use the default timeout `ASK_S` in the block, for a request of the application, which may wait."""
        before, self.timeout_s = self.timeout_s, ASK_S
        try:
            yield
        finally:
            self.timeout_s = before

    def close(self, within_s: float = _CLOSE_S) -> None:
        """Close the idle consumers; see `close_readers`."""
        idle, self._idle = self._idle, []
        self.open.difference_update(idle)
        close_readers(*idle, within_s=within_s)
        for others in self._others.values():
            others.close(within_s)


def _ascend(offsets: list[int]) -> bool:
    # Half the time of comparing neighbours, and this runs for every batch.
    return sorted(offsets) == offsets and len(set(offsets)) == len(offsets)


def _first_reads(records: list[Any], offsets: list[int], read_to: int) -> list[Any]:
    """Return the records that lie above all that was read before them, from ``read_to`` on."""
    first = []
    for record, offset in zip(records, offsets, strict=True):
        if offset >= read_to:
            first.append(record)
            read_to = offset + 1
    return first


def close_readers(*readers: Consumer, within_s: float = _CLOSE_S) -> None:
    """Close consumers that nobody uses any more; after ``within_s`` seconds that goes on in a thread of its own."""
    if readers and not call_with_timeout(within_s, _close_all, readers):
        logger.warning(
            "%d readers did not close within %g s; closing them goes on in the background",
            len(readers), within_s,
            extra={"event": "readers-not-closed"},
        )  # fmt: skip


def _close_all(readers: Sequence[Consumer]) -> None:
    for reader in readers:
        reader.close()


class HistoryGoneError(RecoveryError):
    """Records that were to be read are gone from the log, which begins later by now: retention has deleted them."""


class Slice(NamedTuple):
    """The records ``[start, end)`` of a replay as columns; ``end`` is a position, so holes in the log are included.

    ``epoch``: the leader epoch of the last record; None without records, or where the broker sends none.
    """

    offsets: list[int]
    timestamps: Int64s
    digests: Sequence[bytes | None]
    end: int
    epoch: int | None = None

    def beginning_at(self, offset: int) -> Slice:
        """Return the part from an offset on; it has no record where all lie below that."""
        row = bisect_left(self.offsets, offset)
        if row == 0 and self.end >= offset:
            return self
        offsets, end = self.offsets[row:], max(self.end, offset)
        return Slice(offsets, self.timestamps[row:], self.digests[row:], end, self.epoch if offsets else None)


class TailReader:
    """Reads a range of offsets of one partition, outside any group."""

    def __init__(self, readers: Readers, topic: str, partition: int) -> None:
        self._topic, self._partition = topic, partition
        self._readers = readers
        self._consumer: Consumer = readers.take()
        self._reusable = True
        """Whether the consumer may go back to the pool: no response is pending, and no request has failed."""
        self._end = 0
        """The end offset of the running read."""
        self._check_end_at: float | None = None
        """When to request the log end (monotonic seconds), after the client reported the end of the partition."""
        self._truncated = False
        """Whether the log is known to end before the end of the read."""

    def bounds(self) -> tuple[int, int]:
        """Return the first offset of the log and the end offset for consumers.

        At ``read_committed`` the end is the last stable offset: records after the start of an open transaction are
        not included (see `log_end`). Not requested through the group's consumer: a broker answers the requests of one
        connection in order, and there a fetch may be waiting for records.
        """
        asked = TopicPartition(self._topic, self._partition)
        with self._discarded_on_error():
            low, high = self._consumer.get_watermark_offsets(asked, timeout=self._readers.timeout_s)
        return low, high

    def log_end(self) -> int:
        """Return the offset after the last record of the log, open transactions included."""
        readers = self._readers.at("read_uncommitted")
        reader = readers.take()
        asked = TopicPartition(self._topic, self._partition)
        try:
            end = int(reader.get_watermark_offsets(asked, timeout=readers.timeout_s)[1])
        except BaseException:
            readers.discard(reader)
            raise
        readers.give_back(reader)
        return end

    def first_at(self, timestamp_ms: int) -> int | None:
        """Return the first offset whose record is not older than the timestamp; None if there is none."""
        asked = [TopicPartition(self._topic, self._partition, max(timestamp_ms, 0))]
        with self._discarded_on_error():
            answer = self._consumer.offsets_for_times(asked, timeout=self._readers.timeout_s)[0]
        if answer.error is not None:
            from dedup_sdk._time_text import time_text

            raise RecoveryError(
                f"{self._topic}[{self._partition}]: the broker returned no offset for the time "
                f"{time_text(timestamp_ms)}: {answer.error}"
            )
        return answer.offset if answer.offset >= 0 else None

    def slices(self, start: int, end: int, spec: ReadsKeys) -> Iterator[Slice | None]:
        """Yield the records of ``[start, end)`` in slices, None while nothing has arrived.

        A step takes a few milliseconds. Ends when the position reaches ``end``; the last record does not show the end,
        because compaction and transaction markers leave holes. Ends earlier where the log was truncated below ``end``.
        Raises `HistoryGoneError` where retention overtakes it, `RecoveryError` when the broker refuses. While the
        broker is silent it waits, and logs a warning a minute.
        """
        self._read_from(start, end)
        position = start
        last_arrival = time.monotonic()
        while position < end:
            arrived: list[Any] = self._consumer.consume(_BATCH, _SLICE_S)
            try:
                last_arrival = self._check_silence(last_arrival, position, end, arrived=bool(arrived))
            except KafkaException as error:
                # Not restarted: the client may be skipping a long range of aborted records, which it does not return.
                logger.warning(
                    "%s The replay continues when records arrive",
                    error.args[0].str(),
                    extra={"event": "replay-waits"},
                )
                last_arrival = time.monotonic()
            if self._is_truncated():
                return
            if not arrived:
                yield None
                continue
            read_to = position
            records, position = self._split_events(arrived, position)
            offsets = offsets_of(records)
            if offsets and not (offsets[0] >= read_to and _ascend(offsets)):
                # The client has returned some twice: a second sighting would count in windows by count.
                records = _first_reads(records, offsets, read_to)
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
                # Objects that live across steps are traversed by each garbage collection: a tenth of a replay's time.
                del arrived, records
                yield piece
        self._consumer.unassign()
        self._reusable = True

    def _split_events(self, arrived: list[Any], position: int) -> tuple[list[Any], int]:
        """Return the records among the arrived messages, and the position after all of these."""
        records = arrived
        if _error(arrived[-1]) is None:
            self._check_end_at = None
        # `any(map(...))`, because this runs for every record of a replay; an error object is always true.
        if any(map(_error, arrived)):
            records = [message for message in arrived if message.error() is None]
            events = [message for message in arrived if message.error() is not None]
            position = max(position, *map(self._position_after, events))
        if records and not self._is_ours(records[0]):
            # Records of the consumer's former assignment; they can only come first.
            records = [message for message in records if self._is_ours(message)]
        return records, max(position, records[-1].offset() + 1) if records else position

    def _is_ours(self, message: Any) -> bool:
        return bool(message.partition() == self._partition and message.topic() == self._topic)

    def _position_after(self, message: Any) -> int:
        """Return the position that an event proves, -1 for none; raise `RecoveryError` for a permanent error.

        `HistoryGoneError` where the log begins above the position, and has not ended below the end of the read.
        """
        if message.topic() is not None and not self._is_ours(message):
            return -1
        error = message.error()
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
            self._check_end_at = 0.0
            return int(message.offset())
        if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 (as above)
            self._truncated = diverged_at(error.str()) is not None or self.bounds()[1] < self._end
            if self._truncated:
                return -1
            raise HistoryGoneError(f"{self._topic}[{self._partition}]: the replay was refused: {error}")
        if error.retriable() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):  # noqa: SLF001
            return -1
        raise RecoveryError(f"{self._topic}[{self._partition}]: the replay was refused: {error}")

    def _read_from(self, start: int, end: int) -> None:
        self._reusable = self._truncated = False
        self._end, self._check_end_at = end, None
        self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def _is_truncated(self) -> bool:
        """Whether the log ends before the end of the read; asks the broker if the partition seemed to end."""
        now = time.monotonic()
        if not self._truncated and self._check_end_at is not None and now >= self._check_end_at:
            self._check_end_at = now + _END_LOOK_S
            with suppress(KafkaException):
                self._truncated = self.bounds()[1] < self._end
        return self._truncated

    def same_until(self, offset: int, leader_epoch: int) -> Generator[None, None, int | None]:
        """Return the offset up to which the log matches the history that ``leader_epoch`` has before ``offset``.

        That is ``offset`` if all of it matches. None where the log has no such offset (so ``offset`` must not be
        above its end), because then the broker gives no answer. A step takes a few milliseconds. Raises
        `RecoveryError` when the broker refuses, `KafkaException` when it is silent.
        """
        self._reusable = False
        # The client validates an epoch only after a seek, and the assignment may overwrite a seek that comes before
        # the first fetch.
        self._consumer.assign([TopicPartition(self._topic, self._partition, max(offset - 1, 0))])
        fetched = seeked = False
        last_arrival = time.monotonic()
        while True:
            yield
            if fetched and not seeked:
                seeked = self._try_seek(
                    TopicPartition(self._topic, self._partition, offset, "", leader_epoch)
                )
                continue
            arrived: list[Any] = self._consumer.consume(1, _SLICE_S)
            last_arrival = self._check_silence(last_arrival, offset, offset, arrived=bool(arrived))
            for message in arrived:
                error = message.error()
                missing = error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
                if seeked and missing:
                    # Any other missing offset does not show anything about the records before it.
                    diverged = diverged_at(error.str())
                    return None if diverged is None else min(offset, diverged)
                if missing:
                    self._consumer.assign([TopicPartition(self._topic, self._partition, OFFSET_BEGINNING)])
                elif error is None or self._position_after(message) >= 0:
                    if seeked:
                        return offset
                    fetched = True

    @contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        """Do not reuse this consumer if the request fails: its cached leader may be outdated for minutes.

        Exception: when no broker is connected, it has no cached leader. A broker that hangs delays the connections to
        the others by a second, longer than the timeout; the next request finds those connections ready, whereas a new
        client could begin with the hanging broker again.
        """
        try:
            yield
        except KafkaException as error:
            is_unconnected = error.args[0].code() == KafkaError._ALL_BROKERS_DOWN  # noqa: SLF001 (public)
            self._reusable = self._reusable and is_unconnected
            raise

    def _try_seek(self, target: TopicPartition) -> bool:
        """Seek; return False while the client cannot seek in this partition yet."""
        try:
            self._consumer.seek(target)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._STATE:  # noqa: SLF001 (that is its public name)
                raise
            time.sleep(_PAUSE_S)
            return False
        return True

    def newest_before(self, end: int, start: int) -> Generator[None, None, int | None]:
        """Return the newest timestamp (ms) among the last records before ``end``; None if no record has one.

        Reads the last 100 offsets first, then ten times as many, and so on, never before ``start``. Records without a
        timestamp (-1) are skipped. If the log was truncated below ``end``, the result covers the records that were
        read before. A step takes a few milliseconds. Raises `RecoveryError` when the broker refuses, `KafkaException`
        when it is silent.
        """
        span = 100
        while True:
            begin = max(start, end - span)
            newest_ms = None
            last_arrival = time.monotonic()
            self._read_from(begin, end)
            position = begin
            while position < end:
                yield
                arrived: list[Any] = self._consumer.consume(min(span, _BATCH), _SLICE_S)
                last_arrival = self._check_silence(last_arrival, position, end, arrived=bool(arrived))
                if self._is_truncated():
                    return newest_ms
                for message in arrived:
                    if message.error() is not None:
                        position = max(position, self._position_after(message))
                        continue
                    if not self._is_ours(message):
                        continue
                    position = max(position, message.offset() + 1)
                    if message.offset() < end and message.timestamp()[1] >= 0:
                        newest_ms = max(newest_ms or 0, message.timestamp()[1])
            if newest_ms is not None or begin == start:
                self._consumer.unassign()
                self._reusable = True
                return newest_ms
            span *= 10

    def _check_silence(self, last_arrival: float, position: int, end: int, *, arrived: bool) -> float:
        """Return the time of the last arrival; raise a retriable `KafkaException` after `SILENCE_S` without one."""
        now = time.monotonic()
        if not arrived and now - last_arrival > SILENCE_S:
            reason = (
                f"{self._topic}[{self._partition}]: no record arrived from offset {position} for {SILENCE_S:g} s while "
                f"reading up to offset {end}; check that the broker is up."
            )
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, reason, retriable=True))  # noqa: SLF001 (public)
        return now if arrived else last_arrival

    def close(self) -> None:
        """Return the consumer to the pool, or close it if a response to an earlier request may still arrive.

        The next reader drops messages of other partitions: such a record would become a mark that nobody completed.
        """
        if self._reusable:
            self._readers.give_back(self._consumer)
        else:
            self._readers.discard(self._consumer)


def diverged_at(reason: str) -> int | None:
    """Return the offset at which the log diverged from the one read before, by a client's error; None for other errors.

    The client takes that offset from the broker's answer, and puts it only into the text of its error; 0 where the
    text has none.
    """
    if "truncation" not in reason:
        return None
    found = _DIVERGED.search(reason)
    return 0 if found is None else int(found[1])
