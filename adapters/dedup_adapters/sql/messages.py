"""Where a message lies, be it a client's or a plain record."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Final, NamedTuple

from dedup_sdk import ConfigurationError, Record

_error: Final = methodcaller("error")
_topic: Final = methodcaller("topic")


class Place(NamedTuple):
    """Topic, partition and offset."""

    topic: str
    partition: int
    offset: int


def topics_of(messages: Sequence[Any]) -> list[str]:
    """Return each message's topic; raises as `place_of` does."""
    try:
        if not any(map(_error, messages)):
            return list(map(_topic, messages))
    except (AttributeError, TypeError):
        pass
    return [place_of(message).topic for message in messages]


def place_of(message: Any) -> Place:
    """Return where a message lies; raises `ConfigurationError` for an error event, and for what is no message."""
    if isinstance(message, Record):
        return Place(message.topic, message.partition, message.offset)
    try:
        error = message.error()
        if error is None:
            return Place(message.topic(), message.partition(), message.offset())
    except AttributeError:
        raise ConfigurationError(
            f"{type(message).__name__} is no message; give what the consumer returned, or a Record"
        ) from None
    raise ConfigurationError(
        f"an error event is no message ({error}); leave those out whose error() is not None"
    )
