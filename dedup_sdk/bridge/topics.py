"""The topics of a cluster as a client lists them: none is created by asking."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

_KNOWN_S: Final = 300.0
"""How long the answer is believed: a topic may get more partitions."""
_MISSING_S: Final = 1.0
_ANSWER_S: Final = 10.0


class Topics:
    """Knows how many partitions topics have. Raises `KafkaException` where the cluster does not answer.

    ``list_topics``: of a client. Asked for one topic it would have the broker create it, so all of them are asked for.
    """

    def __init__(self, list_topics: Callable[..., Any]) -> None:
        self._list_topics = list_topics
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def count(self, topic: str) -> int:
        """Return how many partitions a topic has; 0 where there is none."""
        now = time.monotonic()
        count = self._counts.get(topic, 0)
        if now < self._until and (count or now < self._until - _KNOWN_S + _MISSING_S):
            return count
        return self.all().get(topic, 0)

    def all(self) -> dict[str, int]:
        """Ask for all topics; return their numbers of partitions."""
        found = self._list_topics(timeout=_ANSWER_S).topics
        self._counts = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        self._until = time.monotonic() + _KNOWN_S
        return self._counts
