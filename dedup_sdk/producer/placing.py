"""The partition of a message without a key: that of its dedup key, so that it is the same one when it is sent again.

The client would draw one, and a duplicate in another partition is not found.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException

ListTopics = Callable[..., Any]
_ASK_S: Final = 0.25
"""Seconds; nothing is persisted meanwhile."""
_PAUSE_S: Final = 1.0
_KNOWN_S: Final = 300.0
"""How long a number is believed: a topic may get more partitions."""


@dataclass(slots=True)
class _Known:
    partitions: int
    until: float
    missing_since: float | None = None
    error: KafkaError | None = None


class Places:
    """Knows how many partitions topics have. For one thread.

    Args:
        list_topics: of the client.
        patience_s: how long a topic may be unknown to the broker before its messages are refused, seconds.
    """

    def __init__(self, list_topics: ListTopics, patience_s: float) -> None:
        self._list_topics, self._patience_s = list_topics, patience_s
        self._topics: dict[str, _Known] = {}

    def place(self, topic: str, dedup_id: bytes) -> int | None:
        """Return the partition of a message without a key; None while that is not known.

        Raises `KafkaException` for a topic that has not been there for long.
        """
        known = self._topics.get(topic)
        if known is None or time.monotonic() >= known.until:
            known = self._ask(topic, known)
        if known.partitions:
            return crc32(dedup_id) % known.partitions
        if known.missing_since is not None and time.monotonic() - known.missing_since >= self._patience_s:
            raise KafkaException(known.error)
        return None

    def _ask(self, topic: str, before: _Known | None) -> _Known:
        now = time.monotonic()
        known = before or _Known(0, now)
        known.until = now + _PAUSE_S
        try:
            found = self._list_topics(topic, timeout=_ASK_S).topics[topic]
        except KafkaException:
            pass  # the broker is away: what was known of the topic stays
        else:
            if found.partitions and found.error is None:
                known = _Known(len(found.partitions), time.monotonic() + _KNOWN_S)
            elif not known.partitions:
                known.error = found.error or KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
                known.missing_since = now if known.missing_since is None else known.missing_since
        self._topics[topic] = known
        return known
