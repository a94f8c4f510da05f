"""The messages that are out by themselves and wait to be delivered: in the queue, or aside while a partition is paused.

Everything needs the consumer's lock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from confluent_kafka import Message

from dedup_sdk._kafka.assign.commits import Coordinates
from dedup_sdk._kafka.client.fields import coordinates

_offset: Callable[[Any], Any] = Message.offset
Key = tuple[Any, Any, Any]
"""Topic, partition and offset."""


class Waiting:
    """``queue``: the waiting messages, but for those aside, and events of the client; both come before the batch."""

    def __init__(self) -> None:
        self.queue: deque[Any] = deque()
        self._messages: dict[Key, Any] = {}
        self._paused: set[Coordinates] = set()

    def __contains__(self, message: Any) -> bool:
        return key_of(message) in self._messages

    def put(self, message: Any, *, first: bool = False) -> None:
        """Add a message that does not wait yet: to the queue, or aside if its partition is paused."""
        self._messages[key_of(message)] = message
        if coordinates(message) not in self._paused:
            (self.queue.appendleft if first else self.queue.append)(message)

    def put_event(self, event: Any) -> None:
        """Queue an event of the client."""
        self.queue.append(event)

    def take(self) -> Any:
        """Take the first message, or event, of the queue, which is not empty."""
        message = self.queue.popleft()
        if message.error() is None:
            self._messages.pop(key_of(message), None)
        return message

    def order(self, partitions: Collection[Coordinates]) -> None:
        """Have the queued messages of these partitions come before all others, by offset."""
        first = [each for each in self.queue if each.error() is None and coordinates(each) in partitions]
        self._keep(lambda message: coordinates(message) not in partitions)
        first.sort(key=_offset)
        self.queue.extendleft(reversed(first))

    def offsets(self, topic: str, partition: int) -> set[int]:
        """Return the offsets of the messages of a partition, be they queued or aside."""
        return {each.offset() for each in self._messages.values() if coordinates(each) == (topic, partition)}

    def set_aside(self, partitions: set[Coordinates]) -> None:
        """Set the queued messages of these partitions aside, and those that come, until `bring_back`."""
        self._paused |= partitions
        self._keep(lambda message: coordinates(message) not in partitions)

    def bring_back(self, partitions: set[Coordinates]) -> None:
        """Queue the messages again that `set_aside` took, each partition by offset."""
        back = partitions & self._paused
        self._paused -= back
        self.queue.extend(sorted((m for m in self._messages.values() if coordinates(m) in back), key=key_of))

    def remove(self, chosen: Callable[[Any], bool]) -> None:
        """Forget the messages for which ``chosen`` is true."""
        self._messages = {key: each for key, each in self._messages.items() if not chosen(each)}
        self._keep(self.__contains__)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Forget the messages of partitions that are not assigned any more, and that these were paused."""
        self._paused -= set(gone)
        self.remove(lambda message: coordinates(message) in gone)

    def clear(self, paused: Collection[Coordinates]) -> None:
        """Forget all messages, and events; ``paused``: the partitions whose messages are set aside from here on."""
        self.queue.clear()
        self._messages, self._paused = {}, set(paused)

    def _keep(self, chosen: Callable[[Any], bool]) -> None:
        """Remove the other messages from the queue; events stay."""
        kept = [message for message in self.queue if message.error() is not None or chosen(message)]
        self.queue.clear()
        self.queue.extend(kept)


def key_of(message: Any) -> Key:
    """Return what names a message."""
    return message.topic(), message.partition(), message.offset()
