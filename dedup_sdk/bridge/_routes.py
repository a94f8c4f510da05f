"""The target topic of each source topic, and the reasons to refuse one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import BridgeError, ConfigurationError

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACEHOLDER: Final = "{topic}"


def topic_list(topics: object) -> list[str]:
    """Return topics and patterns (``^…``) as a list; raises `ConfigurationError` for anything else."""
    given: list[object] = (
        [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else []
    )
    if not given:
        raise ConfigurationError(
            f"topics={shown(topics)}: name at least one, or a pattern such as '^orders\\..*'"
        )
    return [_checked(each) for each in given]


def _checked(given: object) -> str:
    if isinstance(given, str) and given.startswith("^"):
        try:
            re.compile(given)
        except re.error as error:
            raise ConfigurationError(
                f"topics: {shown(given)} is not a pattern ({error}); write e.g. '^orders\\..*'"
            ) from None
        return given
    if not (isinstance(given, str) and is_topic(given)):
        raise ConfigurationError(
            f"topics: {shown(given)} is not a topic name; a pattern begins with ^, e.g. '^orders\\..*'"
        )
    return given


def is_topic(name: object) -> bool:
    """Whether this is a valid topic name."""
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


class Routes:
    """The target topic of each source topic; each is checked once.

    Args:
        topics: the result of `topic_list`.
        rename: the name at the target; ``{topic}`` stands for the name at the source.
        count: returns the number of partitions of a target topic, 0 where there is no such topic.
    """

    def __init__(self, topics: list[str], rename: str, count: Callable[[str], int]) -> None:
        if not is_topic(str(rename).replace(_PLACEHOLDER, "t")):
            raise ConfigurationError(
                f"rename={shown(rename)}: give a topic's name, in which {{topic}} stands for the source's, e.g. "
                f"'copy.{{topic}}'"
            )
        self._names = {each for each in topics if not each.startswith("^")}
        self._patterns = [re.compile(each) for each in topics if each.startswith("^")]
        self._rename, self._count = rename, count
        self._known: dict[str, str] = {}
        self._refuses_loops = False

    def refuse_loops(self) -> None:
        """Refuse targets that the bridge reads as well: both ends are one cluster."""
        self._refuses_loops = True

    def reads(self, topic: str) -> bool:
        """Whether the bridge reads a topic."""
        return topic in self._names or (
            not topic.startswith("__") and any(each.search(topic) for each in self._patterns)
        )

    def name_of(self, topic: str) -> str:
        """Return the target's name of a topic."""
        return self._rename.replace(_PLACEHOLDER, topic)

    def target_of(self, topic: str) -> str:
        """Return the target topic; raises `BridgeError` where records cannot be copied to it."""
        known = self._known.get(topic)
        return self._look(topic) if known is None else known

    def _look(self, topic: str) -> str:
        target = self.name_of(topic)
        if not is_topic(target):
            raise BridgeError(
                f"topic {shown(topic)} would become {shown(target)}, which is not a topic name; choose another --rename"
            )
        if self._refuses_loops and self.reads(target):
            raise BridgeError(
                f"topic {shown(topic)} goes to {shown(target)}, which this bridge reads as well: its records would "
                "be copied in a loop; "
                "give --rename, e.g. 'copy.{topic}', or topics that leave it out"
            )
        if not self._count(target):
            raise BridgeError(
                f"the target has no topic {shown(target)}, for the records of {shown(topic)}; create it, with as "
                f"many partitions as {shown(topic)} has, or give --rename"
            )
        self._known[topic] = target
        return target


def coordinates(message: Any) -> str:
    """Return a record's coordinates as text for people."""
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"


_KNOWN_S: Final = 300.0
"""Seconds until the topics are listed again: one may get more partitions."""
_MISSING_S: Final = 1.0
_ANSWER_S: Final = 10.0


class PartitionCounts:
    """The number of partitions of each topic. Raises `KafkaException` where the cluster does not answer.

    ``list_topics`` is a client's method. It lists all topics, because a broker may create a single one that
    is asked for.
    """

    def __init__(self, list_topics: Callable[..., Any]) -> None:
        self._list_topics = list_topics
        self._counts: dict[str, int] = {}
        self._until = 0.0

    def count(self, topic: str) -> int:
        """Return the number of partitions of a topic; 0 where there is no such topic."""
        now = time.monotonic()
        count = self._counts.get(topic, 0)
        if now < self._until and (count or now < self._until - _KNOWN_S + _MISSING_S):
            return count
        return self.all().get(topic, 0)

    def all(self) -> dict[str, int]:
        """List all topics, and return their numbers of partitions."""
        found = self._list_topics(timeout=_ANSWER_S).topics
        self._counts = {name: len(topic.partitions) for name, topic in found.items() if topic.error is None}
        self._until = time.monotonic() + _KNOWN_S
        return self._counts
