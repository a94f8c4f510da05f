"""Redrive: sends dead letters back, so that the consumer group that failed handles their messages once more.

The header ``dedup-redrive`` of the dead letter causes this (`dedup_sdk.ids._redrive`), so any tool that copies headers
can be used instead. Progress is committed in a consumer group of its own, after the brokers have acknowledged the
letters. A run that is killed sends its last batch again; that is harmless, because two copies of a dead letter have
the same ID.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer, Producer

from dedup_sdk._admin.broker_check import require_broker
from dedup_sdk._kafka.client.client_errors import settings_refused, text_of
from dedup_sdk._kafka.client.fields import as_record
from dedup_sdk._kafka.client.settings import ASK_S, refuse_unwritable
from dedup_sdk._masking import shown
from dedup_sdk._runner.dead_letters import DeadLetter, Headers
from dedup_sdk._runner.settings import is_topic
from dedup_sdk.errors import ConfigurationError, DeadLetterError
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value

_BATCH: Final = 500
_SLICE_S: Final = 0.5
_SILENCE_S: Final = 60.0
"""Seconds without an answer of the brokers, after which a run fails."""
_DELIVERY_S: Final = 300.0
_ANY_SIZE: Final = 1_000_000_000


def redrive_group(source: str) -> str:
    """Return the consumer group that holds the progress of redrives of a dead-letter topic."""
    return f"{source}.redrive"


@dataclass(slots=True)
class Redriven:
    """The result of a run, or of a dry run.

    - ``letters``: dead letters sent, by target topic.
    - ``stranded``: dead letters not sent, by target topic: the broker does not have the topic, or its name is not
      valid.
    - ``others``: records that are not dead letters of this SDK.
    - ``read``: offsets processed, of ``total``.
    """

    total: int = 0
    read: int = 0
    others: int = 0
    letters: Counter[str] = field(default_factory=Counter)
    stranded: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """The number of dead letters sent."""
        return self.letters.total()


class Redrive:
    """Sends the dead letters of one topic to ``target`` (None: each to its message's topic).

    ``client``: additional client settings, for security. Raises `DeadLetterError` with a one-line message when a
    request fails.
    """

    def __init__(
        self,
        bootstrap: str,
        source: str,
        target: str | None = None,
        client: Mapping[str, str] | None = None,
    ) -> None:
        if target == source:
            raise ConfigurationError(
                f"--to {shown(target)} is the same as --from: the dead letters would be read again for ever; leave "
                f"--to out"
            )
        self._source, self._target = source, target
        self._config: dict[str, Any] = {"log_level": 0, **(client or {}), "bootstrap.servers": bootstrap}
        own = {
            "group.id": redrive_group(source),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
        refuse_unwritable({**self._config, **own})
        self._partitions: dict[str, int] = {}
        with settings_refused(self._config):
            self._consumer = Consumer({**self._config, **own})

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def run(
        self,
        *,
        execute: bool,
        again: bool = False,
        limit: int | None = None,
        report: Callable[[Redriven], object] = lambda _: None,
    ) -> Redriven:
        """Send the dead letters that are in the topic now, from the end of the last run on; return the result.

        ``execute`` false: a dry run, nothing is sent or committed. ``again``: start at the topic's beginning.
        ``limit``: maximum number of dead letters. ``report`` is called after each batch.
        """
        require_broker(self._config, DeadLetterError)
        try:
            return self._run(execute=execute, again=again, limit=limit, report=report)
        except KafkaException as error:
            raise DeadLetterError(
                f"the cluster did not answer: {text_of(error)}; check that the broker is up, then start again: a new "
                "run continues where this one ended"
            ) from None

    def _run(
        self, *, execute: bool, again: bool, limit: int | None, report: Callable[[Redriven], object]
    ) -> Redriven:
        done = Redriven()
        left = self._ranges(again=again)
        done.total = sum(end - begin for begin, end in left.values())
        left = {number: (begin, end) for number, (begin, end) in left.items() if begin < end}
        self._consumer.assign(
            [TopicPartition(self._source, number, begin) for number, (begin, _) in left.items()]
        )
        last_progress = time.monotonic()
        sender = _Sender(self._config) if execute else None
        while left and (limit is None or done.count < limit):
            messages: list[Any] = self._consumer.consume(_BATCH, _SLICE_S)
            reached: dict[int, int] = {}
            for message in messages:
                if limit is not None and done.count >= limit:
                    break
                number, offset = message.partition(), message.offset()
                if number not in left:
                    continue
                if message.error() is not None:
                    if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (public)
                        # The last stable offset: the end of the records that may be read now.
                        left[number] = left[number][0], min(left[number][1], offset)
                        reached[number] = left[number][1]
                    elif not message.error().retriable():
                        raise KafkaException(message.error())
                elif offset < left[number][1]:
                    self._process(message, done, sender)
                    reached[number] = offset + 1
                else:
                    # Written after the run began. The last offset of the range may be a hole, without a record.
                    reached[number] = left[number][1]
            self._commit(done, left, reached, sender)
            last_progress = _check_silence(last_progress, reached=bool(reached))
            report(done)
        return done

    def _commit(
        self,
        done: Redriven,
        left: dict[int, tuple[int, int]],
        reached: dict[int, int],
        sender: _Sender | None,
    ) -> None:
        """Wait for the delivery reports, then commit the positions reached."""
        if sender is not None:
            sender.wait()
        for number, position in reached.items():
            begin, end = left[number]
            done.read += max(0, position - begin)
            left[number] = position, end
            if position >= end:
                del left[number]
        if sender is not None and reached:
            positions = [
                TopicPartition(self._source, number, position) for number, position in reached.items()
            ]
            self._consumer.commit(offsets=positions, asynchronous=False)

    def _ranges(self, *, again: bool) -> dict[int, tuple[int, int]]:
        """Return the offsets ``[begin, end)`` to read, by partition."""
        count = self._count(self._source)
        if count is None:
            raise DeadLetterError(f"topic {shown(self._source)} is unknown to the broker; check --from")
        if self._target is not None and self._count(self._target) is None:
            raise DeadLetterError(f"topic {shown(self._target)} is unknown to the broker; check --to")
        numbers = range(count)
        asked = [TopicPartition(self._source, number) for number in numbers]
        committed = {tp.partition: tp.offset for tp in self._consumer.committed(asked, timeout=ASK_S)}
        ranges = {}
        for place in asked:
            first, end = self._consumer.get_watermark_offsets(place, timeout=ASK_S)
            position = committed[place.partition]
            # A topic that ends before the committed offset was recreated. To send a letter twice is harmless.
            begin = first if again or position > end else max(first, position)
            ranges[place.partition] = begin, end
        return ranges

    def _count(self, topic: str) -> int | None:
        """Return the number of a topic's partitions; None if the topic does not exist or must not be written to."""
        if topic not in self._partitions:
            found = None
            if is_topic(topic) and not topic.startswith("__"):
                found = self._consumer.list_topics(topic, timeout=ASK_S).topics.get(topic)
            exists = found is not None and found.error is None
            self._partitions[topic] = len(found.partitions) if found is not None and exists else 0
        return self._partitions[topic] or None

    def _process(self, message: Any, done: Redriven, sender: _Sender | None) -> None:
        letter = DeadLetter.read(message)
        if letter is None:
            done.others += 1
            return
        topic = letter.topic if self._target is None else self._target
        count = self._count(topic)
        if count is None:
            done.stranded[topic] += 1
            return
        # To the message's own partition: duplicates are detected within a partition, and it may hold another copy.
        partition = letter.partition if 0 <= letter.partition < count else -1
        done.letters[topic] += 1
        if sender is not None:
            sender.send(message, topic, partition, _headers(message, letter))


class _Sender:
    """Sends dead letters, and waits for their delivery reports."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        whole = {**config, "enable.idempotence": True, "message.max.bytes": _ANY_SIZE}
        with settings_refused(whole):
            self._producer = Producer(whole)
        self._error: str | None = None

    def send(self, message: Any, topic: str, partition: int, headers: Headers) -> None:
        """Send one dead letter with its key, value and headers; ``partition`` -1: the partitioner chooses by key."""
        while True:
            try:
                self._producer.produce(
                    topic,
                    message.value(),
                    message.key(),
                    partition,
                    headers=headers,
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(_SLICE_S)
            else:
                return

    def wait(self) -> None:
        """Wait for all delivery reports; raise `DeadLetterError` if a letter was not delivered."""
        left = self._producer.flush(_DELIVERY_S)
        if self._error is not None or left:
            why = self._error or f"{left} are not acknowledged after {_DELIVERY_S:g} s"
            raise DeadLetterError(
                f"dead letters were not sent back: {why}; check that the topic accepts them (max.message.bytes, access "
                "rights), then start again: a new run continues there"
            )

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._error is None:
            self._error = f"{message.topic()}: {error.str()}"


def _headers(message: Any, letter: DeadLetter) -> Headers:
    """Return the headers to send; a dead letter of an older version, without the redrive header, gets one."""
    headers: Headers = [*as_record(message).headers]
    if not any(name == REDRIVE_HEADER for name, _ in headers):
        value = redrive_value(
            letter.group, letter.topic, letter.partition, letter.offset, letter.timestamp_ms
        )
        headers.append((REDRIVE_HEADER, value))
    return headers


def _check_silence(last_progress: float, *, reached: bool) -> float:
    """Return the time of the last progress; raise `DeadLetterError` when it is too long ago."""
    now = time.monotonic()
    if reached:
        return now
    if now - last_progress > _SILENCE_S:
        raise DeadLetterError(
            f"no record arrived from the broker for {_SILENCE_S:g} s; check that it is up, then start again: a new run "
            "continues where this one ended"
        )
    return last_progress
