"""How the application takes messages: one task at a time asks, and its next call completes those of the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from enum import Enum
from math import inf
from typing import Any, Final, Self

from confluent_kafka import Message

from dedup_sdk._kafka.client_errors import handle_error
from dedup_sdk._kafka.loop import JOINING_S
from dedup_sdk.aio._buffer import Coordinates, End, MessageBuffer, coordinates_of
from dedup_sdk.aio._owner import MOST_QUEUED, Owner

LOOK_S: Final = 0.2
"""Seconds that an iteration waits for a message before it looks whether it is to end."""
REFILL_AT: Final = MOST_QUEUED // 2
"""With fewer messages queued the thread is woken to fetch more."""
_TWO_TASKS: Final = (
    "another task asks this consumer for messages: one task asks, and may hand its messages to others (iterate over "
    "explicit(), and complete each by once()); or use run()"
)


class EndsBy(Enum):
    """What ends a message that the application took, besides `complete` and `release`."""

    NEXT = "next call"
    OFFSETS = "a commit or stored offsets"
    CALL = "nothing"


class Taker:
    """Takes messages from the buffer, on the event loop.

    ``ends``: what ends a message. ``is_stopped``: whether iterations and runs are to end.
    """

    def __init__(self, buffer: MessageBuffer, owner: Owner, ends: EndsBy) -> None:
        self.ends, self.is_stopped = ends, False
        self.buffer, self._owner = buffer, owner
        self._last: list[Message] = []
        self._waiter: asyncio.Future[None] | None = None
        self._asking: asyncio.Task[Any] | None = None
        self._closed = self._interrupted = False

    # --- asking --------------------------------------------------------------------------------------------------

    async def take(
        self, count: int, timeout_s: float, *, enough: int = 1, ends_by_next: bool = True
    ) -> list[Message]:
        """Return up to ``count`` messages: when there are ``enough``, or after ``timeout_s`` seconds.

        ``ends_by_next``: the next call completes them, if such calls complete any. No message leaves the buffer before
        the last ``await``, so that a cancelled call has taken none.
        """
        task, buffer = asyncio.current_task(), self.buffer
        if self._asking is not None and self._asking is not task:
            raise RuntimeError(_TWO_TASKS)
        buffer.end_last()
        self._interrupted = False
        if len(buffer.queued) < enough:
            self._asking = task
            try:
                await self._wait_for(enough, time.monotonic() + timeout_s)
            finally:
                self._asking = None
        taken = buffer.take(count)
        if len(buffer.queued) < REFILL_AT:
            self._owner.ask()
        messages = [message for message in taken if message.error() is None]
        if not ends_by_next or self.ends is EndsBy.CALL:
            buffer.lend(messages)
        elif self.ends is EndsBy.NEXT:
            buffer.last = messages
        else:
            buffer.note_taken(messages)
        return taken

    def refill(self) -> None:
        """Have the thread fetch more."""
        self._owner.ask()

    async def _wait_for(self, enough: int, until: float) -> None:
        loop = asyncio.get_running_loop()
        while len(self.buffer.queued) < enough and not (self._closed or self._interrupted):
            left = until - time.monotonic()
            if left <= 0:
                return
            waiter = self._waiter = loop.create_future()
            timer = None if left == inf else loop.call_later(left, _wake, waiter)
            self._owner.ask()
            try:
                await waiter
            finally:
                if timer is not None:
                    timer.cancel()

    def notify(self) -> None:
        """Have a waiting call look again."""
        if self._waiter is not None:
            _wake(self._waiter)

    def interrupt(self) -> None:
        """Have a call that waits now return with the messages that are there."""
        self._interrupted = True
        self.notify()

    def stop(self) -> None:
        """End iterations and runs."""
        self.is_stopped = True
        self.interrupt()

    @staticmethod
    def without_events(taken: list[Message]) -> list[Message]:
        """Return the messages among these; raise a fatal error of the client, log others."""
        errors = [(message, message.error()) for message in taken]
        for _, error in errors:
            if error is not None:
                handle_error(error)
        return [message for message, error in errors if error is None]

    def close(self) -> None:
        """Have a waiting call return what is there."""
        self._closed = True
        self.notify()

    def end_last_below(self, below: Mapping[Coordinates, int]) -> None:
        """Complete the messages of the last call that lie below these offsets."""
        due = [
            each for each in self.buffer.last if (each.offset() or 0) < below.get(coordinates_of(each), -1)
        ]
        self.buffer.end(due)


class Iteration(AsyncIterator[Message]):
    """One ``async for``. ``ends_by_next``: whether the next step completes the message before, as configured.

    A body that is cancelled has not handled its message. Nothing tells the iterator so, but the interpreter drops it
    while the cancellation passes through the statement: at that moment its task counts more cancellations than when the
    iteration began.
    """

    def __init__(self, taker: Taker, idle: IdleClock, *, ends_by_next: bool) -> None:
        self._taker, self._idle, self._ends_by_next = taker, idle, ends_by_next
        self._completes = ends_by_next and taker.ends is EndsBy.NEXT
        self._buffer = taker.buffer
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0
        self._in_body = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        buffer = self._buffer
        if self._in_body and self._completes and not self._taker.is_stopped:
            # The short way, of messages that are there.
            if buffer.last:
                buffer.completed.extend(buffer.last)
                buffer.last = []
            queued = buffer.queued
            if queued:
                with suppress(IndexError):  # the thread has taken messages back
                    item = queued.popleft()
                    if type(item) is Message:
                        if len(queued) == REFILL_AT:
                            self._taker.refill()
                        buffer.last = [item]
                        return item
                    queued.appendleft(item)
        return await self._next()

    async def _next(self) -> Message:
        taker = self._taker
        if self._task is None:
            self._task = asyncio.current_task()
            self._cancellations = 0 if self._task is None else self._task.cancelling()
        self._in_body = False
        self._idle.heard()
        while not taker.is_stopped:
            taken = await taker.take(1, LOOK_S, ends_by_next=self._ends_by_next)
            if taken:
                self._idle.heard()
            elif await self._idle.is_up():
                break
            if messages := taker.without_events(taken):
                self._in_body = True
                return messages[0]
        self._buffer.end_last()
        taker.is_stopped = False
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Release the message of a body that was cancelled."""
        task = self._task
        if self._in_body and task is not None and task.cancelling() > self._cancellations:
            self._buffer.end(self._buffer.last, End.RELEASED)


class IdleClock:
    """Counts how long an iteration or a run has had no message; the limit is ``limit_s`` seconds (None: no limit).

    Only time in which a message could have come counts: not before the first assignment, and not while partitions
    recover.
    """

    def __init__(self, owner: Owner, limit_s: float | None) -> None:
        self._owner, self._limit_s = owner, limit_s
        self._began_s = self._heard_s = time.monotonic()

    def heard(self) -> None:
        """Start again: a message came, or is being handled."""
        self._heard_s = time.monotonic()

    async def is_up(self) -> bool:
        """Whether the limit is reached; ask after every call that brought no message."""
        if self._limit_s is None:
            return False
        statuses = await self._owner.call(self._owner.statuses)
        now_s = time.monotonic()
        joins = not statuses and now_s < self._began_s + JOINING_S
        if joins or any(status.state == "recovering" for status in statuses):
            self._heard_s = now_s
        return now_s > self._heard_s + self._limit_s


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
