"""Messages between the thread that owns the client and the event loop.

queued
    fetched by the thread, and not taken by the application
out
    taken, and neither completed nor released; ``last`` are those of them that the next call completes
ended
    completed or released by the application; the thread passes that on to the consumer

A message that is queued when its partition goes is dropped: the next owner gets it. Nobody locks: the loop takes from
the left of ``queued``, the thread adds to its right and takes back from there, and each removal is one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from enum import Enum
from typing import Any, NamedTuple

from confluent_kafka import Message

Coordinates = tuple[str, int]


class End(Enum):
    """How a message that is out ends, but for a plain completion."""

    DEAD_LETTERED = "dead-lettered"
    RELEASED = "released"


class Event(NamedTuple):
    """An error event of the client, in its place among the messages."""

    message: Message


class Failure(NamedTuple):
    """An error of the consumer, in its place among the messages."""

    error: BaseException


class MessageBuffer:
    """What is queued, out and ended.

    - ``queued``: messages, `Event` and `Failure`; the thread changes it, and the loop takes from its left.
    - ``last``: the messages of the last call, for the next one to complete; only the loop changes it.
    - ``completed``: messages that were completed; the loop adds, the thread takes.
    """

    def __init__(self) -> None:
        self.queued: deque[Any] = deque()
        self.last: list[Message] = []
        self.completed: deque[Message] = deque()
        self._others: deque[tuple[Message, End]] = deque()
        self._out: dict[int, Message] = {}
        """By `id`: messages have no hash. The message beside its `id` keeps that number from being given away."""
        self._aside: dict[Coordinates, list[Message]] = {}
        """Queued messages of paused partitions. Only the thread knows them."""
        self._taken: dict[Coordinates, int] = {}

    # --- the thread's side ---------------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether no message is queued, out or ended."""
        return not (self.queued or self.last or self._out or self.completed or self._others)

    def put(self, items: Iterable[Any]) -> None:
        """Queue messages and events of the client, and failures."""
        aside = self._aside
        for item in items:
            if isinstance(item, Failure):
                self.queued.append(item)
            elif item.error() is not None:
                self.queued.append(Event(item))
            elif aside and coordinates_of(item) in aside:
                aside[coordinates_of(item)].append(item)
            else:
                self.queued.append(item)

    def drop(self, gone: Collection[Coordinates]) -> None:
        """Drop the queued messages of partitions that go, or are read from another offset on."""
        self._take_back(gone)
        for coordinates in gone:
            self._taken.pop(coordinates, None)
            if coordinates in self._aside:
                self._aside[coordinates] = []

    def set_aside(self, paused: Collection[Coordinates]) -> None:
        """Have the application take no message of these partitions until `bring_back`."""
        for coordinates in paused:
            self._aside.setdefault(coordinates, [])
        for message in self._take_back(paused):
            self._aside[coordinates_of(message)].append(message)

    def bring_back(self, resumed: Collection[Coordinates]) -> None:
        """Queue the messages of partitions that were set aside, before all others."""
        back = [message for coordinates in resumed for message in self._aside.pop(coordinates, [])]
        self.queued.extendleft(reversed(back))

    def _take_back(self, partitions: Collection[Coordinates]) -> list[Message]:
        """Remove the queued messages of some partitions, and return them; the loop may take others meanwhile."""
        found: list[Message] = []
        kept: list[Any] = []
        while True:
            # From the end: the loop takes the first, so that each message goes to one side only.
            try:
                item = self.queued.pop()
            except IndexError:
                break
            (found if type(item) is Message and coordinates_of(item) in partitions else kept).append(item)
        self.queued.extend(reversed(kept))
        return found[::-1]

    def take_completed(self) -> list[Message]:
        """Return the messages that were completed since the last call."""
        return [self.completed.popleft() for _ in range(len(self.completed))]

    def take_others(self) -> list[tuple[Message, End]]:
        """Return the messages that have ended otherwise since the last call."""
        return [self._others.popleft() for _ in range(len(self._others))]

    def out_of(self, partitions: Collection[Coordinates]) -> list[Message]:
        """Return the messages of some partitions that are out."""
        return [
            each for each in [*self._out.copy().values(), *self.last] if coordinates_of(each) in partitions
        ]

    def first_queued(self) -> dict[Coordinates, int]:
        """Return, for each partition with queued messages, the offset of the first."""
        first: dict[Coordinates, int] = {}
        for each in [*self.queued.copy(), *(message for aside in self._aside.values() for message in aside)]:
            if type(each) is Message:
                offset = each.offset() or 0
                first[coordinates_of(each)] = min(offset, first.get(coordinates_of(each), offset))
        return first

    # --- the application's side ----------------------------------------------------------------------------------

    def take(self, count: int) -> list[Message]:
        """Take up to ``count`` messages, or events; raise the error of a failure that is next."""
        taken: list[Message] = []
        while len(taken) < count:
            try:
                item = self.queued.popleft()
            except IndexError:
                break
            if isinstance(item, Failure):
                if not taken:
                    raise item.error
                self.queued.appendleft(item)
                break
            taken.append(item.message if isinstance(item, Event) else item)
        return taken

    def lend(self, messages: Iterable[Message]) -> None:
        """Note that messages are out, and end by `end`."""
        self._out.update((id(message), message) for message in messages)

    def note_taken(self, messages: Iterable[Message]) -> None:
        """Note messages that end by their offsets, in a commit of all that were taken."""
        for message in messages:
            at, end = coordinates_of(message), (message.offset() or 0) + 1
            self._taken[at] = max(end, self._taken.get(at, end))

    def taken_up_to(self) -> dict[Coordinates, int]:
        """Return, for each partition, the offset behind the last message that was taken since its assignment."""
        return self._taken.copy()

    def end_last(self) -> None:
        """Complete the messages of the last call."""
        if self.last:
            last, self.last = self.last, []
            self.completed.extend(last)

    def end(self, messages: Iterable[Message], end: End | None = None) -> None:
        """End messages; None: completed. What was ended before is for the consumer to count as stale."""
        for message in messages:
            if self.last:
                self.keep_back(message)
            self._out.pop(id(message), None)
            if end is None:
                self.completed.append(message)
            else:
                self._others.append((message, end))

    def keep_back(self, message: Message) -> None:
        """Have a message not end with the others of the last call; it is out until `end`."""
        if any(each is message for each in self.last):
            self.last = [each for each in self.last if each is not message]
            self._out[id(message)] = message

    def is_out(self, message: Message) -> bool:
        """Whether a message that ends by `end` has neither ended nor been given up."""
        return id(message) in self._out or any(each is message for each in self.last)

    def give_up(self, messages: Iterable[Message]) -> None:
        """Wait for these messages no longer."""
        for message in messages:
            self._out.pop(id(message), None)


def coordinates_of(message: Any) -> Coordinates:
    """Return the topic and the partition of a message."""
    return message.topic(), message.partition()
