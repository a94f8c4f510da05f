"""The questions of ``dedup window-check``: a topic's configuration, and how far a group is behind."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from confluent_kafka.cimpl import Consumer

from dedup_sdk._admin.broker_check import require_broker
from dedup_sdk._kafka.client.client_errors import settings_refused, text_of
from dedup_sdk._kafka.client.settings import ASK_S, refuse_unwritable
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError, RecoveryError


class WindowQuestion:
    """Requests a topic's configuration and a group's lag. Raises `RecoveryError` with a one-line message.

    ``client``: additional client settings, for security.
    """

    def __init__(self, bootstrap: str, topic: str, client: Mapping[str, str] | None = None) -> None:
        self._topic = topic
        self._config: dict[str, Any] = {"log_level": 0, **(client or {}), "bootstrap.servers": bootstrap}
        refuse_unwritable({**self._config, "group.id": "window-check"})

    def topic_settings(self) -> dict[str, str]:
        """Return the topic's configuration."""
        with settings_refused(self._config):
            admin = AdminClient(self._config)
        try:
            resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
            asked = admin.describe_configs([resource], request_timeout=ASK_S)[resource]
            require_broker(self._config, RecoveryError)
            entries = asked.result()
        except KafkaException as error:
            raise RecoveryError(
                f"the settings of topic {shown(self._topic)} cannot be read: {text_of(error)}; check --topic and "
                f"--bootstrap"
            ) from None
        except ValueError:
            raise ConfigurationError(
                f"{shown(self._topic)} is not a topic's name; give --topic the name of one"
            ) from None
        return {name: entry.value for name, entry in entries.items() if entry.value is not None}

    def lag_ms(self, group: str) -> int:
        """Return the age in milliseconds of the oldest record that a group has not read.

        0 where the group has read all records, or has committed nothing.
        """
        own = {
            "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "enable.partition.eof": True, "allow.auto.create.topics": False,
        }  # fmt: skip
        refuse_unwritable({**self._config, **own})
        with settings_refused(self._config):
            consumer = Consumer({**self._config, **own})
        try:
            return self._lag_ms(consumer)
        except KafkaException as error:
            raise RecoveryError(
                f"the cluster did not answer: {text_of(error)}; check --bootstrap and the broker"
            ) from None
        finally:
            consumer.close()

    def _lag_ms(self, consumer: Consumer) -> int:
        there = consumer.list_topics(self._topic, timeout=ASK_S).topics[self._topic]
        asked = [TopicPartition(self._topic, number) for number in there.partitions]
        positions = [tp for tp in consumer.committed(asked, timeout=ASK_S) if tp.offset >= 0]
        for tp in positions:
            # Deleted records can no longer be read: start at the first that exists.
            tp.offset = max(tp.offset, consumer.get_watermark_offsets(tp, timeout=ASK_S)[0])
        consumer.assign(positions)
        left, oldest_ms = {tp.partition for tp in positions}, None
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
