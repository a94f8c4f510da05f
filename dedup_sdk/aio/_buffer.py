"""Messages between the thread that owns the client and the event loop.

queued
    fetched by the thread, and not taken by the application
in hand
    taken, and ended by a rule: by the application's next call, or by a commit
out
    taken, and ended by a call for the message itself
ended
    completed, dead-lettered or released by the application, or returned unseen; the thread passes that on

Each method is one step under the buffer's lock: a message is never between two of these places, whoever looks. The
consumer alone puts messages in order: whoever releases one returns all that is queued behind it, and what the thread
fetches until that is passed on; then the consumer delivers the released message first.

An iteration is granted some queued messages at once (`grant`), and takes each by one ``popleft``, without the lock:
what is left in the grant is queued still, and the message taken last is in hand. Any other step ends the grant first.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import wraps
from itertools import islice
from threading import RLock
from typing import Concatenate, Final, ParamSpec, TypeVar

from confluent_kafka import Message

from dedup_sdk._kafka.client.closing import ONE_DAY_S
from dedup_sdk._kafka.client.fields import coordinates
from dedup_sdk._kafka.client.guards import CallbackErrors

P = ParamSpec("P")
T = TypeVar("T")
Coordinates = tuple[str, int]
Below = Mapping[Coordinates, int] | None
"""The offsets of partitions below which messages are meant; None: all."""
MOST_QUEUED: Final = 1_000
"""With so many messages queued the thread fetches no more."""
FEW: Final = 100
"""The thread fetches when so few messages wait for the application: then many at a time, which costs less for each."""


class End(StrEnum):
    """How a message ends."""

    COMPLETED = "completed"
    DEAD_LETTERED = "dead-lettered"
    RELEASED = "released"
    RETURNED = "returned"
    """The application has not seen it: it comes again, and that is no other attempt."""


def _step(method: Callable[Concatenate[MessageBuffer, P], T]) -> Callable[Concatenate[MessageBuffer, P], T]:
    """Make a method one step: nobody else changes where messages are meanwhile, and no grant is open."""

    @wraps(method)
    def step(buffer: MessageBuffer, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            with buffer._lock:  # noqa: SLF001
                buffer._settle()  # noqa: SLF001
                return method(buffer, *arguments, **named)
        except BaseException as error:
            buffer.doubt(error)
            raise

    return step


class MessageBuffer:
    """What is queued, in hand, out and ended."""

    def __init__(self, doubt: Callable[[BaseException], object], ask: Callable[[], object]) -> None:
        self.doubt, self._ask = doubt, ask
        """``doubt`` is called with what a step raises: after a signal's exception no place of a message is certain.
        ``ask`` is called when few messages are left."""
        self._lock = RLock()  # an iterator may be dropped, and so end a message, in the middle of a step
        self._queued: deque[Message] = deque()
        """Messages, and events of the client."""
        self._hand: dict[int, Message] = {}
        self._out: dict[int, Message] = {}
        """By `id`: messages have no hash. The message beside its `id` keeps that number from being given away."""
        self._batch: list[Message] = []
        """Messages of the grant; the first was in hand when it was made."""
        self._granted: deque[Message] = deque()
        """Those of the grant that are queued still. The loop takes the first ones, and the thread the last ones."""
        self._ended: dict[End, list[Message]] = {end: [] for end in End}
        self.errors = CallbackErrors()
        """The first error that the application has not taken; until then nothing more is fetched for it."""
        self.changed = asyncio.Event()
        """Set on the loop when a call that waits is to look again."""
        self.is_closed = False
        """Whether the consumer closes, or is closed: what is queued then is not for the application any more."""

    def __len__(self) -> int:
        """Return how many messages and events are queued."""
        return len(self._queued) + len(self._granted)

    # --- the thread's side ---------------------------------------------------------------------------------------

    @property
    def waits_for_ends(self) -> bool:
        """Whether the application has messages that end by calls for them, or such ends are to be passed on."""
        return bool(self._out or any(self._ended.values()))

    @property
    def is_urgent(self) -> bool:
        """Whether ends are to be passed on now: messages are to come again, or many were completed."""
        completed = len(self._ended[End.COMPLETED]) + len(self._batch) - len(self._granted)
        return completed >= MOST_QUEUED or self._comes_again

    @property
    def _comes_again(self) -> bool:
        return bool(self._ended[End.RELEASED] or self._ended[End.RETURNED])

    def put(self, items: Iterable[Message]) -> None:
        """Queue messages, and events of the client."""
        with self._lock:
            (self._ended[End.RETURNED] if self._comes_again else self._queued).extend(items)

    @_step
    def put_first(self, items: list[Message]) -> None:
        """Queue messages and events before all others."""
        self._queued.extendleft(reversed(items))

    @_step
    def take_back(self, partitions: Collection[Coordinates] | None = None) -> list[Message]:
        """Take the queued messages of some partitions out (None: all, and events)."""
        queued, self._queued = self._queued, deque()
        back = list[Message]()
        for each in queued:
            goes = partitions is None or coordinates(each) in partitions
            (back if goes else self._queued).append(each)
        return back

    @_step
    def taken(self, partitions: Collection[Coordinates] | None = None) -> list[Message]:
        """Return the messages that the application has, of some partitions (None: of all)."""
        taken = [*self._out.values(), *self._hand.values()]
        return [each for each in taken if partitions is None or coordinates(each) in partitions]

    @_step
    def take_ended(self) -> dict[End, list[Message]]:
        """Return the messages that have ended since the last call."""
        ended, self._ended = self._ended, {end: [] for end in End}
        return ended

    @_step
    def close(self) -> None:
        """Note that the consumer closes: what is queued is not for the application any more."""
        self.is_closed = True

    # --- the application's side ----------------------------------------------------------------------------------

    async def until_changed(self, at_most_s: float = ONE_DAY_S) -> None:
        """Wait until something was queued, or something else is to be looked at, or the time is up.

        No `asyncio.timeout`: a signal at its end would leave a timer that cancels the task some time later.
        """
        self.changed.clear()
        timer = asyncio.get_running_loop().call_later(at_most_s, self.changed.set)
        try:
            await self.changed.wait()
        finally:
            timer.cancel()

    @_step
    def take(self, count: int, *, by_call: bool) -> list[Message]:
        """Take up to ``count`` messages, or events; with none queued, raise the error that waits.

        ``by_call``: only calls for a message end it.
        """
        if not self._queued:
            self.errors.raise_kept()
        taken = [self._queued.popleft() for _ in range(min(count, len(self._queued)))]
        place = self._out if by_call else self._hand
        place.update((id(each), each) for each in taken if each.error() is None)
        if len(self) < FEW:
            self._ask()
        return taken

    @_step
    def grant(self, count: int) -> deque[Message]:
        """Return up to ``count`` queued messages for an iteration, which has one message in hand.

        To take the next one from the left completes the one in hand.
        """
        batch = list(islice(self._queued, count))
        if len(self._hand) != 1 or self.is_closed or any(map(Message.error, batch)):
            return deque()
        self._queued = deque(islice(self._queued, len(batch), None))
        self._batch, self._granted, self._hand = [*self._hand.values(), *batch], deque(batch), {}
        return self._granted

    @_step
    def look_again(self) -> None:
        """Have an iteration, and a call that waits, look again before it takes another message."""
        # Each step ends the grant, so that the iteration asks for messages, and looks, before it takes the next one.
        self.changed.set()

    def _settle(self) -> None:
        """End the grant: queue what is left of it, and note which messages the iteration has completed."""
        if not self._batch:
            return
        batch, self._batch, left = self._batch, [], list[Message]()
        with suppress(IndexError):
            while True:
                # From the end: what the loop takes meanwhile is the first one.
                left.append(self._granted.pop())
        *completed, last = batch[: len(batch) - len(left)]
        self._hand = {id(last): last}
        self._ended[End.COMPLETED] += completed
        self._queued.extendleft(left)

    @property
    def has_hand(self) -> bool:
        """Whether a message is in hand."""
        return bool(self._hand or self._batch)

    @_step
    def in_hand(self, message: Message) -> bool:
        """Whether this message is in hand."""
        return id(message) in self._hand

    @_step
    def keep_back(self, message: Message) -> None:
        """Have a message that is in hand end by a call for it only."""
        if self._hand.pop(id(message), None) is not None:
            self._out[id(message)] = message

    @_step
    def end(self, messages: Iterable[Message], end: End | None = End.COMPLETED) -> list[Message]:
        """End messages (None: they are waited for no longer), and return those that the application had.

        Of the others those are passed on that count as handled, for the consumer to judge: late, or never.
        """
        messages = list(messages)
        had = [
            each for each in messages if self._out.pop(id(each), self._hand.pop(id(each), None)) is not None
        ]
        if end in (End.COMPLETED, End.DEAD_LETTERED):
            self._ended[end] += messages
        elif end is not None and had:
            self._ended[end] += had
            self._ended[End.RETURNED] += self.take_back()
        return had

    @_step
    def end_hand(self, end: End = End.COMPLETED, below: Below = None) -> None:
        """End the messages in hand that are meant."""
        hand = list(self._hand.values())
        if below is not None:
            hand = [each for each in hand if (each.offset() or 0) < below.get(coordinates(each), -1)]
        self.end(hand, end)
