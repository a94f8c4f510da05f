"""Questions to brokers that nobody waits for: they are asked, and their answers are looked for later.

One admin client serves them all, because each needs connections and threads (of librdkafka's) of its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec

from dedup_sdk.inherited import keep_in_children
from dedup_sdk.kafka.settings import ASK_S, admin_settings

KNOCK_S = 5.0
"""Seconds after which a leader that does not answer is asked by another connection."""

_SILENT = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._DESTROY,  # noqa: SLF001
    KafkaError.REQUEST_TIMED_OUT,
})  # fmt: skip


class Asked(NamedTuple):
    """A question that waits for its answer, to be kept as a whole: a client that nobody refers to gives its questions up."""

    answer: Future[Any]
    client: AdminClient


@dataclass(slots=True)
class Knock:
    """A question to the leader of a partition, whose answer says that it answers."""

    asked: Asked
    began: float = field(default_factory=time.monotonic)
    took_s: float | None = None
    """Seconds until the answer was seen; None before that."""

    @property
    def is_over(self) -> bool:
        """Whether it was answered, or given up."""
        if self.took_s is None and self.asked.answer.done():
            self.took_s = time.monotonic() - self.began
        return self.took_s is not None

    @property
    def is_answered(self) -> bool:
        """Whether somebody answered, be it that there is no leader, or no such partition."""
        if not self.is_over:
            return False
        error = self.asked.answer.exception()
        if error is None:
            # The client says so of a question whose time is up.
            return bool(self.asked.answer.result().offset >= 0)
        cause = error.args[0] if isinstance(error, KafkaException) else None
        return isinstance(cause, KafkaError) and cause.code() not in _SILENT

    @property
    def end(self) -> int | None:
        """The end of what consumers may read, as it was answered; None without such an answer."""
        if not self.is_over or self.asked.answer.exception() is not None:
            return None
        end = int(self.asked.answer.result().offset)
        return end if end >= 0 else None


class Questions:
    """Asks through one client, for one consumer, whose settings ``client`` are. Not thread-safe."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._config = admin_settings(client)
        undecided = str(client.get("isolation.level", "")).lower() == "read_uncommitted"
        self._isolation = IsolationLevel.READ_UNCOMMITTED if undecided else IsolationLevel.READ_COMMITTED
        self._admin: AdminClient | None = None

    def describe(self, topics: Iterable[str]) -> dict[str, Asked]:
        """Ask what these topics are, in one request; the answers are `confluent_kafka.admin.TopicDescription`, by name."""
        admin = self._client()
        answers = admin.describe_topics(TopicCollection(list(topics)), request_timeout=ASK_S)
        return {topic: Asked(answer, admin) for topic, answer in answers.items()}

    def settings_of(self, topic: str) -> Asked:
        """Ask how a topic is set up; the answer has an entry a setting."""
        admin = self._client()
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        return Asked(admin.describe_configs([resource], request_timeout=ASK_S)[resource], admin)

    def knock(self, topic: str, partition: int) -> Knock:
        """Ask the leader of a partition for the end of what a consumer may read."""
        admin = self._client()
        asked = TopicPartition(topic, partition)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # it has no annotations
        answers = admin.list_offsets(
            {asked: latest}, isolation_level=self._isolation, request_timeout=KNOCK_S
        )
        [future] = answers.values()
        return Knock(Asked(future, admin))

    def renew(self) -> None:
        """Have the next question make new connections; those of questions under way go with these. A client believes for minutes what it was told of leaders."""
        self._admin = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = keep_in_children(AdminClient(self._config))
        return self._admin
