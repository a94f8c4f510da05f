"""`AsyncDedupConsumer.run`: awaits a handler for each message, and completes, dead-letters or releases the message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Any

from confluent_kafka import Message

from dedup_sdk._kafka.client.fields import MessageFields, note_message
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.consumer import DedupConsumer
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._observe import Counters, of_partition
from dedup_sdk._runner.dead_letters import DeadLetterProducer, undeliverable
from dedup_sdk._runner.settings import AsyncRunSettings
from dedup_sdk._runner.tasks import Task, Tasks
from dedup_sdk.aio._buffer import MOST_QUEUED, End
from dedup_sdk.aio._owner import Owner
from dedup_sdk.aio._taker import TURN_S, EndsBy, Taker, look_s
from dedup_sdk.ids import IdSpec

logger = logging.getLogger("dedup_sdk")

Send = Callable[[Message, Exception, int], Awaitable[None]]
"""Sends a dead letter of a message, with the last error and the number of calls."""


class AsyncRunner:
    """One run. All of it happens on the event loop.

    A `Task` is a message of the run, and the stage of its handler. A job, which is one of asyncio's tasks, handles one
    message after the other, as long as it is as good as new: a handler that left a context variable or a cancellation
    behind gets the last message of its job.
    """

    def __init__(
        self, settings: AsyncRunSettings, *, taker: Taker, owner: Owner, idle: IdleClock, send: Send | None
    ) -> None:
        self._settings, self._taker, self._buffer, self._owner = settings, taker, taker.buffer, owner
        self._idle, self._send = idle, send
        self._failure: BaseException | None = None
        self._halted = False
        """Whether no further handler may be called."""
        # The thread has counted the messages as delivered.
        self._tasks = Tasks(settings.order or "none", Counters())
        self._ready: deque[Task] = deque()
        self._running: dict[asyncio.Task[None], Task] = {}
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._few = settings.concurrency + MOST_QUEUED * 9 // 10
        """With so many tasks left the run takes more messages: not one for each that ends."""
        self._turn_ends = 0.0
        """When (monotonic seconds) other tasks have their turn, where handlers await nothing."""

    async def run(self) -> None:
        """Handle messages until `Taker.is_stopped`, an error, or the end of ``idle``; then let running handlers end."""
        self._owner.withdraw_by(self._forget)
        try:
            await self._serve()
            self._halt()
            while self._running and self._failure is None:
                await asyncio.wait(list(self._running), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._halt()
            for job in self._running:
                job.cancel()
            try:
                if self._running:
                    await asyncio.wait(list(self._running), timeout=self._owner.deadline_s)
            finally:
                self._owner.withdraw_by()
                self._abandon()
        if self._failure is not None:
            raise self._failure
        await self._owner.flush()

    async def _serve(self) -> None:
        most = MOST_QUEUED + self._settings.concurrency
        while not self._is_over:
            if len(self._tasks) > self._few and not self._buffer.is_closed:
                await self._buffer.until_changed()
                continue
            room = most - len(self._tasks)
            taken = await self._taker.take(room, look_s(self._idle), asker=None, ends=EndsBy.CALL)
            tasks = map(Task, self._taker.without_events(taken))
            self._ready.extend(task for task in tasks if self._tasks.add(task))
            self._fill()
            if taken or len(self._tasks):
                self._idle.heard()
            elif self._idle.is_up:
                return

    @property
    def _is_over(self) -> bool:
        return self._halted or self._taker.is_stopped

    def _next(self) -> Task | None:
        """Return a task whose handler is called now."""
        while self._ready and not (self._is_over or self._buffer.is_closed):
            task = self._ready.popleft()
            if task.begin():
                return task
        return None

    def _fill(self) -> None:
        """Begin with ready messages, while there is room for handlers."""
        while len(self._running) < self._settings.concurrency and (task := self._next()) is not None:
            # Not by the loop's factory: an eager one would run the handler before the next line.
            work, context = self._work(task), self._context.copy()
            job = asyncio.Task(work, loop=self._loop, name="dedup-handler", context=context)
            self._running[job] = task
            job.add_done_callback(self._end)

    def _remove(self, task: Task) -> None:
        """Remove a task; the next message with the same key is ready."""
        if (following := self._tasks.remove(task)) is not None:
            self._ready.append(following)
        if len(self._tasks) == self._few:
            self._buffer.changed.set()

    async def _work(self, task: Task) -> None:
        """Handle a message, and then others. An error is that of the message that runs; `_end` sees to it."""
        job: Any = asyncio.current_task()
        while True:
            end = await self._handle(task)
            if self._running.pop(job, None) is None:
                return  # the run was over before
            self._buffer.end([task.message], end)
            self._remove(task)
            if job.cancelling() or copy_context() != self._context:
                return
            if (now := time.monotonic()) >= self._turn_ends:
                # Before the wait: one job in a turn is enough.
                self._turn_ends = now + TURN_S
                await asyncio.sleep(0)
            following = self._next() if len(self._running) < self._settings.concurrency else None
            if following is None:
                return
            self._running[job] = task = following

    def _end(self, job: asyncio.Task[None]) -> None:
        """See to the message of a job that ended in it, and begin with the next one."""
        task = self._running.pop(job, None)
        error = None if job.cancelled() else job.exception()
        if task is not None:
            self._tasks.remove(task)
            self._buffer.end([task.message], End.RELEASED)
            if error is not None or not self._halted:
                # The first error ends the run. The next message with the same key must not overtake the failed one.
                self._failure = self._failure or error or _cancelled_by_others(task.message)
                self._halt()
                self._taker.interrupt()
        self._fill()

    # --- handlers ------------------------------------------------------------------------------------------------

    async def _handle(self, task: Task) -> End:
        """Call the handler, and again after errors that may pass; return how the message ends."""
        try:
            await self._settings.handler(task.message)
        except Exception as error:  # noqa: BLE001 (it is raised, or the message is dead-lettered)
            return await self._after(error, task)
        return End.COMPLETED

    async def _after(self, error: Exception, task: Task) -> End:
        """Call the handler again while its errors may pass; then send a dead letter, or raise."""
        retries, last = self._settings.retries, error

        def begins_again(failed: BaseException) -> bool:
            if self._halted:
                # It withdraws the task, which pauses then.
                self._loop.call_soon(self._halt)
            return isinstance(failed, Exception) and retries.is_retriable(failed) and task.back_off()

        if retries.attempts != 1 and retries.is_retriable(error):
            try:
                async for attempt in retries.context(begins_again):
                    with attempt:
                        if attempt.num == 1:
                            raise error  # noqa: TRY301 (the attempts begin with it)
                        task.begin()
                        of_partition(self._owner.counters, *task.coordinates).retried += 1
                        await self._settings.handler(task.message)
            except Exception as failed:  # noqa: BLE001 (as above)
                last = failed
            else:
                return End.COMPLETED
        task.end(last)
        note_message(last, task.message, task.attempts)
        if self._send is None:
            raise last
        await self._send(task.message, last, task.attempts)
        return End.DEAD_LETTERED

    # --- the end -------------------------------------------------------------------------------------------------

    def _withdraw(self, messages: list[Message] | None = None) -> list[Task]:
        """Call no handler for these messages, nor again (None: for all); return the tasks. Running handlers go on."""
        chosen = None if messages is None else set(map(id, messages))
        gone = [
            task
            for task in self._tasks.of()
            if (chosen is None or id(task.message) in chosen) and task.withdraw()
        ]
        # Back to front: none that is withdrawn is ready in between.
        for task in reversed(gone):
            self._remove(task)
        for job in [job for job, task in self._running.items() if task not in self._tasks]:
            # It pauses between two calls.
            del self._running[job]
            job.cancel()
        return gone

    def _halt(self) -> None:
        """Let no further handler begin, nor be called again."""
        self._halted = True
        gone = self._withdraw()
        self._buffer.end([task.message for task in gone if task.attempts], End.RELEASED)
        self._buffer.end([task.message for task in gone if not task.attempts], End.RETURNED)

    def _abandon(self) -> None:
        """Release what still runs."""
        for job in [job for job in self._running if job.done()]:
            self._end(job)
        for task in self._running.values():
            self._owner.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: its handler ignored the cancellation, and is waited for no longer; the message is "
                "delivered again", *task.coordinates, task.offset,
                extra={"event": "handler-ignored-cancellation"},
            )  # fmt: skip
        self._buffer.end([task.message for task in self._running.values()], End.RELEASED)
        self._running.clear()

    def _forget(self, messages: list[Message]) -> None:
        """Forget messages that go, if no handler runs with them; the handlers that run may end."""
        self._buffer.end((task.message for task in self._withdraw(messages)), None)
        self._fill()
        self._buffer.changed.set()


def _cancelled_by_others(message: Message) -> RuntimeError:
    error = RuntimeError(
        "the handler was cancelled, and not by this run: by itself, or because what it awaited was cancelled; the "
        "message is delivered again: catch asyncio.CancelledError where that is expected"
    )
    note_message(error, message, 1)
    return error


@asynccontextmanager
async def dead_letters_to(
    topic: str, owner: Owner, consumer: DedupConsumer, settings: ClientSettings, spec: IdSpec
) -> AsyncIterator[Send]:
    """Give a function that sends a dead letter and waits for its delivery, by a producer on the owner's thread.

    Raises `DeadLetterError` if there is no such topic; the function does so for a letter that is not delivered. At the
    end undelivered letters are dropped.
    """
    producer = await owner.call(DeadLetterProducer, settings, topic)

    def put(message: Message, error: Exception, attempts: int, delivered: asyncio.Future[Any]) -> None:
        verdict = consumer.verdict(message)
        producer.send(
            message,
            error,
            lambda problem: owner.answer(delivered, problem),
            group=settings.group,
            attempts=attempts if verdict is None else verdict.attempt - 1 + attempts,
            digest=spec.digests(MessageFields([message])).digests[0],
        )

    async def send(message: Message, error: Exception, attempts: int) -> None:
        delivered = asyncio.get_running_loop().create_future()
        await owner.call(put, message, error, attempts, delivered)
        if (problem := (await delivered)[0]) is not None:
            raise undeliverable(message, problem)

    owner.serve_by(producer.poll)
    try:
        yield send
    finally:
        owner.serve_by()
        if not owner.is_over:
            await owner.call(producer.close)
