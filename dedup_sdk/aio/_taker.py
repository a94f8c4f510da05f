"""How the application takes messages: one task at a time asks, and its next call completes those of the last one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from math import inf
from typing import Any, Final, Self

from confluent_kafka import Message

from dedup_sdk._kafka.client_errors import handle_error
from dedup_sdk._kafka.loop import IdleClock
from dedup_sdk.aio._buffer import End, EndsBy, MessageBuffer
from dedup_sdk.aio._owner import MOST_QUEUED, Owner

REFILL_AT: Final = MOST_QUEUED // 2
"""With fewer messages queued the thread is woken to fetch more."""
_MOST_AT_ONCE: Final = 100
"""So many messages are returned without a wait before other tasks have their turn."""
_LOOK_S: Final = 0.2
_TWO_TASKS: Final = (
    "another task asks this consumer for messages, and is not over: one task asks, and may hand its messages to others "
    "(iterate over explicit(), and complete each by once()); or use run()"
)


class Taker:
    """Takes messages from the buffer, on the event loop.

    ``ends``: what ends a message. ``writes_each``: whether a message is in the store before the next one is taken.
    ``is_stopped``: whether iterations and runs are to end. ``runner``: the task in a run, which alone may ask.
    """

    def __init__(self, buffer: MessageBuffer, owner: Owner, ends: EndsBy, *, writes_each: bool) -> None:
        self.ends, self.writes_each, self.is_stopped = ends, writes_each, False
        self.buffer, self._owner = buffer, owner
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        """The task that asked last."""
        self.runner: asyncio.Task[Any] | None = None
        self._asks = self._iterates = self._interrupted = False
        self._at_once = 0

    # --- asking --------------------------------------------------------------------------------------------------

    async def take(
        self,
        count: int,
        timeout_s: float,
        *,
        enough: int = 1,
        ends: EndsBy | None = None,
        iterates: bool = False,
    ) -> list[Message]:
        """Return up to ``count`` messages: when there are ``enough``, or after ``timeout_s`` seconds.

        ``ends``: what ends them, if not as configured. ``iterates``: the calling task will ask for the next one. No
        message leaves the buffer before the last ``await``, so that a cancelled call has taken none.
        """
        self._begin()
        self._interrupted, self._asks = False, True
        try:
            if self.buffer.has_last:
                self.end_last()
                if self.writes_each:
                    await self._owner.flush()
            if len(self.buffer) < enough:
                await self._wait_for(enough, time.monotonic() + timeout_s)
                self._at_once = 0
            elif self._at_once >= _MOST_AT_ONCE:
                self._at_once = 0
                await asyncio.sleep(0)
        finally:
            self._asks = False
        if self.buffer.is_closed:
            raise self._owner.refusal()
        taken = self.buffer.take(count, ends or self.ends)
        self._iterates = iterates
        self._at_once += len(taken)
        if len(self.buffer) < REFILL_AT:
            self._owner.ask()
        return taken

    def _begin(self) -> None:
        """Refuse a second task: it would complete what the first one is handling."""
        task, before = asyncio.current_task(), self._task
        if self.runner not in (None, task):
            raise RuntimeError(_TWO_TASKS)
        if before is not None and before is not task:
            if self._asks or (self._iterates and self.buffer.has_last and not before.done()):
                raise RuntimeError(_TWO_TASKS)
            self.end_last()
        self._task = task

    def end_last(self) -> None:
        """Complete the messages of the last call; release them if the task that got them was cancelled."""
        task = self._task
        was_cancelled = task is not None and task.done() and task.cancelled()
        self.buffer.end_last(End.RELEASED if was_cancelled else None)

    async def _wait_for(self, enough: int, until: float) -> None:
        self._owner.ask()
        buffer = self.buffer
        while len(buffer) < enough and not (self._interrupted or buffer.is_closed or buffer.errors.kept):
            left = until - time.monotonic()
            await self.wait(left)
            if left <= 0:
                return

    async def wait(self, timeout_s: float = inf) -> None:
        """Wait until something was queued, or `notify` was called; for the other tasks' turn at least."""
        if timeout_s <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        timer = None if timeout_s == inf else loop.call_later(timeout_s, _wake, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()

    def take_next(self) -> Message | None:
        """Complete the message before, and return the next one if it is there: what `take` does, the short way."""
        buffer = self.buffer
        if self._at_once >= _MOST_AT_ONCE or self.is_stopped or buffer.is_closed:
            return None
        message = buffer.take_next()
        if message is not None:
            self._at_once += 1
            if len(buffer) == REFILL_AT:
                self._owner.ask()
        return message

    # --- from other tasks ----------------------------------------------------------------------------------------

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

    def begin_again(self) -> None:
        """Forget `stop`: what was to end has ended."""
        self.is_stopped = False

    def close(self) -> None:
        """Have all calls raise, also one that waits."""
        self.buffer.is_closed = True
        self.notify()

    @staticmethod
    def without_events(taken: list[Message]) -> list[Message]:
        """Return the messages among these; raise a fatal error of the client, log others."""
        errors = [(message, message.error()) for message in taken]
        for _, error in errors:
            if error is not None:
                handle_error(error)
        return [message for message, error in errors if error is None]


class Iteration(AsyncIterator[Message]):
    """One ``async for``. ``ends``: what ends its messages. ``consumer`` is kept while it goes on.

    A body that is cancelled has not handled its message. Nothing tells the iterator so, but the interpreter drops it
    while the cancellation passes through the statement: at that moment its task counts more cancellations than when the
    iteration began.
    """

    def __init__(self, consumer: object, taker: Taker, idle: IdleClock, ends: EndsBy) -> None:
        self._consumer, self._taker, self._idle, self._ends = consumer, taker, idle, ends
        self._is_short = ends is EndsBy.NEXT and not taker.writes_each
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0
        self._in_body = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._in_body and self._is_short:
            message = self._taker.take_next()
            if message is not None:
                return message
        return await self._next()

    async def _next(self) -> Message:
        taker, idle = self._taker, self._idle
        if self._task is None:
            self._task = asyncio.current_task()
            self._cancellations = 0 if self._task is None else self._task.cancelling()
        self._in_body = False
        idle.heard()
        while not taker.is_stopped:
            taken = await taker.take(1, look_s(idle), ends=self._ends, iterates=True)
            if not taken and idle.is_up:
                break
            if messages := taker.without_events(taken):
                idle.heard()
                self._in_body = True
                return messages[0]
        taker.end_last()
        taker.begin_again()
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Release the message of a body that was cancelled."""
        task = self._task
        if self._in_body and task is not None and task.cancelling() > self._cancellations:
            self._taker.buffer.end_last(End.RELEASED)


def look_s(idle: IdleClock) -> float:
    """Return the seconds that an iteration or a run waits for a message before it looks at the clock."""
    return inf if idle.limit_s is None else _LOOK_S


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
