"""Whether a window by time fits its topic: a store can be rebuilt only from what the topic keeps, and a resend takes its time.

A consumer asks once for each topic, in the background, after its first partition has begun (`WindowCheck`). It says nothing without an answer, or
where the consumer ends before it. The command ``dedup window-check`` asks from outside (`WindowQuestion`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.assignment import Assigned
from dedup_sdk.kafka.client import Asked, Client
from dedup_sdk.kafka.client_errors import settings_refused, text_of
from dedup_sdk.kafka.settings import ASK_S, ClientSettings, refuse_unwritable
from dedup_sdk.observe import EventName, PartitionEvent

DELIVERY_TIMEOUT_MS = 120_000
"""A producer's default ``delivery.timeout.ms``: how long it tries by itself before an application may send again."""


class _Question(NamedTuple):
    partition: int
    offset: int
    asked: Asked


class WindowCheck:
    """Asks for each topic's settings, and tells where the window does not fit."""

    def __init__(self, engine: Deduplicator, client: Client, settings: ClientSettings) -> None:
        self._engine, self._client, self._settings = engine, client, settings
        self._topics: set[str] = set()
        self.asked: dict[str, _Question] = {}
        """Questions whose answer is not looked at yet, by topic."""

    def look(self, begun: Iterable[Assigned] = ()) -> None:
        """Ask for the settings of topics of which these are the first partitions that began; tell of misfits as answers come."""
        for each in begun:
            if each.topic not in self._topics and each.start is not None:
                self._topics.add(each.topic)
                self._ask(each.topic, each.partition, each.start.offset)
        for topic, question in list(self.asked.items()):
            if not question.asked.answer.done():
                continue
            del self.asked[topic]
            try:
                entries = question.asked.answer.result()
            except KafkaException:
                continue  # it may be forbidden to ask; nothing hangs on it
            settings = {name: entry.value for name, entry in entries.items() if entry.value is not None}
            window_ms = self._engine.strategy.window_of(topic).time_ms or 0
            silence_ms = int(self._settings.silence_s * 1000)
            for name, detail in misfits(window_ms, settings, silence_ms):
                self._engine.tell(PartitionEvent(name, topic, question.partition, question.offset, detail))

    def _ask(self, topic: str, partition: int, offset: int) -> None:
        if self._engine.strategy.window_of(topic).time_ms is None:
            return
        asked = self._client.topic_settings(topic)
        if asked is not None:
            self.asked[topic] = _Question(partition, offset, asked)


def misfits(
    window_ms: int,
    topic_settings: Mapping[str, str],
    silence_ms: int,
    *,
    retry_ms: int = DELIVERY_TIMEOUT_MS,
    lag_ms: int = 0,
) -> Iterator[tuple[EventName, str]]:
    """Yield the misfits: the event, and one line with both numbers.

    ``silence_ms`` is how long a member of a group may be gone before its work is given to another, ``retry_ms`` how long a producer tries, ``lag_ms`` the
    age of the oldest record that the group has not read.
    """
    retention_ms = retention_of(topic_settings)
    if retention_ms is not None and retention_ms < window_ms + lag_ms:
        behind = f" and the group is {lag_ms} ms behind" if lag_ms else ""
        detail = (
            f"the window is {window_ms} ms{behind}, the topic keeps {retention_ms} ms (retention.ms): a store that is lost is made again "
            "of so much only, and what hangs on the rest is unverified; raise retention.ms, or keep snapshots"
        )
        yield "window-beyond-retention", detail
    needed_ms = needed(topic_settings, silence_ms, retry_ms)
    if window_ms < needed_ms:
        detail = (
            f"the window is {window_ms} ms, but a message may be sent again {needed_ms} ms later: after a producer's "
            f"delivery.timeout.ms ({retry_ms}) and the time until a consumer before it is given up ({silence_ms}); such a "
            "duplicate is delivered; give a longer window unless your producers are quicker"
        )
        yield "window-too-short", detail


def retention_of(topic_settings: Mapping[str, str]) -> int | None:
    """Return how long a topic keeps its records, milliseconds; None: for good, or until newer ones of their keys come."""
    retention_ms = int(topic_settings.get("retention.ms", "-1"))
    return (
        retention_ms if retention_ms >= 0 and "delete" in topic_settings.get("cleanup.policy", "") else None
    )


def needed(topic_settings: Mapping[str, str], silence_ms: int, retry_ms: int) -> int:
    """Return how long after its first record a message may be sent again, milliseconds, by the records' timestamps."""
    appended = topic_settings.get("message.timestamp.type") == "LogAppendTime"
    return retry_ms * (2 if appended else 1) + silence_ms


class WindowQuestion:
    """Asks a broker how a topic is set up, and how far behind a group is. Raises `RecoveryError` in one line where the cluster does not play along.

    ``client``: more of the client's settings, for security.
    """

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> None:
        self._topic = topic
        self._config: dict[str, Any] = {"log_level": 0, **(client or {}), "bootstrap.servers": bootstrap}
        refuse_unwritable({**self._config, "group.id": "window-check"})

    def topic_settings(self) -> dict[str, str]:
        """Return how the topic is set up."""
        with settings_refused(self._config):
            admin = AdminClient(self._config)
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        try:
            entries = admin.describe_configs([resource], request_timeout=ASK_S)[resource].result()
        except KafkaException as error:
            raise RecoveryError(
                f"topic {self._topic!r} cannot be asked for its settings: {text_of(error)}; check --topic and --bootstrap"
            ) from None
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def lag_ms(self, group: str) -> int:
        """Return the age of the oldest record that a group has not read, milliseconds; 0 where it has read all, or never committed."""
        own = {
            "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", "enable.partition.eof": True,
            "allow.auto.create.topics": False,
        }  # fmt: skip
        refuse_unwritable({**self._config, **own})
        with settings_refused(self._config):
            consumer = Consumer({**self._config, **own})
        try:
            return self._lag_ms(consumer)
        except KafkaException as error:
            raise RecoveryError(f"the cluster did not answer: {text_of(error)}; is the broker up?") from None
        finally:
            consumer.close()

    def _lag_ms(self, consumer: Consumer) -> int:
        there = consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        asked = [TopicPartition(self._topic, number) for number in there.partitions]
        stands = [tp for tp in consumer.committed(asked, timeout=ASK_S) if tp.offset >= 0]
        for tp in stands:
            # Records that are gone are nobody's to read.
            tp.offset = max(tp.offset, consumer.get_watermark_offsets(tp, timeout=ASK_S)[0])
        consumer.assign(stands)
        left, oldest_ms = {tp.partition for tp in stands}, None
        until = time.monotonic() + ASK_S
        while left:
            message = consumer.poll(max(0.0, until - time.monotonic()))
            if message is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 (that is its public name)
            error, partition = message.error(), message.partition()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 (as above)
                raise KafkaException(error)
            if partition not in left or partition is None:
                continue
            left.discard(partition)
            if error is None:
                timestamp_ms = message.timestamp()[1]
                oldest_ms = timestamp_ms if oldest_ms is None else min(oldest_ms, timestamp_ms)
        return 0 if oldest_ms is None else max(0, time.time_ns() // 1_000_000 - oldest_ms)
