"""Whether a window by time fits its topic: a store can be made again only of what the topic keeps, and a resend takes its time.

The broker is asked once a topic, in the background, when its first partition begins; without an answer nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from confluent_kafka import KafkaException

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.kafka.client import Client
from dedup_sdk.kafka.questions import Asked
from dedup_sdk.kafka.settings import ClientSettings
from dedup_sdk.observe import EventName, PartitionEvent

DELIVERY_TIMEOUT_MS = 120_000
"""A producer's default ``delivery.timeout.ms``: how long it tries by itself before an application may send again."""


class _Question(NamedTuple):
    partition: int
    offset: int
    asked: Asked


class WindowCheck:
    """Asks for each topic's settings, and tells what does not fit the window."""

    def __init__(self, engine: Deduplicator, client: Client, settings: ClientSettings) -> None:
        self._engine, self._client, self._settings = engine, client, settings
        self._topics: set[str] = set()
        self.asked: dict[str, _Question] = {}
        """Questions whose answer is not looked at yet, by topic."""

    def ask(self, topic: str, partition: int, offset: int) -> None:
        """Ask for a topic's settings unless that was done; its partition begins at ``offset``."""
        if topic in self._topics or self._engine.strategy.window_of(topic).time_ms is None:
            return
        self._topics.add(topic)
        asked = self._client.topic_settings(topic)
        if asked is not None:
            self.asked[topic] = _Question(partition, offset, asked)

    def look(self) -> None:
        """Tell what the answers that have come say."""
        for topic, question in list(self.asked.items()):
            if not question.asked.answer.done():
                continue
            del self.asked[topic]
            try:
                entries = question.asked.answer.result()
            except KafkaException:
                continue  # it may be forbidden to ask; nothing hangs on it
            settings = {name: entry.value for name, entry in entries.items() if entry.value is not None}
            window_ms = self._engine.strategy.window_of(topic).time_ms or 0
            silence_ms = int(self._settings.silence_s * 1000)
            for name, detail in misfits(window_ms, settings, silence_ms):
                self._engine.tell(PartitionEvent(name, topic, question.partition, question.offset, detail))


def misfits(
    window_ms: int,
    topic_settings: Mapping[str, str],
    silence_ms: int,
    *,
    retry_ms: int = DELIVERY_TIMEOUT_MS,
    lag_ms: int = 0,
) -> Iterator[tuple[EventName, str]]:
    """Yield what does not fit: the event, and one line with both numbers.

    ``silence_ms`` is how long a member of a group may be gone before its work is given to another, ``retry_ms`` how long a producer tries, ``lag_ms`` the
    age of the oldest record that the group has not read.
    """
    retention_ms = retention_of(topic_settings)
    if retention_ms is not None and retention_ms < window_ms + lag_ms:
        behind = f" and the group is {lag_ms} ms behind" if lag_ms else ""
        detail = (
            f"the window is {window_ms} ms{behind}, the topic keeps {retention_ms} ms (retention.ms): a store that is lost is made again "
            "of so much only, and what hangs on the rest is unverified; raise retention.ms, or keep snapshots"
        )
        yield "window-beyond-retention", detail
    needed_ms = needed(topic_settings, silence_ms, retry_ms)
    if window_ms < needed_ms:
        detail = (
            f"the window is {window_ms} ms, but a message may be sent again {needed_ms} ms later: after a producer's "
            f"delivery.timeout.ms ({retry_ms}) and the time until a consumer before it is given up ({silence_ms}); such a "
            "duplicate is delivered; give a longer window unless your producers are quicker"
        )
        yield "window-too-short", detail


def retention_of(topic_settings: Mapping[str, str]) -> int | None:
    """Return how long a topic keeps its records, milliseconds; None: for good, or until newer ones of their keys come."""
    retention_ms = int(topic_settings.get("retention.ms", "-1"))
    return (
        retention_ms if retention_ms >= 0 and "delete" in topic_settings.get("cleanup.policy", "") else None
    )


def needed(topic_settings: Mapping[str, str], silence_ms: int, retry_ms: int) -> int:
    """Return how long after its first record a message may be sent again, milliseconds, by the records' timestamps."""
    appended = topic_settings.get("message.timestamp.type") == "LogAppendTime"
    return retry_ms * (2 if appended else 1) + silence_ms
