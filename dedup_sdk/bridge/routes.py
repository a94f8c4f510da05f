"""Which topic's records go to which, and what stands against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final

from dedup_sdk.errors import BridgeError, ConfigurationError

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_PLACE: Final = "{topic}"


def topic_list(topics: object) -> list[str]:
    """Return topics and patterns (``^…``) as a list; raises `ConfigurationError` for what names none."""
    given: list[object] = [topics] if isinstance(topics, str) else list(topics) if isinstance(topics, Iterable) else []  # fmt: skip
    if not given:
        raise ConfigurationError(f"topics={topics!r}: name at least one, or a pattern such as '^orders\\..*'")
    return [_checked(each) for each in given]


def _checked(given: object) -> str:
    if isinstance(given, str) and given.startswith("^"):
        try:
            re.compile(given)
        except re.error as error:
            raise ConfigurationError(
                f"topics: {given!r} is no pattern ({error}); write e.g. '^orders\\..*'"
            ) from None
        return given
    if not (isinstance(given, str) and is_topic(given)):
        raise ConfigurationError(
            f"topics: {given!r} is no topic's name; a pattern begins with ^, e.g. '^orders\\..*'"
        )
    return given


def is_topic(name: object) -> bool:
    """Whether Kafka takes this for a topic's name."""
    return isinstance(name, str) and bool(_TOPIC.fullmatch(name)) and name not in (".", "..")


class Routes:
    """Knows where a topic's records go, and looks at each topic once.

    Args:
        topics: as of `topic_list`.
        rename: the name there; ``{topic}`` stands for the name here.
        count: returns how many partitions a topic of the target has, 0 where there is none.
    """

    def __init__(self, topics: list[str], rename: str, count: Callable[[str], int]) -> None:
        if not is_topic(str(rename).replace(_PLACE, "t")):
            raise ConfigurationError(
                f"rename={rename!r}: give a topic's name, in which {{topic}} stands for the source's, e.g. 'copy.{{topic}}'"
            )
        self._names = {each for each in topics if not each.startswith("^")}
        self._patterns = [re.compile(each) for each in topics if each.startswith("^")]
        self._rename, self._count = rename, count
        self._known: dict[str, str] = {}
        self.one_cluster = False

    def reads(self, topic: str) -> bool:
        """Whether the bridge reads a topic."""
        return topic in self._names or (
            not topic.startswith("__") and any(each.search(topic) for each in self._patterns)
        )

    def name_of(self, topic: str) -> str:
        """Return what a topic is called there."""
        return self._rename.replace(_PLACE, topic)

    def target_of(self, topic: str) -> str:
        """Return where a topic's records go; raises `BridgeError` where they cannot."""
        known = self._known.get(topic)
        return self._look(topic) if known is None else known

    def _look(self, topic: str) -> str:
        target = self.name_of(topic)
        if not is_topic(target):
            raise BridgeError(
                f"topic {topic!r} would become {target!r}, which is no topic's name; choose another --rename"
            )
        if self.one_cluster and self.reads(target):
            raise BridgeError(
                f"topic {topic!r} goes to {target!r}, which this bridge reads as well: its records would go round for ever; "
                "give --rename, e.g. 'copy.{topic}', or topics that leave it out"
            )
        if not self._count(target):
            raise BridgeError(
                f"the target has no topic {target!r}, for the records of {topic!r}; create it, with as many partitions as {topic!r} has, or give --rename"
            )
        self._known[topic] = target
        return target


def coordinates(message: Any) -> str:
    """Where a record lies, for people."""
    return f"{message.topic()}[{message.partition()}]@{message.offset()}"
