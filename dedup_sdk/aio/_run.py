"""`AsyncDedupConsumer.run`: awaits a handler for each message, and completes, dead-letters or releases the message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, Message

from dedup_sdk._checks import choice, whole
from dedup_sdk._kafka.client.fields import MessageFields, note_message
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._masking import shown
from dedup_sdk._observe import of_partition
from dedup_sdk._runner.dead_letters import DeadLetterProducer, undeliverable
from dedup_sdk._runner.settings import OnError, Retries, check_dead_letters, refuse_unfit
from dedup_sdk.aio._buffer import MOST_QUEUED, End, EndsBy, coordinates_of
from dedup_sdk.aio._owner import Owner, runs_on_loop
from dedup_sdk.aio._taker import TURN_S, Taker, look_s
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.ids import IdSpec

logger = logging.getLogger("dedup_sdk")

_REFILL_AT: Final = MOST_QUEUED - 100
"""With so many messages waiting the run takes more: not one for each that ends."""

AsyncHandler = Callable[[Message], Awaitable[object]]
_Keyed = tuple[Message, Hashable]
"""A message, and what it shares with those that must not be handled beside it; None: nothing."""
Order = Literal["key", "partition"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncRunSettings:
    """The settings of a run; raises `ConfigurationError` with a one-line message."""

    handler: AsyncHandler
    concurrency: int
    order: Order
    on_error: OnError
    dead_letters: str | None
    """The dead-letter topic; None: failures are not dead-lettered."""
    retries: Retries

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ("raise", "retry", "dead-letter"))
        if self.order is not None:
            choice("order", self.order, ("key", "partition"))
        whole(
            "concurrency", self.concurrency, advice="give the most handlers that may run at a time, e.g. 100"
        )
        check_dead_letters(self.dead_letters, self.on_error)
        _check_handler(self.handler)


def _check_handler(handler: Any) -> None:
    function = handler
    while isinstance(function, partial):
        function = function.func
    if not callable(function):
        raise ConfigurationError(f"handler={shown(handler)}: give a coroutine function, e.g. run(handle)")
    if not runs_on_loop(function):
        raise ConfigurationError(
            f"handler={shown(handler)} is a plain function, which would stop the event loop: write async def, have it "
            "await asyncio.to_thread(work, message), or use DedupConsumer.run in a thread"
        )
    refuse_unfit(handler, "a coroutine function")


class AsyncRunner:
    """One run. All of it happens on the event loop.

    A message of the run waits (its handler was not called), runs, or is over. Messages with one key wait in a queue, of
    which the first is ready or runs. A task handles one ready message after the other, as long as it is as good as new:
    a handler that left a context variable or a cancellation behind gets the last message of its task.
    """

    def __init__(
        self,
        settings: AsyncRunSettings,
        *,
        taker: Taker,
        owner: Owner,
        idle: IdleClock,
        letters: DeadLetters | None,
        deadline_s: float,
    ) -> None:
        self._settings, self._taker, self._buffer, self._owner = settings, taker, taker.buffer, owner
        self._idle, self._letters, self._deadline_s = idle, letters, deadline_s
        self._failure: BaseException | None = None
        self._halted = self._is_full = False
        """Whether no further handler may be called; whether no further message is taken now."""
        self._ready: deque[_Keyed] = deque()
        self._queues: dict[Hashable, deque[Message]] = {}
        self._waiting: dict[int, Message] = {}
        self._running: dict[asyncio.Task[None], Message] = {}
        self._pausing: set[asyncio.Task[Any]] = set()
        """Tasks between two calls of their handler."""
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._turn_ends = 0.0
        """When (monotonic seconds) other tasks have their turn, where handlers await nothing."""

    async def run(self) -> None:
        """Handle messages until `Taker.is_stopped`, an error, or the end of ``idle``; then let running handlers end."""
        self._owner.withdraw_by(self._withdraw)
        try:
            await self._serve()
            self._halt()
            while self._running and self._failure is None:
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._halt()
            try:
                await self._cancel()
            finally:
                self._owner.withdraw_by(None)
                self._abandon()
        if self._failure is not None:
            raise self._failure
        await self._owner.flush()

    async def _serve(self) -> None:
        most = MOST_QUEUED + self._settings.concurrency
        while not self._is_over:
            self._is_full = len(self._waiting) > _REFILL_AT and not self._buffer.is_closed
            if self._is_full:
                await self._taker.wait()
                continue
            room = most - len(self._waiting) - len(self._running)
            taken = await self._taker.take(room, look_s(self._idle), ends=EndsBy.CALL)
            self._accept(self._taker.without_events(taken))
            self._fill()
            if taken or self._running or self._waiting:
                self._idle.heard()
            elif self._idle.is_up:
                return

    @property
    def _is_over(self) -> bool:
        return self._halted or self._taker.is_stopped

    def _accept(self, messages: list[Message]) -> None:
        self._waiting.update(zip(map(id, messages), messages, strict=True))
        for message in messages:
            key = self._key_of(message)
            if key is not None:
                queue = self._queues.setdefault(key, deque())
                queue.append(message)
                if len(queue) > 1:
                    continue
            self._ready.append((message, key))

    def _key_of(self, message: Message) -> Hashable:
        if self._settings.order is None:
            return None
        if self._settings.order == "partition":
            return coordinates_of(message)
        key = message.key()
        return None if key is None else (message.topic(), message.partition(), key)

    def _next(self) -> _Keyed | None:
        """Return a ready message, whose handler may be called now."""
        if self._is_over or self._buffer.is_closed:
            return None
        while self._ready:
            ready = self._ready.popleft()
            if self._waiting.pop(id(ready[0]), None) is not None:
                if self._is_full and len(self._waiting) <= _REFILL_AT:
                    self._taker.notify()
                return ready
            self._follow(*ready)  # it was withdrawn
        return None

    def _fill(self) -> None:
        """Begin with ready messages, while there is room for handlers."""
        while len(self._running) < self._settings.concurrency and (ready := self._next()) is not None:
            # Not by the loop's factory: an eager one would run the handler before the next line.
            work, context = self._work(*ready), self._context.copy()
            task = asyncio.Task(work, loop=self._loop, name="dedup-handler", context=context)
            self._running[task] = ready[0]
            task.add_done_callback(self._end)

    def _follow(self, message: Message, key: Hashable) -> None:
        """Make the next message with the same key ready."""
        queue = None if key is None else self._queues.get(key)
        if queue and queue[0] is message:
            queue.popleft()
            if queue:
                self._ready.append((queue[0], key))
            else:
                del self._queues[key]

    async def _work(self, message: Message, key: Hashable) -> None:
        """Handle a message, and then others. An error is that of the message that runs; `_end` sees to it."""
        task = asyncio.current_task()
        if task is None:
            raise AssertionError("a handler runs in a task")
        while True:
            end = await self._handle(message, task)
            if self._running.pop(task, None) is None:
                return  # the run was over before, or the message was withdrawn
            self._buffer.end_one(message, end)
            if key is not None and not self._halted:
                self._follow(message, key)
            if task.cancelling() or copy_context() != self._context:
                return
            if (now := time.monotonic()) >= self._turn_ends:
                # Before the wait: one task in a turn is enough.
                self._turn_ends = now + TURN_S
                await asyncio.sleep(0)
            following = self._next() if len(self._running) < self._settings.concurrency else None
            if following is None:
                return
            message, key = following
            self._running[task] = message

    def _end(self, task: asyncio.Task[None]) -> None:
        """See to the message of a task that ended in it, and begin with the next one."""
        message = self._running.pop(task, None)
        self._pausing.discard(task)
        error = None if task.cancelled() else task.exception()
        if message is not None:
            if error is not None:
                self._fail(message, error)
            elif self._halted:
                self._buffer.end([message], End.RELEASED)
            else:
                self._fail(message, _cancelled_by_others(message))
        # After a failure the next message with the same key must not overtake the failed one.
        if not self._halted:
            self._fill()
        self._changed.set()

    # --- handlers ------------------------------------------------------------------------------------------------

    async def _handle(self, message: Message, task: asyncio.Task[Any]) -> End | None:
        """Call the handler, and again after errors that may pass; return how the message ends."""
        try:
            await self._settings.handler(message)
        except Exception as error:  # noqa: BLE001 (it is raised, or the message is dead-lettered)
            return await self._after(error, message, task)
        return None

    async def _after(self, error: Exception, message: Message, task: asyncio.Task[Any]) -> End | None:
        """Call the handler again while its errors may pass; then send a dead letter, or raise."""
        made, retries, last = 1, self._settings.retries, error

        def begins_again(failed: BaseException) -> bool:
            if not isinstance(failed, Exception) or not retries.is_retriable(failed):
                return False
            self._pausing.add(task)
            if self._halted:
                task.cancel()
            return True

        if retries.attempts != 1 and retries.is_retriable(error):
            try:
                async for attempt in retries.context(begins_again):
                    self._pausing.discard(task)
                    with attempt:
                        if attempt.num == 1:
                            raise error  # noqa: TRY301 (the attempts begin with it)
                        made += 1
                        of_partition(self._owner.counters, *coordinates_of(message)).retried += 1
                        await self._settings.handler(message)
            except Exception as failed:  # noqa: BLE001 (as above)
                last = failed
            else:
                return None
            finally:
                self._pausing.discard(task)
        note_message(last, message, made)
        if self._letters is None:
            raise last
        await self._letters.send(message, last, made)
        return End.DEAD_LETTERED

    # --- the end -------------------------------------------------------------------------------------------------

    def _fail(self, message: Message, error: BaseException) -> None:
        """End the run with an error; the first error wins."""
        self._failure = self._failure or error
        self._buffer.end([message], End.RELEASED)
        self._halt()
        self._taker.interrupt()

    def _halt(self) -> None:
        """Let no further handler begin, nor be called again."""
        self._halted = True
        for task in list(self._pausing):
            task.cancel()

    async def _cancel(self) -> None:
        """Cancel the running handlers, and wait for them until the deadline."""
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running), timeout=self._deadline_s)

    def _abandon(self) -> None:
        """Release what waits and what still runs."""
        for task in [task for task in self._running if task.done()]:
            self._end(task)
        for message in self._running.values():
            self._owner.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: its handler ignored the cancellation, and is waited for no longer; the message is "
                "delivered again", message.topic(), message.partition(), message.offset(),
                extra={"event": "handler-ignored-cancellation"},
            )  # fmt: skip
        self._buffer.end([*self._running.values(), *self._waiting.values()], End.RELEASED)
        self._running.clear()
        self._waiting.clear()

    def _withdraw(self, messages: list[Message]) -> None:
        """Forget messages that go, if no handler runs with them; the handlers that run may end."""
        gone = [each for each in messages if self._waiting.pop(id(each), None) is not None]
        going = set(map(id, messages))
        for task in [each for each in self._pausing if id(self._running.get(each)) in going]:
            task.cancel()
            message = self._running.pop(task)
            gone.append(message)
            self._follow(message, self._key_of(message))
        self._buffer.give_up(gone)
        self._fill()
        self._changed.set()
        self._taker.notify()


def _cancelled_by_others(message: Message) -> RuntimeError:
    error = RuntimeError(
        "the handler was cancelled, and not by this run: by itself, or because what it awaited was cancelled; the "
        "message is delivered again: catch asyncio.CancelledError where that is expected"
    )
    note_message(error, message, 1)
    return error


class DeadLetters:
    """Sends dead letters by a producer that lives on the owner's thread."""

    def __init__(self, owner: Owner, settings: ClientSettings, topic: str, spec: IdSpec) -> None:
        self._owner, self._settings, self._topic, self._spec = owner, settings, topic, spec
        self._producer: DeadLetterProducer | None = None

    async def open(self) -> None:
        """Connect; raises `DeadLetterError` if there is no such topic."""
        self._producer = await self._owner.call(DeadLetterProducer, self._settings, self._topic)
        self._owner.serve_by(self._producer.poll)

    async def close(self) -> None:
        """Drop undelivered letters."""
        if self._producer is not None:
            self._owner.serve_by(None)
            if not self._owner.is_over:
                await self._owner.call(self._producer.close)

    async def send(self, message: Message, error: Exception, attempts: int) -> None:
        """Send the dead letter of a message, and wait for its delivery; raises `DeadLetterError`."""
        delivered: asyncio.Future[KafkaError | None] = asyncio.get_running_loop().create_future()
        await self._owner.call(self._send, message, error, attempts, delivered)
        problem = await delivered
        if problem is not None:
            raise undeliverable(message, problem)

    def _send(
        self, message: Message, error: Exception, attempts: int, delivered: asyncio.Future[KafkaError | None]
    ) -> None:
        if self._producer is None:
            raise AssertionError("a dead letter was sent before open()")
        verdict = self._owner.verdict(message)
        self._producer.send(
            message,
            error,
            lambda problem: self._owner.answer(delivered, problem),
            group=self._settings.group,
            attempts=attempts if verdict is None else verdict.attempt - 1 + attempts,
            digest=self._spec.digests(MessageFields([message])).digests[0],
        )
