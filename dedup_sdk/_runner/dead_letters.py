"""Dead letters: their headers, and the producer that sends them.

A dead letter has the key, the value and the headers of its message. These headers are added, as text, each with the
prefix ``dedup-dead-letter-``:

    topic, partition, offset    the coordinates of the message
    timestamp-ms                its timestamp, -1 if it had none
    group                       the consumer group whose handler failed
    attempts                    number of calls of its handler, earlier deliveries included
    id                          the digest of its dedup ID, 32 hex digits; absent when it had none
    error-type, error           the last error of the handler, shortened, credentials masked

The header ``dedup-redrive`` is added too. By it the group handles the message once more when the dead letter is sent
back with its headers (`dedup_sdk.ids._redrive`).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import Producer

from dedup_sdk._fork_safety import keep_in_children
from dedup_sdk._kafka.client.fields import as_record
from dedup_sdk._kafka.client.settings import ASK_S, ClientSettings, admin_settings
from dedup_sdk._marks import DIGEST_BYTES
from dedup_sdk._masking import error_text, shown
from dedup_sdk.errors import DeadLetterError
from dedup_sdk.ids._redrive import REDRIVE_HEADER, redrive_value

logger = logging.getLogger("dedup_sdk")

PREFIX = "dedup-dead-letter-"

_MAKE_TOPIC_S = 10.0
_PAUSE_S = 0.1
_ANY_SIZE = 1_000_000_000
"""``message.max.bytes``: no limit in the client. The broker decides, which has already accepted the message once."""
_SAME_TOPIC = KafkaError(
    KafkaError._INVALID_ARG,  # noqa: SLF001 (public)
    "the message is already in the dead-letter topic",
)

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * DIGEST_BYTES}}}", re.ASCII)

Headers = list[tuple[str, str | bytes | None]]
Report = Callable[[KafkaError | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Describes a failed message, its group and its error.

    ``timestamp_ms`` is -1 for a message without a timestamp, ``digest`` (16 bytes) None for one without an ID.
    ``error`` is one line of at most 1,000 characters.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    group: str
    attempts: int
    digest: bytes | None
    error_type: str
    error: str

    @classmethod
    def of(
        cls,
        message: Any,
        error: BaseException,
        *,
        group: str,
        attempts: int,
        digest: bytes | None,
    ) -> Self:
        """Describe a message whose handler has failed and will not be retried."""
        return cls(
            topic=message.topic(), partition=message.partition(), offset=message.offset(),
            timestamp_ms=message.timestamp()[1], group=group, attempts=attempts, digest=digest,
            error_type=type(error).__qualname__, error=error_text(error),
        )  # fmt: skip

    @classmethod
    def read(cls, message: Any) -> Self | None:
        """Read the description from a dead letter's headers; None if ``message`` is not a dead letter of this SDK.

        Only topic, partition, offset and group are required. Without a valid timestamp ``timestamp_ms`` is -1,
        without attempts ``attempts`` is 0.
        """
        fields = _description(message)
        topic, group, digest = fields.get("topic"), fields.get("group"), fields.get("id")
        partition, offset = _number(fields.get("partition")), _number(fields.get("offset"))
        if topic is None or group is None or partition is None or offset is None:
            return None
        timestamp_ms = _number(fields.get("timestamp-ms"))
        return cls(
            topic=topic, partition=partition, offset=offset, timestamp_ms=-1 if timestamp_ms is None else timestamp_ms,
            group=group, attempts=_number(fields.get("attempts")) or 0,
            digest=bytes.fromhex(digest) if digest is not None and _DIGEST.fullmatch(digest) else None,
            error_type=fields.get("error-type") or "", error=fields.get("error") or "",
        )  # fmt: skip

    def headers(self, message: Any) -> Headers:
        """Return all headers of the dead letter: those of the message, the description, and the redrive header."""
        fields = {
            "topic": self.topic, "partition": self.partition, "offset": self.offset,
            "timestamp-ms": self.timestamp_ms, "group": self.group, "attempts": self.attempts,
            "id": None if self.digest is None else self.digest.hex(),
            "error-type": self.error_type, "error": self.error,
        }  # fmt: skip
        described = [
            (PREFIX + name, str(value).encode()) for name, value in fields.items() if value is not None
        ]
        again = redrive_value(self.group, self.topic, self.partition, self.offset, self.timestamp_ms)
        return [*original_headers(message), *described, (REDRIVE_HEADER, again)]


class DeadLetterProducer:
    """An idempotent producer for one dead-letter topic; a letter counts as sent when its delivery report has come.

    Not thread-safe; delivery reports arrive inside `poll`. Raises `DeadLetterError` when the topic does not exist and
    the broker does not create it.
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
                    f"dead-letter topic {shown(self.topic)}: no metadata ({error}); check bootstrap.servers and access "
                    "rights"
                ) from error
            if found.error is None and found.partitions:
                return
            if time.monotonic() > until:
                raise DeadLetterError(
                    f"dead-letter topic {shown(self.topic)} does not exist ({found.error}); create it, or name another "
                    "one in run(dead_letters=...)"
                )
            time.sleep(_PAUSE_S)

    def send(
        self,
        message: Any,
        error: BaseException,
        report: Report,
        *,
        group: str,
        attempts: int,
        digest: bytes | None,
    ) -> None:
        """Send the dead letter of a message whose handler has failed; waits while the client's queue is full.

        ``report`` is called with None when the letter was delivered, else with the error.
        """
        letter = DeadLetter.of(message, error, group=group, attempts=attempts, digest=digest)
        logger.warning(
            "%s[%d]@%d: the handler failed (attempts: %d), sending a dead letter: %s",
            letter.topic, letter.partition, letter.offset, letter.attempts, letter.error_type,
            extra={"event": "handler-failed"},
        )  # fmt: skip
        if letter.topic == self.topic:
            # Else the letter would be read from this topic, and fail again, for ever.
            report(_SAME_TOPIC)
            return
        try:
            self._produce(message, letter, report)
        except KafkaException as refused:
            report(refused.args[0])

    def _produce(self, message: Any, letter: DeadLetter, report: Report) -> None:
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
                # `poll` frees the queue: letters are delivered, or fail after delivery.timeout.ms.
                self._producer.poll(_PAUSE_S)
            else:
                return

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on."""
        self._producer.set_sasl_credentials(username, password)

    def poll(self) -> None:
        """Process delivery reports, without waiting."""
        self._producer.poll(0)

    def close(self) -> None:
        """Drop undelivered letters."""
        self._producer.purge()
        self._producer.poll(0)


def undeliverable(message: Any, error: KafkaError) -> DeadLetterError:
    """Return the error of a run whose dead letter was not delivered."""
    return DeadLetterError(
        f"the dead letter of {message.topic()}[{message.partition()}]@{message.offset()} was not delivered: {error}; "
        "the message is delivered again: check that the dead-letter topic accepts it (max.message.bytes, access "
        "rights), then start again"
    )


def original_headers(message: Any) -> Headers:
    """Return the headers that a message had before it was dead-lettered; copy these to a message of your own."""
    return _without_ours(as_record(message).headers)


def _without_ours(headers: Iterable[tuple[str, bytes | None]]) -> Headers:
    return [
        (name, value) for name, value in headers if not name.startswith(PREFIX) and name != REDRIVE_HEADER
    ]


def _description(message: Any) -> dict[str, str | None]:
    # Of several headers with the same name the last one counts.
    return {
        name.removeprefix(PREFIX): _text(value)
        for name, value in as_record(message).headers
        if name.startswith(PREFIX)
    }


def _number(text: str | None) -> int | None:
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if _SMALLEST <= number <= _LARGEST else None


def _text(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
