"""How the application takes messages: one task at a time asks, and its next call completes those of the last one."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from inspect import CO_ASYNC_GENERATOR, currentframe
from math import inf
from types import FrameType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import Message

from dedup_sdk._kafka.client.client_errors import handle_error
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk.aio._buffer import MOST_QUEUED, End, EndsBy, MessageBuffer
from dedup_sdk.aio._owner import Owner

_GRANT: Final = 100
"""An iteration takes so many messages before it looks whether something else is to be done."""
TURN_S: Final = 0.001
"""For so many seconds messages are returned without a wait before other tasks have their turn."""
_LOOK_S: Final = 0.2
_TWO_TASKS: Final = (
    "another task asks this consumer for messages, and is not over: one task asks, and may hand its messages to others "
    "(iterate over explicit(), and complete each by once()); or use run()"
)

F = TypeVar("F", bound=Callable[..., Any])
AnyTask = asyncio.Task[Any] | None
_NOBODY: Final = object()


class Taker:
    """Takes messages from the buffer, on the event loop.

    A task has the messages for which it called; only its own next call shows that they are handled. ``asker`` is the
    task that made a call: another one may run that, e.g. in `asyncio.wait_for`.

    ``ends``: what ends a message. ``writes_each``: whether a message is in the store before the next one is taken.
    ``is_stopped``: whether iterations and runs are to end. ``runner``: the task in a run, which alone may ask.
    ``iterates``: whether the last message is that of a body.
    """

    def __init__(self, buffer: MessageBuffer, owner: Owner, ends: EndsBy, *, writes_each: bool) -> None:
        self.ends, self.writes_each, self.is_stopped = ends, writes_each, False
        self.buffer, self._owner = buffer, owner
        self._waiter: asyncio.Future[None] | None = None
        self._task: AnyTask = None
        """The task that has the messages of the last call."""
        self.runner: AnyTask = None
        self.iterates = self._asks = self._interrupted = False
        self._turn_ends = 0.0
        """When (monotonic seconds) other tasks have their turn."""

    # --- asking --------------------------------------------------------------------------------------------------

    async def take(
        self,
        count: int,
        timeout_s: float,
        *,
        asker: AnyTask = None,
        enough: int = 1,
        ends: EndsBy | None = None,
    ) -> list[Message]:
        """Return up to ``count`` messages: when there are ``enough``, or after ``timeout_s`` seconds.

        ``ends``: what ends them, if not as configured. No message leaves the buffer before the last ``await``, so that
        a cancelled call has taken none.
        """
        task, ended = asker or asyncio.current_task(), self.buffer.has_last
        if (
            self._asks
            or self.runner not in (None, task)  # a run's handlers ask for nothing
            or (ended and not self.is_of(task))
        ):
            raise RuntimeError(_TWO_TASKS)
        self.end_last(task)
        self._task = task
        self.iterates, self._interrupted, self._asks = False, False, True
        try:
            if ended and self.writes_each:
                await self._owner.flush()
            if self.buffer.is_released:
                await self._until_back()
            if len(self.buffer) < enough:
                await self._wait_for(enough, time.monotonic() + timeout_s)
                self._turn_ends = time.monotonic() + TURN_S
            elif time.monotonic() >= self._turn_ends:
                await asyncio.sleep(0)
                self._turn_ends = time.monotonic() + TURN_S
        finally:
            self._asks = False
        if self.buffer.is_closed:
            raise self._owner.refusal()
        taken = self.buffer.take(count, ends or self.ends)
        if len(self.buffer) < MOST_QUEUED:
            self._owner.ask()
        return taken

    def is_of(self, asker: AnyTask) -> bool:
        """Whether the messages of the last call are this task's, or those of one that is over."""
        task = self._task
        return task is None or task.done() or task is (asker or asyncio.current_task())

    def end_last(self, asker: AnyTask = None) -> None:
        """Complete the messages of the last call, if they are `is_of` a task; release them if their own task failed.

        A message that is doubted is released, whoever calls.
        """
        self.buffer.release_doubted()
        if self.is_of(asker):
            task = self._task
            # Its `exception` would count as retrieved.
            failed = task is not None and task.done() and (task.cancelled() or task._exception is not None)  # noqa: SLF001
            self.buffer.end_last(End.RELEASED if failed else None)

    async def _until_back(self) -> None:
        """Wait until released messages are queued again, before all others, if they can come at once."""
        self.buffer.note_released(released=False)
        try:
            # A turn of the thread begins with what was ended and with requests, then it fetches.
            for _ in range(2):
                await self._owner.flush()
        except BaseException:
            self.buffer.note_released(released=True)
            raise

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
        self.buffer.end_grant()
        self.interrupt()

    def begin_again(self) -> None:
        """Forget `stop`: what was to end has ended."""
        self.is_stopped = False

    def begin_run(self) -> None:
        """Have this task alone ask, until `end_run`."""
        self.runner = asyncio.current_task()

    def end_run(self) -> None:
        """Let other tasks ask again."""
        self.runner = None
        self.begin_again()

    def close(self) -> None:
        """Have all calls raise, also one that waits."""
        self.buffer.close()
        self.notify()

    @staticmethod
    def without_events(taken: list[Message]) -> list[Message]:
        """Return the messages among these; raise a fatal error of the client, log others."""
        for error in filter(None, map(Message.error, taken)):
            handle_error(error)
        return [message for message in taken if message.error() is None]


class Iteration(AsyncIterator[Message]):
    """One ``async for``. ``ends``: what ends its messages. ``consumer`` is kept while it goes on.

    A body that is cancelled has not handled its message. Nothing tells the iterator so, but the interpreter drops it
    while the cancellation passes through the statement: at that moment the task counts a cancellation. A generator, and
    a comprehension, may keep the iterator for longer: of a body in there only the next step shows that it is over.
    Whatever else comes before that step releases its message.
    """

    def __init__(self, consumer: object, taker: Taker, idle: IdleClock, ends: EndsBy) -> None:
        self._consumer, self._taker, self._idle, self._ends = consumer, taker, idle, ends
        self._loop = asyncio.get_running_loop()
        self._message: Message | None = None
        """That of the body, unless its end is the application's alone."""
        self._granted: deque[Message] = deque()
        """The messages that the next steps may take, if this task makes them."""
        self._grantee: AnyTask | object = _NOBODY
        self._is_hidden = False
        """Whether the statement is in a generator or comprehension."""

    def __aiter__(self) -> Self:
        """Return another iterator: that of a statement must not live on in a variable."""
        return type(self)(self._consumer, self._taker, self._idle, self._ends)

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Return the next step, for the task and the statement that call here."""
        asker = asyncio.current_task(self._loop)
        return self._step(asker) if asker is self._grantee else self._next(asker, _is_hidden(currentframe()))

    async def _step(self, asker: AnyTask) -> Message:
        try:
            self._message = message = self._granted.popleft()
        except IndexError:
            return await self._next(asker, is_hidden=False)
        return message

    async def _next(self, asker: AnyTask, is_hidden: bool) -> Message:  # noqa: FBT001
        taker, idle = self._taker, self._idle
        taker.buffer.trust(self._message)
        self._message, self._is_hidden, self._grantee = None, is_hidden, _NOBODY
        idle.heard()
        while not taker.is_stopped:
            taken = await taker.take(1, look_s(idle), asker=asker, ends=self._ends)
            if not taken and idle.is_up:
                break
            if messages := taker.without_events(taken):
                idle.heard()
                message = messages[0]
                if self._ends is not EndsBy.CALL:
                    self._message, taker.iterates = message, True
                    if is_hidden:
                        taker.buffer.doubt(message)
                if self._ends is EndsBy.NEXT and not (taker.writes_each or is_hidden):
                    granted = taker.buffer.grant(_GRANT)
                    if granted is not None:
                        self._granted, self._grantee = granted, asker
                return message
        taker.end_last(asker)
        taker.begin_again()
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Release the message of a body that was cancelled, or of which nobody knows."""
        message, buffer = self._message, self._taker.buffer
        if message is None:
            return
        if self._is_hidden:
            buffer.release_doubted(message)
        elif _is_cancelled() and self._ends is EndsBy.OFFSETS:
            buffer.end([message], End.RELEASED)
        elif _is_cancelled():
            buffer.end_last(End.RELEASED)


def coroutine_function(function: F) -> F:
    """Mark a function that returns a coroutine, and does a part of its work, to find its caller, at the call."""
    if sys.version_info >= (3, 12):
        return inspect.markcoroutinefunction(function)
    function._is_coroutine = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def running_task() -> AnyTask:
    """Return the task that runs now; None outside of an event loop, e.g. for the garbage collector."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _is_hidden(frame: FrameType | None) -> bool:
    """Whether the caller of this frame is a generator, or a comprehension with a frame of its own."""
    caller = None if frame is None else frame.f_back
    code = None if caller is None else caller.f_code
    return code is not None and (code.co_flags & CO_ASYNC_GENERATOR != 0 or ".0" in code.co_varnames)


def _is_cancelled() -> bool:
    task = running_task()
    return task is not None and task.cancelling() > 0


def look_s(idle: IdleClock) -> float:
    """Return the seconds that an iteration or a run waits for a message before it looks at the clock."""
    return inf if idle.limit_s is None else _LOOK_S


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
