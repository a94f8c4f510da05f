"""Sending dead letters back, so that the consumer group that failed handles their messages once more.

What has a message handled again is the header ``dedup-redrive`` of its dead letter (`dedup_sdk.ids.redrive`), so that any tool which copies
headers can do this. How far it came is committed by a consumer group of its own, after the brokers have what was sent: a run that is killed
sends the last batch again, which changes nothing, since two copies of one dead letter have the same ID.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk.errors import ConfigurationError, DeadLetterError
from dedup_sdk.ids.redrive import REDRIVE_HEADER, redrive_value
from dedup_sdk.kafka.client_errors import settings_refused, text_of
from dedup_sdk.kafka.fields import as_record
from dedup_sdk.kafka.settings import ASK_S, refuse_unwritable
from dedup_sdk.runner.dead_letters import DeadLetter, Headers

_BATCH: Final = 500
_SLICE_S: Final = 0.5
_PATIENCE_S: Final = 60.0
"""Seconds without an answer of the brokers after which a run ends with an error."""
_DELIVERY_S: Final = 300.0
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_ANY_SIZE: Final = 1_000_000_000


def redrive_group(source: str) -> str:
    """Return the consumer group whose offsets say how far a dead-letter topic was sent back."""
    return f"{source}.redrive"


@dataclass(slots=True)
class Redriven:
    """What a run did, or would do.

    - ``letters``: how many were sent, by target topic.
    - ``stranded``: how many were not, by the name of a target topic that the broker does not have, or that no topic can have.
    - ``others``: records of the topic that are no dead letters of this SDK.
    - ``read`` of ``total`` offsets are through.
    """

    total: int = 0
    read: int = 0
    others: int = 0
    letters: Counter[str] = field(default_factory=Counter)
    stranded: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many dead letters were sent."""
        return self.letters.total()


class Redrive:
    """The dead letters of one topic, to be sent to ``target`` (None: to the topic of each one's message).

    ``client``: more of the client's settings, for security. Raises `DeadLetterError` in one line where the cluster does not play along.
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
                f"--to {target!r} is --from: the dead letters would be read again and again; leave --to out"
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
        """End the connections."""
        self._consumer.close()

    def run(
        self,
        *,
        execute: bool,
        again: bool = False,
        limit: int | None = None,
        report: Callable[[Redriven], object] = lambda _: None,
    ) -> Redriven:
        """Send what is there now, ``limit`` dead letters at most, from where the last run ended; return what was done.

        ``execute`` false: nothing is sent or committed. ``again``: from the topic's beginning. ``report`` is called after each batch.
        """
        try:
            return self._run(execute=execute, again=again, limit=limit, report=report)
        except KafkaException as error:
            raise DeadLetterError(
                f"the cluster did not answer: {text_of(error)}; is the broker up? Start again, it goes on where it ended"
            ) from None

    def _run(
        self, *, execute: bool, again: bool, limit: int | None, report: Callable[[Redriven], object]
    ) -> Redriven:
        done = Redriven()
        left = self._ranges(again=again)
        done.total = sum(end - begin for begin, end in left.values())
        left = {number: place for number, place in left.items() if place[0] < place[1]}
        self._consumer.assign(
            [TopicPartition(self._source, number, begin) for number, (begin, _) in left.items()]
        )
        heard = time.monotonic()
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
                    if message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (that is its public name)
                        # Behind it lies nothing that is decided yet.
                        left[number] = left[number][0], min(left[number][1], offset)
                        reached[number] = left[number][1]
                    elif not message.error().retriable():
                        raise KafkaException(message.error())
                elif offset < left[number][1]:
                    self._take(message, done, sender)
                    reached[number] = offset + 1
                else:
                    # What came since the run began. The last offset before it may be a hole, of which no record tells.
                    reached[number] = left[number][1]
            self._note(done, left, reached, sender)
            heard = _heard(heard, reached=bool(reached))
            report(done)
        return done

    def _note(
        self,
        done: Redriven,
        left: dict[int, tuple[int, int]],
        reached: dict[int, int],
        sender: _Sender | None,
    ) -> None:
        """Commit how far it came, when the brokers have what was sent."""
        if sender is not None:
            sender.wait()
        for number, position in reached.items():
            begin, end = left[number]
            done.read += max(0, position - begin)
            left[number] = position, end
            if position >= end:
                del left[number]
        if sender is not None and reached:
            places = [TopicPartition(self._source, number, position) for number, position in reached.items()]
            self._consumer.commit(offsets=places, asynchronous=False)

    def _ranges(self, *, again: bool) -> dict[int, tuple[int, int]]:
        """Return what is to be read of each partition: offsets ``[begin, end)``."""
        count = self._count(self._source)
        if count is None:
            raise DeadLetterError(f"topic {self._source!r} is unknown to the broker; check --from")
        if self._target is not None and self._count(self._target) is None:
            raise DeadLetterError(f"topic {self._target!r} is unknown to the broker; check --to")
        numbers = range(count)
        asked = [TopicPartition(self._source, number) for number in numbers]
        stands = {tp.partition: tp.offset for tp in self._consumer.committed(asked, timeout=ASK_S)}
        ranges = {}
        for place in asked:
            first, end = self._consumer.get_watermark_offsets(place, timeout=ASK_S)
            stand = stands[place.partition]
            # A topic that ends before it was made anew. Sent twice changes nothing.
            begin = first if again or stand > end else max(first, stand)
            ranges[place.partition] = begin, end
        return ranges

    def _count(self, topic: str) -> int | None:
        """Return how many partitions a topic has, None where the broker does not have it, or may not be sent to."""
        if topic not in self._partitions:
            there = None
            if _TOPIC.fullmatch(topic) and not topic.startswith("__"):
                there = self._consumer.list_topics(topic, timeout=ASK_S).topics.get(topic)
            is_there = there is not None and there.error is None
            self._partitions[topic] = len(there.partitions) if there is not None and is_there else 0
        return self._partitions[topic] or None

    def _take(self, message: Any, done: Redriven, sender: _Sender | None) -> None:
        letter = DeadLetter.read(message)
        if letter is None:
            done.others += 1
            return
        topic = letter.topic if self._target is None else self._target
        count = self._count(topic)
        if count is None:
            done.stranded[topic] += 1
            return
        # Duplicates are looked for inside a partition: where it was there may be another copy.
        there = letter.partition if 0 <= letter.partition < count else -1
        done.letters[topic] += 1
        if sender is not None:
            sender.send(message, topic, there, _headers(message, letter))


class _Sender:
    """Sends dead letters, and waits until the brokers have them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        whole = {**config, "enable.idempotence": True, "message.max.bytes": _ANY_SIZE}
        with settings_refused(whole):
            self._producer = Producer(whole)
        self._error: str | None = None

    def send(self, message: Any, topic: str, partition: int, headers: Headers) -> None:
        """Send one with its key, value and headers; ``partition`` -1: as its key says."""
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
        """Wait for the delivery reports; raises `DeadLetterError` where one says that it was not delivered."""
        left = self._producer.flush(_DELIVERY_S)
        if self._error is not None or left:
            why = self._error or f"{left} are not confirmed after {_DELIVERY_S:g} s"
            raise DeadLetterError(
                f"dead letters were not sent back: {why}; see that the topic takes them (max.message.bytes, access rights), "
                "then start again: it goes on there"
            )

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._error is None:
            self._error = f"{message.topic()}: {error.str()}"


def _headers(message: Any, letter: DeadLetter) -> Headers:
    """Return the headers of a dead letter; one that was written before they named the group gets the header that does."""
    headers: Headers = [*as_record(message).headers]
    if not any(name == REDRIVE_HEADER for name, _ in headers):
        said = redrive_value(letter.group, letter.topic, letter.partition, letter.offset, letter.timestamp_ms)
        headers.append((REDRIVE_HEADER, said))
    return headers


def _heard(heard: float, *, reached: bool) -> float:
    now = time.monotonic()
    if reached:
        return now
    if now - heard > _PATIENCE_S:
        raise DeadLetterError(
            f"nothing came from the broker for {_PATIENCE_S:g} s; is it up? Start again, it goes on where it ended"
        )
    return heard
