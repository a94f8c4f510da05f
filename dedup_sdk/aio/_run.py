"""`AsyncDedupConsumer.run`: awaits a handler for each message, and completes, dead-letters or releases the message."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from confluent_kafka import Message

from dedup_sdk._kafka.client.fields import MessageFields, note_message
from dedup_sdk._observe import Counters, of_partition
from dedup_sdk._runner.dead_letters import DeadLetterProducer, undeliverable
from dedup_sdk._runner.settings import AsyncRunSettings
from dedup_sdk._runner.tasks import Task, Tasks
from dedup_sdk.aio._buffer import MOST_QUEUED, End
from dedup_sdk.aio._owner import Owner, nothing
from dedup_sdk.aio._taker import LOOK_S, EndsBy, Taker
from dedup_sdk.ids import IdSpec

logger = logging.getLogger("dedup_sdk")

Send = Callable[[Message, Exception, int], Awaitable[None]]
"""Sends a dead letter of a message, with the last error and the number of calls."""
Letters = tuple[Send | None, Callable[[], object]]
"""What sends dead letters, if any are asked for, and what serves, on the owner's thread, the client that does."""


class AsyncRunner:
    """One run. All of it happens on the event loop.

    A `Task` is a message of the run, and the stage of its handler. A job, which is one of asyncio's tasks, handles one
    ready message after the other, as long as it is as good as new: a handler that left a context variable or a
    cancellation behind had the last message of its job.
    """

    def __init__(self, settings: AsyncRunSettings, taker: Taker, owner: Owner, letters: Letters) -> None:
        self._settings, self._taker, self._owner, self._buffer = settings, taker, owner, owner.buffer
        self._idle, self._context = taker.clock(), copy_context()
        self._send, self._serve_producer = letters
        self._failure: BaseException | None = None
        # The thread has counted the messages as delivered.
        self._tasks = Tasks(settings.order or "none", Counters())
        self._ready: deque[Task] = deque()
        self._jobs: dict[asyncio.Task[None], Task | None] = {}
        """What each job handles: None before its first message, and between two."""
        self._few = settings.concurrency + MOST_QUEUED * 9 // 10
        """With so many tasks left the run takes more messages: not one for each that ends."""

    async def run(self) -> None:
        """Handle messages until `Taker.is_stopped`, an error, or ``idle_timeout``; then let running handlers end."""
        self._owner.work_for(self._forget, self._serve_producer)
        try:
            await self._serve()
            self._halt()
            clock, until = asyncio.get_running_loop().time, float("inf")
            while self._jobs and self._failure is None and clock() < until:
                await asyncio.wait(list(self._jobs), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if self._tasks.are_finished:
                    # The broker may be away: dead letters are not waited for without an end.
                    until = min(until, clock() + self._owner.deadline_s)
        finally:
            self._taker.stop()
            self._halt()
            for job in self._jobs:
                job.cancel()
            try:
                if self._jobs:
                    await asyncio.wait(list(self._jobs), timeout=self._owner.deadline_s)
            finally:
                self._owner.work_for()
                self._abandon()
        if self._failure is not None:
            raise self._failure
        await self._owner.flush()

    async def _serve(self) -> None:
        most = MOST_QUEUED + self._settings.concurrency
        while not self._taker.is_stopped:
            if len(self._tasks) > self._few and not self._buffer.is_closed:
                await self._buffer.until_changed()
                continue
            messages = await self._taker.hear(most - len(self._tasks), self._idle, EndsBy.CALL)
            self._ready.extend(task for task in map(Task, messages) if self._tasks.add(task))
            self._fill()
            if len(self._tasks):
                self._idle.heard()
            elif self._idle.is_up:
                return

    # --- jobs ----------------------------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Have jobs begin for ready messages, while there is room for handlers."""
        for _ in range(min(len(self._ready), self._settings.concurrency - len(self._jobs))):
            # Not by the loop's factory: an eager one would run the handler before the next line.
            job = asyncio.Task(self._work(), name="dedup-handler", context=self._context.copy())
            self._jobs[job] = None
            job.add_done_callback(self._end)

    async def _work(self) -> None:
        """Handle ready messages. An error is that of the message that the job has then; `_end` sees to it."""
        job: Any = asyncio.current_task()
        while not job.cancelling() and copy_context() == self._context and (task := self._next()) is not None:
            self._jobs[job] = task
            end = await self._handle(task)
            if task not in self._tasks:
                return  # the run was over before
            self._jobs[job] = None
            self._buffer.end([task.message], end)
            self._remove(task)
            await self._taker.turn()

    def _next(self) -> Task | None:
        """Return a task whose handler is called now."""
        while self._ready and not (self._taker.is_stopped or self._buffer.is_closed):
            task = self._ready.popleft()
            if task.begin():
                return task
        return None

    def _remove(self, task: Task) -> None:
        """Remove a task; the next message with the same key is ready."""
        if (following := self._tasks.remove(task)) is not None:
            self._ready.append(following)
        if len(self._tasks) == self._few:
            self._buffer.changed.set()

    def _end(self, job: asyncio.Task[None]) -> None:
        """See to the message with which a job failed; have others take its place."""
        task = self._jobs.pop(job, None)
        error = None if job.cancelled() else job.exception()
        if task is not None and task in self._tasks:
            # The first error ends the run. The next message with the same key must not overtake the failed one.
            if error is not None or not self._taker.is_stopped:
                self._failure = self._failure or error or _cancelled_by_others(task.message)
            # Over also where it failed, and paused before another call: `_halt` leaves it to the next lines.
            task.end(error)
            self._taker.stop()
            self._halt()
            self._buffer.end([task.message], End.RELEASED)
            self._tasks.remove(task)
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
            if task not in self._tasks:
                return False  # the run was over before
            if self._taker.is_stopped:
                # It withdraws the task, which pauses then.
                asyncio.get_running_loop().call_soon(self._halt)
            return isinstance(failed, Exception) and retries.is_retriable(failed) and task.back_off()

        if retries.attempts != 1 and retries.is_retriable(error):
            try:
                async for attempt in retries.context(begins_again):
                    with attempt:
                        if attempt.num == 1:
                            raise error  # noqa: TRY301 (the attempts begin with it)
                        task.begin()
                        of_partition(self._owner.consumer.counters, *task.coordinates).retried += 1
                        await self._settings.handler(task.message)
            except Exception as failed:  # noqa: BLE001 (as above)
                last = failed
            else:
                return End.COMPLETED
        task.end(last)
        note_message(last, task.message, task.attempts)
        if self._send is None or task not in self._tasks:
            raise last
        await self._send(task.message, last, task.attempts)
        return End.DEAD_LETTERED

    # --- the end -------------------------------------------------------------------------------------------------

    def _withdraw(self, tasks: list[Task]) -> list[Task]:
        """Call no handler for these, nor again, but for those that run; return the others."""
        gone = [task for task in tasks if task.withdraw()]
        # Back to front: none that is withdrawn is ready in between.
        for task in reversed(gone):
            self._remove(task)
        for job, handled in self._jobs.items():
            if handled is not None and handled not in self._tasks:
                job.cancel()  # it pauses between two calls
        return gone

    def _halt(self) -> None:
        """Give back all messages whose handlers do not run: none begins, nor is called again."""
        gone = self._withdraw(self._tasks.of())
        self._ready.clear()
        self._buffer.end([task.message for task in gone if task.attempts], End.RELEASED)
        self._buffer.end([task.message for task in gone if not task.attempts], End.RETURNED)

    def _abandon(self) -> None:
        """Release what still runs."""
        for job in [job for job in self._jobs if job.done()]:
            self._end(job)
        self._halt()  # one may have begun to pause just now
        for task in self._tasks.of():
            self._owner.consumer.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: its handler ignored the cancellation, and is waited for no longer; the message is "
                "delivered again", *task.coordinates, task.offset,
                extra={"event": "handler-ignored-cancellation"},
            )  # fmt: skip
            self._buffer.end([task.message], End.RELEASED)
            self._tasks.remove(task)

    def _forget(self, messages: list[Message]) -> None:
        """Forget messages that go, if no handler runs with them; the handlers that run may end."""
        going = set(map(id, messages))
        gone = self._withdraw([task for task in self._tasks.of() if id(task.message) in going])
        self._buffer.end((task.message for task in gone), None)
        self._fill()


def _cancelled_by_others(message: Message) -> RuntimeError:
    error = RuntimeError(
        "the handler was cancelled, and not by this run: by itself, or because what it awaited was cancelled; the "
        "message is delivered again: catch asyncio.CancelledError where that is expected"
    )
    note_message(error, message, 1)
    return error


@asynccontextmanager
async def letter_sender(settings: AsyncRunSettings, owner: Owner, spec: IdSpec) -> AsyncIterator[Letters]:
    """Give a function that sends a dead letter and waits for its delivery, by a producer that the thread must serve.

    None, and `nothing`, if the settings ask for none. Raises `DeadLetterError` if there is no such topic; the
    function does so for a letter that is not delivered. At the end undelivered letters are dropped.
    """
    if (topic := settings.letters_of(owner.settings.group)) is None:
        yield None, nothing
        return
    producer = await owner.call(DeadLetterProducer, owner.settings, topic)

    async def send(message: Message, error: Exception, attempts: int) -> None:
        delivered = asyncio.get_running_loop().create_future()
        report = partial(owner.answer, delivered)

        def put() -> None:
            verdict = owner.consumer.verdict(message)
            calls = attempts + (0 if verdict is None else verdict.attempt - 1)
            digest = spec.digests(MessageFields([message])).digests[0]
            producer.send(message, error, report, group=owner.settings.group, attempts=calls, digest=digest)

        # In one request: the thread may wait for messages before each.
        await owner.call(put)
        if (problem := (await delivered)[0]) is not None:
            raise undeliverable(message, problem)

    try:
        yield send, producer.poll
    finally:
        if not owner.is_over:
            await owner.call(producer.close)
