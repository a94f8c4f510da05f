"""Which logs the source's topics are: one that was deleted and made anew has the same name, and soon the same offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException

from dedup_sdk.kafka.metadata import topic_id_of
from dedup_sdk.kafka.questions import Asked, Questions
from dedup_sdk.rule_fingerprint import log_name

_AGAIN_S: Final = 0.5
"""Seconds until a question that was not answered well is asked again."""
_MOCK: Final = "mockCluster"
"""What the IDs of librdkafka's mock clusters begin with: they answer no such question, and have no topic IDs."""


def has_topic_ids(cluster: str) -> bool:
    """Whether a cluster can be asked for the IDs of its topics; it may have none all the same."""
    return not cluster.startswith(_MOCK)


class TopicLogs:
    """Asks in the background; ``config`` is of the source's client, ``cluster_id`` returns the cluster's ID or raises `KafkaException`."""

    def __init__(self, config: Mapping[str, Any], cluster_id: Callable[[], str]) -> None:
        self._questions, self.cluster_id = Questions(config), cluster_id
        self._asked: dict[str, Asked] = {}
        self._ask_at: dict[str, float] = {}

    def ask_anew(self, topics: Iterable[str]) -> dict[str, Asked]:
        """Ask which these topics are now; no answers where brokers have no IDs to give."""
        return {} if self._has_none() else self._questions.describe(topics)

    def answers(self, topics: Iterable[str]) -> dict[str, str | KafkaException]:
        """Ask for those of which nothing is asked, and return the answers that have come: names of logs (`log_name`), or why there is none.

        An answer is given once. Raises `KafkaException` while the cluster's ID is not known.
        """
        if self._has_none():
            return dict.fromkeys(topics, log_name(self.cluster_id(), ""))
        now = time.monotonic()
        unasked = [each for each in topics if each not in self._asked and now >= self._ask_at.get(each, 0.0)]
        if unasked:
            self._asked |= self._questions.describe(unasked)
        done = [each for each in topics if each in self._asked and self._asked[each].answer.done()]
        return {topic: self._answer(topic) for topic in done}

    def forget(self, topics: Iterable[str]) -> None:
        """Take no answer to what was asked before."""
        for topic in topics:
            self._asked.pop(topic, None)

    def doubt(self, topic: str, seconds: float) -> None:
        """Ask again what was answered, after a while."""
        self._ask_at[topic] = time.monotonic() + seconds
        self._questions.renew()

    def _answer(self, topic: str) -> str | KafkaException:
        try:
            topic_id = topic_id_of(self._asked.pop(topic).answer.result())
        except KafkaException as error:
            self._ask_at[topic] = time.monotonic() + _AGAIN_S
            self._questions.renew()
            return error
        return log_name(self.cluster_id(), topic_id)

    def _has_none(self) -> bool:
        return not has_topic_ids(self.cluster_id())
