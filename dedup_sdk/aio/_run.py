"""`AsyncDedupConsumer.run`: awaits a handler for each message, and completes, dead-letters or releases the message."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final, Literal

from confluent_kafka import KafkaError, KafkaException, Message

from dedup_sdk._checks import choice, text, unfit_arguments, whole
from dedup_sdk._kafka.fields import MessageFields, note_message
from dedup_sdk._kafka.settings import ClientSettings
from dedup_sdk._masking import shown
from dedup_sdk._runner.dead_letters import DeadLetter, DeadLetterProducer
from dedup_sdk._runner.settings import Retries, is_topic
from dedup_sdk.aio._buffer import Coordinates, End, MessageBuffer, coordinates_of
from dedup_sdk.aio._owner import MOST_QUEUED, Owner
from dedup_sdk.aio._taker import LOOK_S, IdleClock, Taker
from dedup_sdk.errors import ConfigurationError, DeadLetterError
from dedup_sdk.ids import IdSpec

logger = logging.getLogger("dedup_sdk")

AsyncHandler = Callable[[Message], Awaitable[object]]
Order = Literal["key", "partition"] | None
OnError = Literal["raise", "retry", "dead-letter"]


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
        if self.dead_letters is not None:
            text("dead_letters", self.dead_letters)
            if not is_topic(self.dead_letters):
                raise ConfigurationError(
                    f"dead_letters={shown(self.dead_letters)} is not a topic's name; give 1 to 249 letters, digits, "
                    "dots, hyphens and underscores, or leave it out for the default"
                )
        _check_handler(self.handler)


def _check_handler(handler: Any) -> None:
    function = handler
    while isinstance(function, partial):
        function = function.func
    if not callable(function):
        raise ConfigurationError(f"handler={shown(handler)}: give a coroutine function, e.g. run(handle)")
    if not (iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))):  # noqa: B004
        raise ConfigurationError(
            f"handler={shown(handler)} is a plain function, which would stop the event loop: write async def, have it "
            "await asyncio.to_thread(work, message), or use DedupConsumer.run in a thread"
        )
    unfit = unfit_arguments(handler, 1)
    if unfit is not None:
        raise ConfigurationError(
            f"handler={shown(handler)} cannot be called with one message, as its arguments are {unfit}; give a "
            "coroutine function of a message"
        )


class AsyncRunner:
    """One run. All of it happens on the event loop.

    A message of the run waits (its handler was not called), runs, or is over. Messages with one key wait in a queue, of
    which the first is ready or runs.
    """

    def __init__(
        self,
        settings: AsyncRunSettings,
        *,
        taker: Taker,
        buffer: MessageBuffer,
        owner: Owner,
        idle: IdleClock,
        letters: DeadLetters | None,
        deadline_s: float,
    ) -> None:
        self._settings, self._taker, self._buffer, self._owner = settings, taker, buffer, owner
        self._idle, self._letters, self._deadline_s = idle, letters, deadline_s
        self._failure: Exception | None = None
        self._halted = False
        """Whether no further handler may be called."""
        self._ready: asyncio.Queue[Message] = asyncio.Queue()
        self._queues: dict[Hashable, deque[Message]] = {}
        self._waiting: dict[int, Message] = {}
        self._running: dict[int, Message] = {}
        self._workers: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Handle messages until `Taker.is_stopped`, an error, or the end of ``idle``; then let running handlers end."""
        self._owner.on_revoke = self._withdraw
        try:
            await self._serve()
            self._halted = True
            if self._failure is None:
                await self._until_none_runs()
            else:
                await self._cancel()
        except BaseException:
            self._halted = True
            await self._cancel()
            raise
        finally:
            self._owner.on_revoke = None
            for worker in self._workers:
                worker.cancel()
            self._buffer.end([*self._waiting.values(), *self._running.values()], End.RELEASED)
        await self._owner.call(_nothing)
        if self._failure is not None:
            raise self._failure

    async def _serve(self) -> None:
        most = MOST_QUEUED + self._settings.concurrency
        while not self._taker.is_stopped and self._failure is None:
            room = most - len(self._waiting) - len(self._running)
            if room <= 0:
                self._changed.clear()
                await self._changed.wait()
                continue
            taken = await self._taker.take(room, LOOK_S, ends_by_next=False)
            for message in self._taker.without_events(taken):
                self._accept(message)
            if taken or self._running or self._waiting:
                self._idle.heard()
            elif await self._idle.is_up():
                return

    def _accept(self, message: Message) -> None:
        self._waiting[id(message)] = message
        key = self._key_of(message)
        if key is not None:
            queue = self._queues.setdefault(key, deque())
            queue.append(message)
            if len(queue) > 1:
                return
        self._start(message)

    def _key_of(self, message: Message) -> Hashable:
        if self._settings.order is None:
            return None
        if self._settings.order == "partition":
            return coordinates_of(message)
        key = message.key()
        return None if key is None else (coordinates_of(message), key)

    def _start(self, message: Message) -> None:
        self._ready.put_nowait(message)
        if len(self._workers) < min(self._settings.concurrency, len(self._running) + self._ready.qsize()):
            worker = asyncio.create_task(self._work(), name="dedup-handler")
            self._workers.add(worker)

    # --- workers -------------------------------------------------------------------------------------------------

    @property
    def _begins(self) -> bool:
        """Whether further handlers may be called."""
        return not self._halted

    async def _work(self) -> None:
        while self._begins:
            message = await self._ready.get()
            if self._waiting.pop(id(message), None) is not None:
                if not self._begins:
                    self._waiting[id(message)] = message
                    return
                self._running[id(message)] = message
                try:
                    await self._handle(message)
                finally:
                    self._running.pop(id(message), None)
                    self._changed.set()
            self._start_next(message)

    def _start_next(self, message: Message) -> None:
        key = self._key_of(message)
        queue = None if key is None else self._queues.get(key)
        # After a failure the next message with the same key must not overtake the failed one.
        if queue and queue[0] is message and not self._halted:
            queue.popleft()
            if queue:
                self._start(queue[0])
            elif key is not None:
                del self._queues[key]

    async def _handle(self, message: Message) -> None:
        attempts = _Attempts()
        try:
            await self._call(message, attempts)
        except asyncio.CancelledError:
            self._buffer.end([message], End.RELEASED)
            if self._halted:
                raise
            # The handler cancelled itself, and not this run.
            logger.warning(
                "%s[%d]@%d: its handler was cancelled; the message is delivered again",
                message.topic(), message.partition(), message.offset(),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 (the run raises it)
            await self._handle_failure(message, error, attempts.made)
        else:
            self._buffer.end([message])

    async def _call(self, message: Message, attempts: _Attempts) -> None:
        handler, retries = self._settings.handler, self._settings.retries
        attempts.made += 1
        try:
            await handler(message)
        except Exception as error:
            if retries.attempts == 1 or not retries.is_retriable(error):
                raise
            await self._call_again(message, attempts, error)

    async def _call_again(self, message: Message, attempts: _Attempts, first: Exception) -> None:
        handler, retries = self._settings.handler, self._settings.retries
        async for attempt in retries.context(self._retries):
            with attempt:
                if attempt.num == 1:
                    raise first
                attempts.made += 1
                self._owner.counters.retried += 1
                await handler(message)

    def _retries(self, error: Exception) -> bool:
        return not self._halted and self._settings.retries.is_retriable(error)

    async def _handle_failure(self, message: Message, error: Exception, attempts: int) -> None:
        note_message(error, message, attempts)
        if self._letters is None:
            self._fail(message, error)
            return
        try:
            await self._letters.send(message, error, attempts)
        except DeadLetterError as undeliverable:
            self._fail(message, undeliverable)
        except asyncio.CancelledError:
            self._buffer.end([message], End.RELEASED)
            raise
        else:
            self._buffer.end([message], End.DEAD_LETTERED)

    def _fail(self, message: Message, error: Exception) -> None:
        """End the run with an error; the first error wins."""
        self._halted = True
        self._failure = self._failure or error
        self._buffer.end([message], End.RELEASED)
        self._taker.interrupt()

    # --- the end -------------------------------------------------------------------------------------------------

    async def _until_none_runs(self) -> None:
        while self._running:
            self._changed.clear()
            await self._changed.wait()

    async def _cancel(self) -> None:
        """Cancel the running handlers, and wait for them until the deadline."""
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers, timeout=self._deadline_s)
        for message in self._running.values():
            logger.warning(
                "%s[%d]@%d: its handler ignored the cancellation, and is waited for no longer; the message is "
                "delivered again", message.topic(), message.partition(), message.offset(),
            )  # fmt: skip

    def _withdraw(self, partitions: Collection[Coordinates]) -> None:
        """Forget the waiting messages of partitions that go; the handlers that run may end."""
        gone = [each for each in self._waiting.values() if coordinates_of(each) in partitions]
        for message in gone:
            del self._waiting[id(message)]
        self._buffer.give_up(gone)


class _Attempts:
    made = 0


class DeadLetters:
    """Sends dead letters by a producer that lives on the owner's thread."""

    def __init__(self, owner: Owner, settings: ClientSettings, topic: str, spec: IdSpec) -> None:
        self._owner, self._settings, self._topic, self._spec = owner, settings, topic, spec
        self._producer: DeadLetterProducer | None = None

    async def open(self) -> None:
        """Connect; raises `DeadLetterError` if there is no such topic."""
        self._producer = await self._owner.call(DeadLetterProducer, self._settings, self._topic)
        self._owner.on_turn = self._producer.poll

    async def close(self) -> None:
        """Drop undelivered letters."""
        if self._producer is not None:
            self._owner.on_turn = _nothing
            await self._owner.call(self._producer.close)

    async def send(self, message: Message, error: Exception, attempts: int) -> None:
        """Send the dead letter of a message, and wait for its delivery; raises `DeadLetterError`."""
        loop = asyncio.get_running_loop()
        delivered: asyncio.Future[KafkaError | None] = loop.create_future()

        def report(problem: KafkaError | None) -> None:
            self._owner.tell(_answer, delivered, problem)

        problem = await self._owner.call(self._send, message, error, attempts, report)
        if problem is None:
            problem = await delivered
        if problem is not None:
            raise DeadLetterError(
                f"the dead letter of {message.topic()}[{message.partition()}]@{message.offset()} was not delivered: "
                f"{problem}; the message is delivered again: check that the dead-letter topic accepts it "
                "(max.message.bytes, access rights), then start again"
            )

    def _send(
        self, message: Message, error: Exception, attempts: int, report: Callable[[KafkaError | None], None]
    ) -> KafkaError | None:
        if self._producer is None:
            raise AssertionError("a dead letter was sent before open()")
        if message.topic() == self._topic:
            # Else the letter would be read from this topic, and fail again, for ever.
            return _SAME_TOPIC
        verdict = self._owner.verdict(message)
        letter = DeadLetter.of(
            message,
            error,
            group=self._settings.group,
            attempts=attempts if verdict is None else verdict.attempt - 1 + attempts,
            digest=self._spec.digests(MessageFields([message])).digests[0],
        )
        logger.warning(
            "%s[%d]@%d: the handler failed (attempts: %d), sending a dead letter: %s",
            letter.topic, letter.partition, letter.offset, letter.attempts, letter.error_type,
        )  # fmt: skip
        try:
            self._producer.send(message, letter, report)
        except KafkaException as refused:
            return KafkaError(refused.args[0].code(), refused.args[0].str())
        return None


_SAME_TOPIC: Final = KafkaError(
    KafkaError._INVALID_ARG,  # noqa: SLF001 (public)
    "the message is already in the dead-letter topic",
)


def _answer(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _nothing() -> None:
    """Do nothing: the answer says that all before it is done."""
