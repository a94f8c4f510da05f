"""How the application takes messages: one task at a time asks, and its next call completes those of the last one."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from enum import Enum
from inspect import CO_ASYNC_GENERATOR, currentframe
from types import FrameType
from typing import Any, Final, Self, TypeVar

from confluent_kafka import Message

from dedup_sdk._kafka.client.client_errors import handle_error
from dedup_sdk._kafka.client.closing import ONE_DAY_S
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk.aio._buffer import MOST_QUEUED, Below, End
from dedup_sdk.aio._owner import Owner

_TURN_S: Final = 0.001
"""For so many seconds messages are returned without a wait before other tasks have their turn."""
LOOK_S: Final = 0.2
"""So many seconds an iteration or a run waits for a message before it looks at the clock."""
_TWO_TASKS: Final = (
    "another task asks this consumer for messages, or is in run(), and is not over: one task asks, and may hand its "
    "messages to others (iterate over explicit(), and complete each by once()); give one run() more concurrency"
)

F = TypeVar("F", bound=Callable[..., Any])
AnyTask = asyncio.Task[Any] | None


class EndsBy(Enum):
    """What ends a message that the application took, besides calls for the message itself."""

    NEXT = "the next call for messages"
    COMMIT = "a commit, or stored offsets"
    CALL = "nothing"


class Taker:
    """Takes messages from the buffer, on the event loop.

    A task has the messages for which it called; only its own next call shows that they are handled. ``asker`` is the
    task that made a call: another one may run that, e.g. in `asyncio.wait_for`.

    ``ends``: what ends a message. ``writes_each``: whether a message is in the store before the next one is taken.
    ``is_stopped``: whether iterations and runs are to end. ``iterates``: whether the last message is that of a body.
    ``doubted``: the message of which nobody may know, once it is left, whether it was handled: the next call releases
    it, unless it is trusted before.
    """

    def __init__(
        self, owner: Owner, ends: EndsBy, idle_timeout_s: float | None, *, writes_each: bool
    ) -> None:
        self.buffer, self._owner, self._idle_timeout_s = owner.buffer, owner, idle_timeout_s
        self.ends, self.writes_each, self.is_stopped = ends, writes_each, False
        self._task: AnyTask = None
        """The task that has the messages of the last call."""
        self.doubted: Message | None = None
        self.iterates = self._interrupted = False
        self._asking: AnyTask = None
        """The task that waits for messages, or is in a run; it may be over, or have been interrupted."""
        self._turn_ends = 0.0
        """When (monotonic seconds) other tasks have their turn."""

    # --- asking --------------------------------------------------------------------------------------------------

    async def take(
        self, count: int, timeout_s: float | None, *, asker: AnyTask, enough: int = 1, ends: EndsBy
    ) -> list[Message]:
        """Return up to ``count`` messages: when there are ``enough``, or after ``timeout_s`` seconds (None: no limit).

        ``ends``: what ends them. No message leaves the buffer before the last ``await``, so that a cancelled call has
        taken none.
        """
        self._owner.start()
        buffer, here = self.buffer, asyncio.current_task()
        task = asker or here
        ended = self.ends is EndsBy.NEXT and buffer.has_hand
        # The handlers of a run, too, ask for nothing.
        if self._is_asked_by_others or (ended and not self.is_of(task)):
            raise RuntimeError(_TWO_TASKS)
        self.end_last(task)
        self._task = task
        self.iterates, self._interrupted = False, False
        before, self._asking = self._asking, here
        try:
            if ended and self.writes_each:
                await self._owner.flush()
            if len(buffer) < enough:
                self._owner.ask(enough)
                until = time.monotonic() + (ONE_DAY_S if timeout_s is None else timeout_s)
                while len(buffer) < enough and not (
                    self._interrupted or buffer.is_closed or buffer.errors.kept
                ):
                    await buffer.until_changed(until - time.monotonic())
                    if time.monotonic() >= until:
                        break
            else:
                await self.turn()
        finally:
            self._asking = before
        if buffer.is_closed:
            raise self._owner.refusal()
        return buffer.take(count, by_call=ends is EndsBy.CALL)

    async def turn(self) -> None:
        """Let other tasks have their turn, if this one was at work for long."""
        if (now := time.monotonic()) >= self._turn_ends:
            # Before the wait: of many tasks one is enough.
            self._turn_ends = now + _TURN_S
            await asyncio.sleep(0)

    def clock(self) -> IdleClock:
        """Return a clock for an iteration or a run that begins."""
        self._owner.start()
        return IdleClock(self._owner, self._idle_timeout_s)

    async def hear(self, count: int, idle: IdleClock, ends: EndsBy, asker: AnyTask = None) -> list[Message]:
        """Return up to ``count`` messages; none if it is time to look at the clock, or at `is_stopped`.

        Raises fatal errors of the client, and logs others.
        """
        taken = await self.take(count, None if idle.limit_s is None else LOOK_S, asker=asker, ends=ends)
        for error in filter(None, map(Message.error, taken)):
            handle_error(error)
        messages = [message for message in taken if message.error() is None]
        if messages:
            idle.heard()
        return messages

    @property
    def _is_asked_by_others(self) -> bool:
        asking = self._asking
        return asking not in (None, asyncio.current_task()) and not asking.done()

    # --- how messages in hand end --------------------------------------------------------------------------------

    def is_of(self, asker: AnyTask) -> bool:
        """Whether the messages of the last call are this task's, or those of one that is over."""
        task = self._task
        return task is None or task.done() or task is (asker or asyncio.current_task())

    def end_last(self, asker: AnyTask = None) -> None:
        """Complete the messages of the last call, if they are `is_of` a task; release them if their own task failed.

        A message that is doubted is released, whoever calls.
        """
        self._owner.forget_doubted()
        if self.doubted is not None:
            self.buffer.end([self.doubted], End.RELEASED)
            self.doubted = None
        if self.ends is EndsBy.NEXT and self.is_of(asker):
            task = self._task
            # Its `exception` would count as retrieved.
            failed = task is not None and task.done() and (task.cancelled() or task._exception is not None)  # noqa: SLF001
            self.buffer.end_hand(End.RELEASED if failed else End.COMPLETED)

    def end_named(self, asker: AnyTask, message: Message | None, below: Below) -> None:
        """Complete what a call of a task names: the messages in hand up to ``message``, below offsets, or all.

        Raises `RuntimeError` for a message of another task.
        """
        self._owner.forget_doubted()
        if self.ends is EndsBy.NEXT and not self.is_of(asker):
            if message is not None and self.buffer.in_hand(message):
                raise RuntimeError(
                    f"{message.topic()}[{message.partition()}]@{message.offset()} is in the hands of another task, "
                    "which may fail still: have that task commit it, or await complete(message)"
                )
        elif below is not None or self.ends is EndsBy.COMMIT:
            self.buffer.end_hand(below=below)
        elif not self.iterates:
            self.end_last(asker)

    # --- from other tasks ----------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End iterations and runs; a call that waits returns with the messages that are there."""
        self.is_stopped = self._interrupted = True
        self.buffer.look_again()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Have this task alone ask."""
        if self._is_asked_by_others:
            raise RuntimeError(_TWO_TASKS)
        self._asking = asyncio.current_task()
        try:
            yield
        finally:
            self._asking, self.is_stopped = None, False


class Iteration(AsyncIterator[Message]):
    """One ``async for``. ``ends``: what ends its messages. ``consumer`` is kept while it goes on.

    A body that is cancelled has not handled its message. Nothing tells the iterator so, but the interpreter drops it
    while the cancellation passes through the statement: at that moment the task counts a cancellation. A generator, and
    a comprehension, may keep the iterator for longer: of a body in there only the next step shows that it is over.
    Whatever else comes before that step releases its message.
    """

    def __init__(self, consumer: object, taker: Taker, ends: EndsBy) -> None:
        self._message: Message | None = None
        """That of the body, unless its end is the application's alone."""
        self._consumer, self._taker, self._idle, self._ends = consumer, taker, taker.clock(), ends
        self._loop = asyncio.get_running_loop()
        self._granted: deque[Message] = deque()
        """The messages that the next steps may take, if this task makes them."""
        self._grantee: AnyTask = None
        self._share, self._share_ends = 1, 0.0
        """How many messages are granted at once, as many as last for `_TURN_S`; when (monotonic seconds) they have."""
        self._is_hidden = False
        """Whether the statement is in a generator or comprehension."""

    def __aiter__(self) -> Self:
        """Return another iterator: that of a statement must not live on in a variable."""
        return type(self)(self._consumer, self._taker, self._ends)

    def __anext__(self) -> Coroutine[Any, Any, Message]:
        """Return the next step, for the task and the statement that call here."""
        asker = asyncio.current_task(self._loop)
        return self._step(asker) if asker is self._grantee else self._next(asker, _is_hidden(currentframe()))

    async def _step(self, asker: AnyTask) -> Message:
        try:
            self._message = message = self._granted.popleft()
        except IndexError:
            return await self._next(asker, is_hidden=False)
        except BaseException as error:
            self._doubt(error)
            raise
        return message

    async def _next(self, asker: AnyTask, is_hidden: bool) -> Message:  # noqa: FBT001
        try:
            return await self._ask(asker, is_hidden)
        except BaseException as error:
            self._doubt(error)
            raise

    def _doubt(self, error: BaseException) -> None:
        self._grantee = None
        self._taker.buffer.doubt(error)

    async def _ask(self, asker: AnyTask, is_hidden: bool) -> Message:  # noqa: FBT001
        taker, idle = self._taker, self._idle
        if taker.doubted is self._message:
            taker.doubted = None
        self._message, self._is_hidden, self._grantee = None, is_hidden, None
        is_quick = time.monotonic() < self._share_ends
        idle.heard()
        while not taker.is_stopped:
            if messages := await taker.hear(1, idle, self._ends, asker):
                message = messages[0]
                if self._ends is not EndsBy.CALL:
                    self._message, taker.iterates = message, self._ends is EndsBy.NEXT
                    if is_hidden:
                        taker.doubted = message
                if self._ends is EndsBy.NEXT and not (taker.writes_each or is_hidden):
                    self._share_ends = time.monotonic() + _TURN_S
                    self._share = min(2 * self._share, MOST_QUEUED) if is_quick else max(self._share // 2, 1)
                    self._granted, self._grantee = taker.buffer.grant(self._share), asker
                return message
            if idle.is_up:
                break
        taker.end_last(asker)
        taker.is_stopped = False
        raise StopAsyncIteration

    def __del__(self) -> None:
        """Release the message of a body that was cancelled, or of which nobody knows."""
        if self._message is None:
            return
        task, taker = running_task(), self._taker
        is_cancelled = task is not None and task.cancelling() > 0
        # A message that was doubted, and released since, may be in other hands: it comes again as the same object.
        is_released = taker.doubted is self._message if self._is_hidden else is_cancelled
        if is_released:
            taker.buffer.end([self._message], End.RELEASED)


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
