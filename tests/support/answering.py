"""Questions that nobody waits for, answered at once or never asked."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dedup_sdk._kafka.client.client import Client, EndProbe, MetadataRequests, PendingRequest, TopicIds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Answering(MetadataRequests):
    """Every leader is there; its answers mean nothing."""

    def __init__(self) -> None:
        """Without a cluster."""

    def probe(self, topic: str, partition: int) -> EndProbe:
        """See `MetadataRequests`."""
        del topic, partition
        future: Future[Any] = Future()
        future.set_result(SimpleNamespace(offset=0))
        return EndProbe(PendingRequest(future, cast("Any", None)))

    def renew(self) -> None:
        """See `MetadataRequests`."""


class OneTopicId(TopicIds):
    """The ID of all topics is at hand."""

    def __init__(self, topic_id: Callable[[], str]) -> None:
        self._topic_id = topic_id

    def describe(self, topics: Iterable[str]) -> bool:
        """See `TopicIds`."""
        del topics
        return True

    def is_described(self, topic: str) -> bool:
        """See `TopicIds`."""
        del topic
        return True

    def id_of(self, topic: str) -> str:
        """See `TopicIds`."""
        del topic
        return self._topic_id()

    def forget(self) -> None:
        """See `TopicIds`."""


class UndescribedClient(Client):
    """A client of which nobody asks for topics."""

    def topic_settings(self, topic: str) -> None:
        """See `Client`; nobody is asked."""
        del topic

    def known_end(self, topic: str, partition: int) -> int:
        """See `Client`; no fetch tells it."""
        del topic, partition
        return -1
