"""Gives messages to the client, chooses the partition of a message without a key, and classifies delivery errors.

A message without a key goes to the partition that its dedup key determines, so that a resend goes to the
same one. The client would choose a random partition, and a duplicate in another partition is not found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Message

from dedup_sdk.producer._outgoing import Outgoing, unpack_headers

_CREATE_TIME = 1


class ClientAdapter:
    """Gives messages to the client, and makes delivery reports.

    Args:
        produce: the client's method.
        partitions: chooses the partition of a message without a key.
        id_header: the header that bears the dedup key.
        scatters_empty_keys: see `ProducerSettings`.
    """

    def __init__(
        self,
        produce: Callable[..., None],
        partitions: PartitionChooser,
        *,
        id_header: str,
        scatters_empty_keys: bool,
    ) -> None:
        self.produce = produce
        self._partitions, self._id_header, self._scatters_empty_keys = (
            partitions,
            id_header,
            scatters_empty_keys,
        )

    def give(self, message: Outgoing, report: Callable[..., None]) -> bool:
        """Give a message to the client; false while its partition is unknown.

        Raises `BufferError` when the client's queue is full, `KafkaException` when the client refuses the
        message.
        """
        where = message.partition
        if where < 0 and (message.key is None or (not message.key and self._scatters_empty_keys)):
            place = self._partitions.choose(message.topic, message.dedup_id)
            if place is None:
                return False
            where = place
        self.produce(
            message.topic, message.value, message.key, where,
            on_delivery=report, timestamp=message.timestamp_ms, headers=self._headers(message),
        )  # fmt: skip
        return True

    def refused(self, message: Outgoing, error: KafkaError) -> Message:
        """Return a message as a delivery report has it, headers included."""
        return Message(
            topic=message.topic, partition=message.partition, key=message.key, value=message.value,
            headers=self._headers(message), error=error, timestamp=(_CREATE_TIME, message.timestamp_ms),
        )  # fmt: skip

    def _headers(self, message: Outgoing) -> list[tuple[str, Any]]:
        headers: list[tuple[str, Any]] = [] if message.headers is None else unpack_headers(message.headers)
        headers.append((self._id_header, message.dedup_id))
        return headers


ListTopics = Callable[..., Any]
_ASK_S: Final = 0.25
"""Seconds that one request may take; nothing is persisted meanwhile."""
_ASK_AGAIN_S: Final = 1.0
_KNOWN_S: Final = 300.0
"""Seconds until the number of partitions is asked for again: a topic may get more."""


@dataclass(slots=True)
class _Known:
    partitions: int
    until: float
    missing_since: float | None = None
    error: KafkaError | None = None


class PartitionChooser:
    """Chooses partitions by dedup key; asks the broker how many a topic has. For one thread.

    Args:
        list_topics: the client's method.
        unknown_topic_s: how long a topic may be unknown to the broker before its messages are refused, seconds.
    """

    def __init__(self, list_topics: ListTopics, unknown_topic_s: float) -> None:
        self._list_topics, self._unknown_topic_s = list_topics, unknown_topic_s
        self._topics: dict[str, _Known] = {}

    def choose(self, topic: str, dedup_id: bytes) -> int | None:
        """Return the partition of a message without a key; None while the number of partitions is unknown.

        Raises `KafkaException` for a topic that the broker has not known for ``unknown_topic_s``.
        """
        known = self._topics.get(topic)
        if known is None or time.monotonic() >= known.until:
            known = self._ask(topic, known)
        if known.partitions:
            return crc32(dedup_id) % known.partitions
        if (
            known.missing_since is not None
            and time.monotonic() - known.missing_since >= self._unknown_topic_s
        ):
            raise KafkaException(known.error)
        return None

    def _ask(self, topic: str, before: _Known | None) -> _Known:
        now = time.monotonic()
        known = before or _Known(0, now)
        known.until = now + _ASK_AGAIN_S
        try:
            found = self._list_topics(topic, timeout=_ASK_S).topics[topic]
        except KafkaException:
            pass  # the broker is away: keep the last known number of partitions
        else:
            if found.partitions and found.error is None:
                known = _Known(len(found.partitions), time.monotonic() + _KNOWN_S)
            elif not known.partitions:
                known.error = found.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                known.missing_since = now if known.missing_since is None else known.missing_since
        self._topics[topic] = known
        return known


Outcome = Literal["retry", "refused", "kept", "fatal"]
"""retry: after a pause; refused: never accepted as it is; kept: in the outbox until the next start;
fatal: the client can send nothing more."""
_REFUSED: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD, KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    KafkaError._INVALID_ARG,  # noqa: SLF001
})  # fmt: skip
_KEPT: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 (public names)
_FATAL_CODES: Final = frozenset({KafkaError._FATAL, KafkaError._FENCED})  # noqa: SLF001


def outcome_of(error: KafkaError) -> Outcome:
    """Return the outcome of a message that was not delivered."""
    code = error.code()
    if error.fatal() or code in _FATAL_CODES:
        return "fatal"
    if code in _KEPT:
        return "kept"
    return "refused" if code in _REFUSED else "retry"
