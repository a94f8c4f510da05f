"""What a broker knows of how long a window has to be: a topic's settings, and how far behind a group is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka.refusals import settings_refused, text_of
from dedup_sdk.kafka.settings import ASK_S, refuse_unwritable


class WindowQuestion:
    """Asks about one topic. Raises `RecoveryError` in one line where the cluster does not play along.

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
