"""Messages between the thread that owns the client and the event loop.

queued
    fetched by the thread, and not taken by the application
last
    taken, and completed by the application's next call
out
    taken, and ended by a call for the message itself
ended
    completed, dead-lettered or released by the application; the thread passes that on to the consumer

A message that is queued when its partition goes is dropped: the next owner gets it. Each method is one step under the
buffer's lock: a message is never between two of these places, whoever looks.

An iteration is granted some queued messages at once (`grant`), and takes each by one ``popleft``, without the lock:
what is left in the grant is queued still, and the message taken last is in hand. Any other step ends the grant first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from itertools import islice
from threading import RLock
from typing import Any, Final

from confluent_kafka import Message

from dedup_sdk._kafka.client.guards import CallbackErrors

Coordinates = tuple[str, int]


class EndsBy(Enum):
    """What ends a message that the application took, besides calls for the message itself."""

    NEXT = "the next call for messages"
    OFFSETS = "a commit or stored offsets"
    CALL = "nothing"


class End(Enum):
    """How a message ends, but for a plain completion."""

    DEAD_LETTERED = "dead-lettered"
    RELEASED = "released"


_topic: Final[Callable[[Any], Any]] = Message.topic
_partition: Final[Callable[[Any], Any]] = Message.partition
MOST_QUEUED: Final = 1_000
"""With so many messages queued the thread fetches no more."""
_offset: Final[Callable[[Any], Any]] = Message.offset
_FAILURE: Final = object()
"""The place, among the messages, of the error that is kept."""


class MessageBuffer:
    """What is queued, out and ended. `put`, `drop` and the like are the thread's, `take` and `end` are the loop's."""

    def __init__(self) -> None:
        self._lock = RLock()  # an iterator may be dropped, and so end a message, in the middle of a step
        self._queued: deque[Any] = deque()
        """Messages, events of the client, and `_FAILURE`."""
        self.errors = CallbackErrors()
        """The first error that the application has not taken; until then nothing more is fetched for it."""
        self._last: list[Message] = []
        self._batch: list[Message] = []
        """Messages of the grant; the first was in hand when it was made."""
        self._granted: deque[Message] = deque()
        """Those of the grant that are queued still. The loop takes the first ones, and the thread the last ones."""
        self._doubted: Message | None = None
        """The one of which nobody may know, once it is left, whether it was handled."""
        self._out: dict[int, Message] = {}
        """By `id`: messages have no hash. The message beside its `id` keeps that number from being given away."""
        self._completed: list[Message] = []
        self._others: list[tuple[Message, End]] = []
        self._aside: dict[Coordinates, list[Message]] = {}
        """Queued messages of paused partitions."""
        self._returning: set[tuple[str, int, int]] = set()
        """Topic, partition and offset of released messages: they come again, and go before all others."""
        self._taken: dict[Coordinates, int] = {}
        self.is_released = False
        """Whether messages were released since the application last waited for them to come again."""
        self.is_closed = False
        """Whether the consumer closes, or is closed: what is queued then is not for the application any more."""

    def __len__(self) -> int:
        """Return how many messages, events and failures are queued."""
        return len(self._queued) + len(self._granted)

    # --- the thread's side ---------------------------------------------------------------------------------------

    @property
    def waits_for_ends(self) -> bool:
        """Whether the application has messages that end by calls for them, or such ends are to be passed on."""
        return bool(self._out or self._completed or self._others)

    @property
    def ended(self) -> int:
        """How many messages wait to be passed on; a release counts as many."""
        return len(self._completed) + len(self._batch) - len(self._granted) + MOST_QUEUED * bool(self._others)

    def close(self) -> None:
        """Note that the consumer closes: what is queued is not for the application any more."""
        self.is_closed = True
        self.end_grant()

    def end_grant(self) -> None:
        """Have an iteration look again before it takes another message."""
        with self._lock:
            self._end_grant()

    def note_released(self, *, released: bool) -> None:
        """Note whether the application has to wait for released messages, which come again."""
        self.is_released = released

    @property
    def returning(self) -> int:
        """How many released messages are to come again."""
        return len(self._returning)

    def put(self, items: Iterable[Any]) -> None:
        """Queue messages and events of the client, and failures."""
        with self._lock:
            if self._returning:
                self._end_grant()
                items = list(items)
                first = [each for each in items if self._returns(each)]
                again = set(map(id, first))
                items = [each for each in items if id(each) not in again]
                # Of one partition a message may have come again before, with a lower offset.
                first += self._take_out(set(map(coordinates_of, first)))
                self._queued.extendleft(sorted(first, key=lambda each: each.offset() or 0, reverse=True))
            self._queued.extend(items)

    def fail(self, error: BaseException) -> None:
        """Queue an error; while another one waits, log it."""
        if self.errors.kept is not None:
            self.errors.keep(error)
        with self._lock:
            self._end_grant()
            if self.errors.kept in (None, error):
                if self.errors.kept is None:
                    self.errors.keep(error)
                self._queued.append(_FAILURE)

    def _returns(self, item: Any) -> bool:
        if not _is_message(item):
            return False
        place = (*coordinates_of(item), item.offset())
        returns = place in self._returning
        self._returning.discard(place)
        return returns

    def take_back(self, gone: Collection[Coordinates]) -> list[Message]:
        """Take the queued messages of partitions out that go, or are read from another offset on."""
        with self._lock:
            self._end_grant()
            aside = [message for at in gone for message in self._aside.pop(at, [])]
            return aside + self._take_out(gone)

    def forget(self, gone: Collection[Coordinates]) -> None:
        """Forget how far the application took these partitions, and which messages of them it released."""
        with self._lock:
            for at in gone:
                self._taken.pop(at, None)
            self._returning = {place for place in self._returning if place[:2] not in gone}

    def prune(self, is_held: Callable[[Message], bool], is_known: Callable[[Message], bool]) -> list[Message]:
        """Drop the queued messages that are not held any more; return those that are out and not known any more.

        Of each partition only the oldest is looked at, if that is all right.
        """
        with self._lock:
            # Of a copy: the loop takes messages of the grant meanwhile.
            queued, out = [*self._granted.copy(), *self._queued], list(self._out.values())
        if not all(map(is_held, _oldest(queued))):
            with self._lock:
                self._end_grant()
                self._queued = deque(each for each in self._queued if not _is_message(each) or is_held(each))
        return [] if all(map(is_known, _oldest(out))) else [each for each in out if not is_known(each)]

    def set_aside(self, paused: Collection[Coordinates]) -> None:
        """Have the application take no message of these partitions until `bring_back`."""
        with self._lock:
            self._end_grant()
            for message in self._take_out(paused):
                self._aside.setdefault(coordinates_of(message), []).append(message)

    def bring_back(self, resumed: Collection[Coordinates], is_held: Callable[[Message], bool]) -> None:
        """Queue the messages of partitions that were set aside, before all others: those that the consumer holds."""
        with self._lock:
            self._end_grant()
            back = [message for at in resumed for message in self._aside.pop(at, []) if is_held(message)]
            self._queued.extendleft(reversed(back))

    def _take_out(self, partitions: Collection[Coordinates]) -> list[Message]:
        found = [item for item in self._queued if _is_message(item) and coordinates_of(item) in partitions]
        if found:
            away = set(map(id, found))
            self._queued = deque(item for item in self._queued if id(item) not in away)
        return found

    def take_ended(self) -> tuple[list[Message], list[tuple[Message, End]]]:
        """Return the messages that were completed, and those that ended otherwise, since the last call."""
        with self._lock:
            batch, before = self._batch, len(self._batch) - len(self._granted) - 1
            if before > 0:
                # All that were taken, but for the one in hand.
                ended, left = batch[:before], batch[before:]
                if self._batch is batch:
                    self._completed += ended
                    self._batch = left
            completed, others = self._completed, self._others
            self._completed, self._others = [], []
            # Messages in order are completed together.
            completed.sort(key=_offset)
            self._returning.update(
                (*coordinates_of(message), message.offset() or 0) for message, end in others if end is End.RELEASED
            )  # fmt: skip
            return completed, others

    def out_of(self, partitions: Collection[Coordinates]) -> list[Message]:
        """Return the messages of some partitions that the application has."""
        with self._lock:
            self._end_grant()
            return [each for each in [*self._out.values(), *self._last] if coordinates_of(each) in partitions]

    def first_queued(self) -> dict[Coordinates, int]:
        """Return, for each partition with queued messages, the lowest offset of them."""
        first: dict[Coordinates, int] = {}
        with self._lock:
            self._end_grant()
            for each in [*self._queued, *(message for aside in self._aside.values() for message in aside)]:
                if _is_message(each):
                    at, offset = coordinates_of(each), each.offset()
                    first[at] = min(offset, first.get(at, offset))
        return first

    # --- the application's side ----------------------------------------------------------------------------------

    def take(self, count: int, ends: EndsBy) -> list[Message]:
        """Take up to ``count`` messages, or events; raise the error that is next."""
        with self._lock:
            self._end_grant()
            queued, taken = self._queued, list[Message]()
            while queued and len(taken) < count:
                item = queued.popleft()
                if item is not _FAILURE:
                    taken.append(item)
                elif taken:
                    queued.appendleft(item)
                    break
                else:
                    self.errors.raise_kept()
            is_plain = not any(map(Message.error, taken))
            messages = taken.copy() if is_plain else [each for each in taken if each.error() is None]
            if ends is EndsBy.NEXT:
                self._last = messages
            elif ends is EndsBy.CALL:
                self._out.update(zip(map(id, messages), messages, strict=True))
            else:
                for message in messages:
                    at, end = coordinates_of(message), (message.offset() or 0) + 1
                    self._taken[at] = max(end, self._taken.get(at, end))
            return taken

    def grant(self, count: int) -> deque[Message] | None:
        """Return up to ``count`` queued messages for an iteration, which has one message in hand; None if it has not.

        To take the next one from the left completes the one in hand.
        """
        with self._lock:
            self._end_grant()
            if len(self._last) != 1 or self.errors.kept is not None or self.is_released or self.is_closed:
                return None
            batch = [*self._last, *islice(self._queued, count)]
            if any(map(Message.error, batch)):
                return None
            granted = deque(batch[1:])
            for _ in granted:
                self._queued.popleft()
            self._batch, self._granted, self._last = batch, granted, []
            return granted

    def _end_grant(self) -> None:
        """Queue what is left in the grant again, and note which messages the iteration has completed; with the lock."""
        if not self._batch:
            return
        batch, self._batch, left = self._batch, [], list[Message]()
        with suppress(IndexError):
            while True:
                # From the end: what the loop takes meanwhile is the first one.
                left.append(self._granted.pop())
        taken = batch[: len(batch) - len(left)]
        self._last = [taken.pop()]
        self._completed += taken
        self._queued.extendleft(left)

    @property
    def has_last(self) -> bool:
        """Whether the next call for messages completes one."""
        return bool(self._last or self._batch)

    def is_last(self, message: Message) -> bool:
        """Whether the next call for messages completes this one."""
        with self._lock:
            self._end_grant()
            return any(each is message for each in self._last)

    def taken_up_to(self) -> dict[Coordinates, int]:
        """Return, for each partition, the offset behind the last message that was taken since its assignment."""
        with self._lock:
            return self._taken.copy()

    def end_last(self, end: End | None = None) -> None:
        """End the messages of the last call; None: they are completed."""
        with self._lock:
            self._end_grant()
            last, self._last, self._doubted = self._last, [], None
            self._note_ends(last, end)

    def end_last_below(self, below: Mapping[Coordinates, int]) -> None:
        """Complete the messages of the last call that lie below these offsets."""
        with self._lock:
            self._end_grant()
            named = [
                each for each in self._last if (each.offset() or 0) < below.get(coordinates_of(each), -1)
            ]
            self._forget(named)
            self._completed.extend(named)

    def end(self, messages: Iterable[Message], end: End | None = None) -> None:
        """End messages; None: they are completed. What was ended before is for the consumer to count as stale."""
        messages = list(messages)
        with self._lock:
            self._forget(messages)
            self._note_ends(messages, end)

    def end_one(self, message: Message, end: End | None) -> None:
        """End a message that ends by a call; None: it is completed."""
        with self._lock:
            if end is None and self._out.pop(id(message), None) is not None:
                self._completed.append(message)
            else:
                self.end([message], end)

    def _note_ends(self, messages: list[Message], end: End | None) -> None:
        if end is None:
            self._completed.extend(messages)
        else:
            self._others.extend((message, end) for message in messages)
            self.is_released = self.is_released or (end is End.RELEASED and bool(messages))

    def keep_back(self, message: Message) -> None:
        """Have a message not end with the others of the last call; it is out until `end`."""
        with self._lock:
            self._end_grant()
            if self.is_last(message):
                self._forget([message])
                self._out[id(message)] = message

    def doubt(self, message: Message) -> None:
        """Have the next call release a message of the last one, unless it is trusted before."""
        self._doubted = message

    def trust(self, message: Message | None) -> None:
        """Doubt a message no more."""
        if self._doubted is message:
            self._doubted = None

    def release_doubted(self, message: Message | None = None) -> None:
        """Release the message that is doubted, if it is this one; None: whichever it is."""
        with self._lock:
            doubted = self._doubted
            if doubted is not None and (message is None or message is doubted):
                self._forget([doubted])
                self._note_ends([doubted], End.RELEASED)

    def give_up(self, messages: Iterable[Message]) -> None:
        """Wait for these messages no longer: they come again, to this consumer or to another."""
        with self._lock:
            self._forget(messages)

    def _forget(self, messages: Iterable[Message]) -> None:
        self._end_grant()
        for message in messages:
            self.trust(message)
            if self._out.pop(id(message), None) is None and self._last:
                self._last = [each for each in self._last if each is not message]


def coordinates_of(message: Any) -> Coordinates:
    """Return the topic and the partition of a message."""
    return message.topic(), message.partition()


def _oldest(items: list[Any]) -> Iterable[Message]:
    """Return the first message of each partition."""
    if items and (_FAILURE in items or any(map(Message.error, items))):
        items = [each for each in items if _is_message(each)]
    items.reverse()
    return dict(
        zip(zip(map(_topic, items), map(_partition, items), strict=True), items, strict=True)
    ).values()


def _is_message(item: Any) -> bool:
    return item is not _FAILURE and item.error() is None
