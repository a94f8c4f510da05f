"""Whether the topics that are read are still the ones that their partitions began with.

A topic that is deleted and made again has the same name and, soon, the same offsets: the client reads on where it stood, and the records before
that are never read. The brokers know it by its ID.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol, TypeVar

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.kafka.client import Asked, topic_id_of
from dedup_sdk.kafka.commit_text import is_one_log, log_name

LOOK_EVERY_S: Final = 30.0
"""Seconds between two looks; so long, at most, a topic that was made anew is taken for the old one."""
LOOK_SOON_S: Final = 1.0
"""Seconds until the next look where a topic is not there, or another one: a broker may be behind, so that two looks have to agree."""


class Brokers(Protocol):
    """The questions that are asked."""

    def cluster_id(self) -> str:
        """Return the cluster's ID; raises `KafkaException`."""

    def ask_anew(self, topics: Iterable[str]) -> dict[str, Asked]:
        """Ask which these topics are now; the answers are `confluent_kafka.admin.TopicDescription`, by name."""


class Read(Protocol):
    """A partition that is read: of which topic, and which log that was (`log_name`) when it began."""

    @property
    def topic(self) -> str:
        """The topic's name."""

    @property
    def log(self) -> str:
        """Empty where nobody could say."""


R = TypeVar("R", bound=Read)


class TopicWatch:
    """Asks in the background which topics these are.

    Args:
        brokers: who is asked.
        clock: gives monotonic seconds.
        every_s: seconds between two looks.
    """

    def __init__(
        self, brokers: Brokers, clock: Callable[[], float] = time.monotonic, *, every_s: float | None = None
    ) -> None:
        self._brokers, self._clock = brokers, clock
        self._every_s = LOOK_EVERY_S if every_s is None else every_s
        self._asked: dict[str, Asked] = {}
        self._seen: dict[str, str] = {}
        self._asked_at = clock()
        self.due_at = self._asked_at + self._every_s
        """When (seconds of the clock) there is something to ask; past while an answer is awaited."""
        self.missing: set[str] = set()
        """Topics that the broker which was asked last does not know; it may be behind."""

    def look(self, partitions: Collection[R]) -> list[R]:
        """Ask, or look at the answers; return those that are read from a topic which is another one by now."""
        reading = [each for each in partitions if each.log]
        if not self._asked:
            self._ask({each.topic for each in reading})
            return []
        if not all(asked.answer.done() for asked in self._asked.values()):
            return []
        asked, self._asked, self.missing = self._asked, {}, set()
        self.due_at = self._asked_at + self._every_s
        logs = {topic: self._log_of(topic, each) for topic, each in asked.items()}
        others = [each for each in reading if not is_one_log(logs.get(each.topic, ""), each.log)]
        before, self._seen = self._seen, {each.topic: logs[each.topic] for each in others}
        if self._seen:
            self.due_at = self._clock() + LOOK_SOON_S
        return [each for each in others if before.get(each.topic) == logs[each.topic]]

    def _ask(self, topics: set[str]) -> None:
        self._asked_at = self._clock()
        self.due_at = self._asked_at + self._every_s
        self.missing = set()
        if topics and (asked := self._brokers.ask_anew(topics)):
            self._asked, self.due_at = asked, self._asked_at

    def _log_of(self, topic: str, asked: Asked) -> str:
        """Return which log a topic is now; empty where nobody can say."""
        try:
            topic_id = topic_id_of(asked.answer.result())
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                self.missing.add(topic)
                self.due_at = self._clock() + LOOK_SOON_S
            return ""
        return log_name(self._brokers.cluster_id(), topic_id)
