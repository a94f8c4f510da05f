"""The producer of dead letters: idempotent, and each letter counts as sent only when the broker says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from dedup_sdk.errors import DeadLetterError
from dedup_sdk.inherited import keep_in_children
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.settings import ASK_S, ClientSettings, admin_settings

_MAKE_TOPIC_S = 10.0
_PAUSE_S = 0.1
_ANY_SIZE = 1_000_000_000
"""Bytes; what is too large is for the broker to say, which has taken the message itself."""

Report = Callable[[KafkaError | None], None]


class DeadLetterProducer:
    """Sends dead letters to one topic. Not thread-safe; reports come inside `poll`.

    Raises `DeadLetterError` when the topic is not there and the broker does not make it.
    """

    def __init__(self, settings: ClientSettings, topic: str) -> None:
        self.topic = topic
        self._producer = Producer(
            {
                **admin_settings(settings.client),
                "enable.idempotence": True,
                "message.max.bytes": _ANY_SIZE,
            }
        )
        keep_in_children(self)
        self._find_topic()

    def _find_topic(self) -> None:
        until = time.monotonic() + _MAKE_TOPIC_S
        while True:
            try:
                found = self._producer.list_topics(self.topic, timeout=ASK_S).topics[self.topic]
            except KafkaException as error:
                raise DeadLetterError(
                    f"dead-letter topic {self.topic!r} cannot be asked for ({error}); check bootstrap.servers and access rights"
                ) from error
            if found.error is None and found.partitions:
                return
            if time.monotonic() > until:
                raise DeadLetterError(
                    f"dead-letter topic {self.topic!r} is not there ({found.error}); create it, or name another by "
                    "DedupConsumer(dead_letters=...)"
                )
            time.sleep(_PAUSE_S)

    def send(self, message: Any, letter: DeadLetter, report: Report) -> None:
        """Send the dead letter of a message; waits where too much is under way.

        ``report`` is called with None, or with the error why it was not delivered. Raises `KafkaException` when it cannot even be sent.
        """
        while True:
            try:
                self._producer.produce(
                    self.topic,
                    value=message.value(),
                    key=message.key(),
                    headers=[*letter.headers(message)],
                    on_delivery=lambda error, _: report(error),
                )
            except BufferError:
                # Reports make room: undelivered letters fail after delivery.timeout.ms.
                self._producer.poll(_PAUSE_S)
            else:
                return

    def poll(self) -> None:
        """Let reports come in, without waiting."""
        self._producer.poll(0)

    def close(self) -> None:
        """Drop the letters that are not delivered."""
        self._producer.purge()
        self._producer.poll(0)
