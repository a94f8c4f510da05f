"""The thread that owns a consumer, and the calls that reach it.

One thread polls, completes, commits and closes; the event loop never waits for it: each call is a request with a
future, and the messages of a fetch come by one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection
from threading import Event, Thread, main_thread
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Message

from dedup_sdk._kafka.consumer import DedupConsumer
from dedup_sdk._observe import Counters, PartitionStatus
from dedup_sdk._record import Verdict
from dedup_sdk.aio._buffer import Coordinates, End, Failure, MessageBuffer

T = TypeVar("T")

logger = logging.getLogger("dedup_sdk")

MOST_QUEUED: Final = 1_000
"""With so many messages queued the thread fetches no more."""
QUIET_S: Final = 0.1
"""Seconds that the thread waits in the client for a message, at most, while the application has none."""
BUSY_S: Final = 0.02
"""The same while the application has messages, whose ends the thread has to pass on."""

CLOSED: Final = "this AsyncDedupConsumer is closed; make a new one"


class _Request(NamedTuple):
    call: Callable[[], Any]
    future: asyncio.Future[Any]


class Owner:
    """The thread, from `start` to `end`.

    ``deadline_s``: seconds that a rebalance may wait for the application.
    """

    def __init__(
        self, consumer: DedupConsumer, buffer: MessageBuffer, *, deadline_s: float, name: str
    ) -> None:
        self._consumer, self._buffer, self._deadline_s = consumer, buffer, deadline_s
        self._requests: deque[_Request] = deque()
        self._wake = Event()
        self._asks = False
        """Whether messages are asked for: until the first call for one, the client is not polled."""
        self._failed = False
        self._closing: asyncio.Future[None] | None = None
        self._closes = self._over = False
        self._thread = Thread(target=self._work, name=name, daemon=False)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notify: Callable[[], None] = _nothing
        self.on_turn: Callable[[], None] = _nothing
        """Called by the thread at each turn, e.g. to serve another client."""
        self.on_revoke: Callable[[Collection[Coordinates]], None] | None = None
        """Called on the loop with partitions that are revoked, before messages that are out are waited for."""

    # --- the loop's side -----------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """Whether the thread was started."""
        return self._loop is not None

    def start(self, notify: Callable[[], None]) -> None:
        """Start the thread, or check that the caller's loop is the one that it was started for."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "AsyncDedupConsumer needs a running event loop of asyncio (or uvloop); with trio, use DedupConsumer in "
                "a thread"
            ) from None
        if self._loop is None:
            self._loop, self._notify = loop, notify
            self._thread.start()
        elif self._loop is not loop:
            raise RuntimeError(
                "this AsyncDedupConsumer belongs to another event loop; make one for each call of asyncio.run()"
            )

    def ask(self) -> None:
        """Have the thread fetch from here on, and at once."""
        self._asks, self._failed = True, False
        self._wake.set()

    def wake(self) -> None:
        """Have the thread look at once for what has ended."""
        self._wake.set()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function on the thread, and return its result, or raise its error.

        If the call is cancelled, the function may run all the same.
        """
        if self._loop is None:
            raise AssertionError("a request before start()")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._requests.append(_Request(lambda: function(*arguments), future))
        self._wake.set()
        if self._over:
            # Nobody will answer it.
            raise RuntimeError(CLOSED)
        result: T = await future
        return result

    @property
    def counters(self) -> Counters:
        """The totals of the consumer."""
        return self._consumer.counters

    def verdict(self, message: Message) -> Verdict | None:
        """Return the verdict of a message; on the thread."""
        return self._consumer.verdict(message)

    def statuses(self) -> list[PartitionStatus]:
        """Return the statuses of the partitions; on the thread."""
        return self._consumer.partition_statuses

    async def end(self) -> None:
        """Pass on what has ended, close the consumer and end the thread; raise the errors of `DedupConsumer.close`.

        A cancellation is raised when that is done, because it cannot be undone.
        """
        if self._loop is None:
            self._consumer.close()
            return
        if self._closing is None:
            self._closing = self._loop.create_future()
            self._wake.set()
        cancelled: asyncio.CancelledError | None = None
        while not self._closing.done():
            try:
                await asyncio.shield(self._closing)
            except asyncio.CancelledError as error:
                cancelled = error
            except Exception:  # noqa: BLE001 (raised below)
                break
        if cancelled is not None:
            # The error of the end, if there is one, is not the caller's any more.
            if (failed := self._closing.exception()) is not None:
                logger.error("closing failed, after a cancellation", exc_info=failed)
            raise cancelled
        self._closing.result()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        error: BaseException | None = None
        try:
            while self._closing is None:
                if self._is_orphan:
                    logger.warning(
                        "an AsyncDedupConsumer was left open, and its event loop is over: it is closed now; use "
                        "async with, or await close()"
                    )
                    break
                self._turn()
            self._serve()
            # Nobody ends these any more: no rebalance has to wait for them.
            self._closes = True
            self._consumer.close()
        except BaseException as raised:  # noqa: BLE001 (whoever closes gets it)
            error = raised
        if self._closing is not None:
            self._answer(self._closing, None, error)
        elif error is not None:
            logger.error("closing an AsyncDedupConsumer that was left open failed", exc_info=error)
        self._over = True
        while self._requests:
            self._answer(self._requests.popleft().future, None, RuntimeError(CLOSED))

    @property
    def _is_orphan(self) -> bool:
        loop = self._loop
        return loop is None or loop.is_closed() or not (loop.is_running() or main_thread().is_alive())

    def _turn(self) -> None:
        self._wake.clear()
        self._serve()
        self.on_turn()
        buffer = self._buffer
        if not self._asks or self._failed:
            self._wake.wait(QUIET_S)
            return
        try:
            if len(buffer.queued) >= MOST_QUEUED:
                self._consumer.consume(0)
                self._wake.wait(QUIET_S)
                return
            # Messages that are there are taken at once; the client is waited in only while the application has none.
            wait_s = 0.0 if buffer.queued or self._wake.is_set() else QUIET_S if buffer.is_idle else BUSY_S
            messages = self._fetch(wait_s)
        except BaseException as error:  # noqa: BLE001 (the application gets it)
            self._failed = True
            messages = [Failure(error)]
        if messages:
            buffer.put(messages)
            self.tell(self._notify)
        elif buffer.queued:
            self._wake.wait(BUSY_S)

    def _fetch(self, wait_s: float) -> list[Any]:
        first = self._consumer.poll(wait_s)
        if first is None:
            return []
        try:
            return [first, *self._consumer.consume(MOST_QUEUED - 1, 0)]
        except BaseException as error:  # noqa: BLE001 (behind the message that is here)
            self._failed = True
            return [first, Failure(error)]

    def _serve(self) -> None:
        """Pass on what has ended; answer requests."""
        while True:
            self._pass_on()
            if not self._requests:
                return
            call, future = self._requests.popleft()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 (whoever asked gets it)
                self._answer(future, None, error)
            else:
                self._answer(future, result, None)

    def _pass_on(self) -> None:
        buffer = self._buffer
        try:
            if completed := buffer.take_completed():
                self._consumer.complete(*completed)
            for message, end in buffer.take_others():
                if end is End.RELEASED:
                    self._consumer.release(message)
                else:
                    self._consumer.complete(message, dead_lettered=True)
        except Exception as error:  # noqa: BLE001 (the application gets it)
            buffer.put([Failure(error)])
            self.tell(self._notify)

    def _answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self.tell(_settle, future, result, error)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function; nothing happens if the loop is closed."""
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                # The loop is closed: nobody waits, and the next turn ends the thread.
                return

    # --- rebalances, on the thread, inside a call of the client ----------------------------------------------------

    def wait_for(self, partitions: Collection[Coordinates]) -> None:
        """Drop queued messages of partitions that go; give the application time to end those that are out."""
        buffer, until = self._buffer, time.monotonic() + self._deadline_s
        buffer.drop(partitions)
        if self.on_revoke is not None:
            self.tell(self.on_revoke, partitions)
        while (left := buffer.out_of(partitions)) and not self._closes and time.monotonic() < until:
            if self._is_orphan:
                break
            self._wake.wait(BUSY_S)
            self._wake.clear()
            self._serve()
        self._pass_on()
        buffer.give_up(left)
        for message in () if self._closes else left:
            logger.warning(
                "%s[%d]@%d: stopped waiting for its handler; the message is delivered again",
                message.topic(), message.partition(), message.offset(),
            )  # fmt: skip

    def run_on_loop(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Run a coroutine function on the loop, and answer its requests meanwhile; raise its error.

        A callback that takes longer than the deadline is cancelled: the loop may wait for this thread.
        """
        if self._loop is None or self._is_orphan:
            return

        async def run() -> None:
            await callback(*arguments)

        running = asyncio.run_coroutine_threadsafe(run(), self._loop)
        running.add_done_callback(lambda _: self._wake.set())
        until = time.monotonic() + self._deadline_s
        while not running.done():
            if time.monotonic() >= until or self._is_orphan:
                running.cancel()
                raise TimeoutError(
                    f"a rebalance callback did not end within {self._deadline_s:.0f} s, and was cancelled; the group "
                    "waits for it: do no slow work in it, or choose a longer revoke_deadline"
                )
            self._wake.wait(BUSY_S)
            self._wake.clear()
            self._serve()
        running.result()


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        future.set_exception(RuntimeError(f"{type(error).__name__} in a call of the consumer"))
    else:
        future.set_exception(error)


def _nothing() -> None:
    """Do nothing."""
