"""Detection of deleted and recreated topics while their partitions are read.

A recreated topic has the same name and, soon, the same offsets. The client would continue at its old position, and
the records before it would never be read. The brokers' topic ID tells the two apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk._commit_text import is_one_log, log_name
from dedup_sdk._kafka.client.client import PendingRequest, topic_id_of

LOOK_EVERY_S: Final = 30.0
"""Seconds between two checks: the longest time for which a recreated topic stays undetected."""
LOOK_SOON_S: Final = 1.0
"""Seconds until the next check after a missing or different topic.

A broker's metadata may be outdated, so two checks must agree."""


class Brokers(Protocol):
    """The requests that `TopicWatch` sends."""

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""

    def ask_anew(self, topics: Iterable[str]) -> dict[str, PendingRequest]:
        """Request the current topic IDs; the answers are `confluent_kafka.admin.TopicDescription`, by name."""


class Read(Protocol):
    """A partition that is read: its topic, and the log that the topic had at the start (`log_name`)."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def log(self) -> str:
        """Empty where the log's name is not known."""


R = TypeVar("R", bound=Read)


class TopicWatch:
    """Checks topic IDs with asynchronous requests.

    Args:
        brokers: sends the requests.
        clock: returns monotonic seconds.
        every_s: seconds between two checks.
    """

    def __init__(
        self, brokers: Brokers, clock: Callable[[], float] = time.monotonic, *, every_s: float | None = None
    ) -> None:
        self._brokers, self._clock = brokers, clock
        self._every_s = LOOK_EVERY_S if every_s is None else every_s
        self._asked: dict[str, PendingRequest] = {}
        self._changed: dict[str, str] = {}
        self._asked_at = clock()
        self.due_at = self._asked_at + self._every_s
        """When `look` must be called next (seconds of the clock); in the past while an answer is pending."""
        self.missing: set[str] = set()
        """Topics unknown to the broker that answered last; its metadata may be outdated."""

    def look(self, partitions: Collection[R]) -> list[R]:
        """Send the requests, or read their answers; return the partitions whose topic was recreated."""
        reading = [each for each in partitions if each.log]
        if not self._asked:
            self._ask({each.topic for each in reading})
            return []
        if not all(asked.answer.done() for asked in self._asked.values()):
            return []
        asked, self._asked, self.missing = self._asked, {}, set()
        self.due_at = self._asked_at + self._every_s
        logs = {topic: self._log_of(topic, each) for topic, each in asked.items()}
        changed = [each for each in reading if not is_one_log(logs.get(each.topic, ""), each.log)]
        before, self._changed = self._changed, {each.topic: logs[each.topic] for each in changed}
        if self._changed:
            self.due_at = self._clock() + LOOK_SOON_S
        return [each for each in changed if before.get(each.topic) == logs[each.topic]]

    def _ask(self, topics: set[str]) -> None:
        self._asked_at = self._clock()
        self.due_at = self._asked_at + self._every_s
        self.missing = set()
        if topics and (asked := self._brokers.ask_anew(topics)):
            self._asked, self.due_at = asked, self._asked_at

    def _log_of(self, topic: str, asked: PendingRequest) -> str:
        """Return the name of a topic's current log; empty where it is not known."""
        try:
            topic_id = topic_id_of(asked.answer.result())
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self.missing.add(topic)
                self.due_at = self._clock() + LOOK_SOON_S
            return ""
        return log_name(self._brokers.cluster_id(), topic_id)
