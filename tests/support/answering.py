"""Questions that nobody waits for, answered at once or never asked."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from dedup_sdk._kafka.client.client import Client, EndProbe, MetadataRequests, PendingRequest

if TYPE_CHECKING:
    from collections.abc import Iterable


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


class UndescribedClient(Client):
    """A client of which nobody asks for topics."""

    def topic_settings(self, topic: str) -> None:
        """See `Client`; nobody is asked."""
        del topic

    def describe(self, topics: Iterable[str]) -> bool:
        """See `Client`."""
        del topics
        return True

    def is_described(self, topic: str) -> bool:
        """See `Client`."""
        del topic
        return True

    def forget_topic_ids(self) -> None:
        """See `Client`."""

    def known_end(self, topic: str, partition: int) -> int:
        """See `Client`; no fetch tells it."""
        del topic, partition
        return -1
