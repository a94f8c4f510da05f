"""What becomes of a message that was not delivered, by the error."""

from __future__ import annotations

from typing import Final, Literal

from confluent_kafka import KafkaError

Fate = Literal["again", "refused", "left", "over"]
"""It is handed over again after a pause; it never will be taken as it is; it stays for the next start; nothing more can be sent."""
_REFUSED: Final = frozenset({
    KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP, KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT, KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError._INVALID_ARG,  # noqa: SLF001
})  # fmt: skip
_LEFT: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 (those are their public names)
_OVER: Final = frozenset({KafkaError._FATAL, KafkaError._FENCED})  # noqa: SLF001


def fate(error: KafkaError) -> Fate:
    """Return what becomes of a message."""
    code = error.code()
    if error.fatal() or code in _OVER:
        return "over"
    if code in _LEFT:
        return "left"
    return "refused" if code in _REFUSED else "again"
