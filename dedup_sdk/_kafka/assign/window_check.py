"""Checks whether a time window fits its topic: the topic's retention, and the time after which a message may be resent.

A lost store can be rebuilt only from records that the topic still has. `WindowCheck` runs in a consumer: one
asynchronous request a topic, after its first partition became active; without an answer it reports nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned
from dedup_sdk._kafka.client.client import Client, PendingRequest
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._metrics import EventName
from dedup_sdk._observe import PartitionEvent
from dedup_sdk._window import length_text

DELIVERY_TIMEOUT_MS = 120_000
"""Default ``delivery.timeout.ms`` of producers: how long a producer retries before the application may send again."""


class _TopicRequest(NamedTuple):
    partition: int
    offset: int
    asked: PendingRequest


class WindowCheck:
    """Requests each topic's configuration, and emits an event where the window does not fit."""

    def __init__(self, engine: Deduplicator, client: Client, settings: ClientSettings) -> None:
        self._engine, self._client, self._settings = engine, client, settings
        self._topics: set[str] = set()
        self.asked: dict[str, _TopicRequest] = {}
        """Pending requests, by topic."""

    def look(self, begun: Iterable[Assigned] = ()) -> None:
        """Request the configuration of topics of newly begun partitions; emit misfits as answers arrive."""
        for each in begun:
            if each.topic not in self._topics and each.start is not None:
                self._topics.add(each.topic)
                self._ask(each.topic, each.partition, each.start.offset)
        for topic, request in list(self.asked.items()):
            if not request.asked.answer.done():
                continue
            del self.asked[topic]
            try:
                entries = request.asked.answer.result()
            except KafkaException:
                continue  # the request may be forbidden; this check is optional
            settings = {name: entry.value for name, entry in entries.items() if entry.value is not None}
            window_ms = self._engine.strategy.window_of(topic).time_ms or 0
            silence_ms = int(self._settings.silence_s * 1000)
            for name, detail in misfits(window_ms, settings, silence_ms):
                self._engine.tell(PartitionEvent(name, topic, request.partition, request.offset, detail))

    def _ask(self, topic: str, partition: int, offset: int) -> None:
        if self._engine.strategy.window_of(topic).time_ms is None:
            return
        asked = self._client.topic_settings(topic)
        if asked is not None:
            self.asked[topic] = _TopicRequest(partition, offset, asked)


def misfits(
    window_ms: int,
    topic_settings: Mapping[str, str],
    silence_ms: int,
    *,
    retry_ms: int = DELIVERY_TIMEOUT_MS,
    lag_ms: int = 0,
) -> Iterator[tuple[EventName, str]]:
    """Yield the misfits: an event name, and one line with both lengths.

    All times are in milliseconds. ``silence_ms``: silence after which a group reassigns a member's partitions.
    ``retry_ms``: how long a producer retries. ``lag_ms``: age of the oldest record that the group has not read.
    """
    retention_ms = retention_of(topic_settings)
    if retention_ms is not None and retention_ms < window_ms + lag_ms:
        behind = f" and the group is {length_text(lag_ms, most_units=2)} behind" if lag_ms else ""
        detail = (
            f"the window is {length_text(window_ms)}{behind}, but the topic keeps only {length_text(retention_ms)} "
            "(retention.ms): a lost store can be rebuilt only from that, and records that depend on older ones are "
            "unverified; raise retention.ms, or keep snapshots"
        )
        yield "window-beyond-retention", detail
    needed_ms = needed(topic_settings, silence_ms, retry_ms)
    if window_ms < needed_ms:
        detail = (
            f"the window is {length_text(window_ms)}, but a message may be sent again {length_text(needed_ms)} later: "
            f"after a producer's delivery.timeout.ms ({length_text(retry_ms)}) and the session timeout of a consumer "
            f"that sends to this topic ({length_text(silence_ms)}); such a duplicate is delivered; give a longer "
            "window unless your producers are quicker"
        )
        yield "window-too-short", detail


def retention_of(topic_settings: Mapping[str, str]) -> int | None:
    """Return a topic's retention time in milliseconds; None if it is unlimited, or compaction alone deletes records."""
    retention_ms = int(topic_settings.get("retention.ms", "-1"))
    return (
        retention_ms if retention_ms >= 0 and "delete" in topic_settings.get("cleanup.policy", "") else None
    )


def needed(topic_settings: Mapping[str, str], silence_ms: int, retry_ms: int) -> int:
    """Return how long after its first record a message may be resent, in milliseconds of record timestamps."""
    appended = topic_settings.get("message.timestamp.type") == "LogAppendTime"
    return retry_ms * (2 if appended else 1) + silence_ms
