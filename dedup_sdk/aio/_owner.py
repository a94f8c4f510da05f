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
from contextlib import suppress
from inspect import iscoroutinefunction
from threading import Event, Thread, main_thread
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import Message

from dedup_sdk._kafka.consumer import CLOSE_IN_CALLBACK, DedupConsumer
from dedup_sdk._observe import Counters
from dedup_sdk._record import Verdict
from dedup_sdk.aio._buffer import MOST_QUEUED, Coordinates, End, MessageBuffer

T = TypeVar("T")

logger = logging.getLogger("dedup_sdk")

QUIET_S: Final = 0.1
"""Seconds that the thread waits in the client for a message, at most, where nothing but a message can come."""
BUSY_S: Final = 0.01
"""The same while the application has messages, whose ends the thread has to pass on."""

_SERVED_S: Final = 0.05
"""The same while messages wait for the application, which wakes the thread when few are left."""
_FEW: Final = 100
"""So many messages are fetched at a time while others wait for the application."""

CLOSED: Final = "this AsyncDedupConsumer is closed; make a new one"


class _Request(NamedTuple):
    call: Callable[[], Any]
    future: asyncio.Future[Any]


class Owner:
    """The thread, from `start` to `end`.

    ``deadline_s``: seconds that a rebalance may wait for the application. ``prunes``: whether queued messages that the
    consumer does not hold any more are dropped. ``leases``: whether it may cease to hold one without a step of its own.
    """

    def __init__(
        self,
        consumer: DedupConsumer,
        buffer: MessageBuffer,
        *,
        deadline_s: float,
        prunes: bool,
        leases: bool,
        name: str,
    ) -> None:
        self._consumer, self._buffer, self._deadline_s = consumer, buffer, deadline_s
        self._prunes, self._leases = prunes, leases
        self._looked_at: object = None
        """What `InHand.doubts` was when the messages here were last looked at."""
        self._requests: deque[_Request] = deque()
        self._wake = Event()
        self._asks = False
        """Whether messages are asked for, from the first call for one on."""
        self._end_error: BaseException | None = None
        """Of the last ends that were passed on; whether a call for them has raised it."""
        self._end_told = False
        self._passed_on_at = self._served_at = 0.0
        """When (monotonic seconds) ends were passed on last, and when the client was called last."""
        self._closing: asyncio.Future[None] | None = None
        self._closes = self._over = self._abandoned = False
        self._thread = Thread(target=self._work, name=name, daemon=False)
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._notify: Callable[[], None] = _nothing
        self._serve_other: Callable[[], None] = _nothing
        self._withdraw: Callable[[list[Message]], None] | None = None
        self.assigns = False
        """Whether a callback runs that may set offsets by assigning."""
        self._callback: asyncio.Task[Any] | None = None
        """The task of the last callback."""

    # --- the loop's side -----------------------------------------------------------------------------------------

    def start(self, notify: Callable[[], None]) -> None:
        """Start the thread, or check that the caller's loop is the one that it was started for.

        ``notify`` is called on the loop when something was queued.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "AsyncDedupConsumer needs a running event loop of asyncio (or uvloop); with trio, use DedupConsumer in "
                "a thread"
            ) from None
        if self.is_over:
            raise self.refusal()
        if self._event_loop is None:
            self._event_loop, self._notify = loop, notify
            self._thread.start()
        elif self._event_loop is not loop:
            raise RuntimeError(
                "this AsyncDedupConsumer belongs to another event loop; make one for each call of asyncio.run(), and "
                "in each process"
            )

    @property
    def is_over(self) -> bool:
        """Whether the consumer is closed."""
        return self._over

    def refusal(self) -> BaseException:
        """Return what a call after the end raises: once the error that the application has not got."""
        return self._buffer.errors.take() or RuntimeError(CLOSED)

    def ask(self) -> None:
        """Have the thread fetch from here on, and at once."""
        self._asks = True
        self._wake.set()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function on the thread, and return its result, or raise its error.

        If the call is cancelled, the function runs all the same.
        """
        if self._event_loop is None:
            raise AssertionError("a request before start()")
        future: asyncio.Future[Any] = self._event_loop.create_future()
        self._requests.append(_Request(lambda: function(*arguments), future))
        self._wake.set()
        if self._over:
            # Nobody will answer it.
            future.cancel()
            raise self.refusal()
        result: T = await future
        return result

    async def flush(self) -> None:
        """Return when what has ended is with the consumer; raise the consumer's error about that."""
        await self.call(self._flushed)

    @property
    def counters(self) -> Counters:
        """The totals of the consumer."""
        return self._consumer.counters

    def holds(self, message: Message) -> bool:
        """Whether the application may still have a message; on the thread."""
        return self._is_certain and (not self._prunes or self._consumer.holds(message))

    @property
    def _is_certain(self) -> bool:
        """Whether the consumer does not have to open its partitions again, by which all messages come again."""
        return not self._consumer._interruption.happened  # noqa: SLF001 (no public call only looks)

    def _knows(self, message: Message) -> bool:
        """Whether a message that is out is in flight: `holds` would take it back where a shared memory doubts it."""
        in_hand, steps = self._consumer._in_hand, self._consumer._steps  # noqa: SLF001 (as above)
        with in_hand.exclusive(), steps.guarded():
            return self._is_certain and in_hand.is_delivered(message)

    def verdict(self, message: Message) -> Verdict | None:
        """Return the verdict of a message; on the thread."""
        return self._consumer.verdict(message)

    @property
    def recovering(self) -> bool:
        """Whether a partition recovers; from any thread, without waiting."""
        return any(status.state == "recovering" for status in self._consumer.partition_statuses)

    @property
    def has_assignment(self) -> bool:
        """Whether partitions are assigned; from any thread, without waiting."""
        return bool(self._consumer.partition_statuses)

    def serve_by(self, serve: Callable[[], None] | None) -> None:
        """Have the thread call a function at each turn, e.g. to serve another client; None: no more."""
        self._serve_other = serve or _nothing

    def withdraw_by(self, withdraw: Callable[[list[Message]], None] | None) -> None:
        """Set who is told, on the loop, which messages in hand go, so that no handler begins with one; None: nobody."""
        self._withdraw = withdraw

    def abandon(self) -> None:
        """Close and end the thread: the application has dropped its consumer."""
        self._abandoned = True
        self._wake.set()

    def refuse_in_callback(self) -> None:
        """Raise `RuntimeError` in a callback that is a coroutine function, which this thread waits for."""
        if self._callback is not None and self._callback is asyncio.current_task():
            raise RuntimeError(CLOSE_IN_CALLBACK)

    async def end(self) -> None:
        """Pass on what has ended, close the consumer and end the thread.

        Raises the error that the application has not taken yet, or that of `DedupConsumer.close`.
        A cancellation is raised when that is done, because it cannot be undone. Later calls do nothing.
        """
        if self._event_loop is None:
            self._over = True
            self._consumer.close()
            return
        if self._closing is None:
            self._closing = self._event_loop.create_future()
            self._wake.set()
            if self._over or not self._thread.is_alive():
                # It looks no more.
                self._closing.set_result(None)
        errors, cancelled = self._buffer.errors, None
        while not self._closing.done():
            try:
                await asyncio.wait([self._closing])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            # The error of the end, if there is one, is not the caller's any more.
            if (failed := errors.take()) is not None:
                logger.error(
                    "closing failed, after a cancellation",
                    exc_info=failed,
                    extra={"event": "async-close-failed"},
                )
            raise cancelled
        errors.raise_kept()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take turns; whatever ends them, the consumer is closed, and the application gets the first error."""
        errors = self._buffer.errors
        for step in (self._take_turns, self._close):
            with suppress(BaseException):  # of a logger, which gets the second error
                errors.run(step)
        self._over = True
        if self._closing is not None:
            self.answer(self._closing, None)
        while self._requests:
            self.answer(self._requests.popleft().future, None, RuntimeError(CLOSED))
        self.tell(self._notify)
        if errors.kept is not None and self._is_orphan:
            logger.error(
                "closing an AsyncDedupConsumer that was left open failed",
                exc_info=errors.kept,
                extra={"event": "async-close-failed"},
            )

    def _close(self) -> None:
        # Nobody ends messages any more: no rebalance has to wait for that.
        self._closes = True
        self._buffer.close()
        self._consumer.close()

    def _take_turns(self) -> None:
        while self._closing is None:
            if self._is_orphan:
                logger.warning(
                    "an AsyncDedupConsumer was left open, or its event loop is over: it is closed now; use async "
                    "with, or await close()",
                    extra={"event": "async-left-open"},
                )
                break
            try:
                self._turn()
                self._serve_other()
            except BaseException as error:  # noqa: BLE001 (the application gets it)
                if self._buffer.errors.kept is not None:
                    # It may be one that comes with each turn.
                    self._wake.wait(QUIET_S)
                self._fail(error)
        self._serve()

    @property
    def _is_orphan(self) -> bool:
        loop = self._event_loop
        return (
            self._abandoned
            or loop is None
            or loop.is_closed()
            or not (loop.is_running() or main_thread().is_alive())
        )

    def _turn(self) -> None:
        """Pass on what has ended, answer requests, and fetch messages; wait for something to do, but not for long."""
        self._wake.clear()
        self._serve(is_due=not len(self._buffer))
        if not self._asks:
            self._wake.wait(QUIET_S)
            return
        buffer = self._buffer
        if len(buffer) >= MOST_QUEUED + buffer.returning or buffer.errors.kept is not None:
            if not self._wake.wait(QUIET_S) or time.monotonic() >= self._served_at + QUIET_S:
                # The group is served all the same.
                self._served_at = time.monotonic()
                self._consumer.consume(0)
                self._prune()
            return
        messages = self._fetch()
        self._prune()
        if messages:
            self._put(messages)
        elif len(buffer):
            self._wake.wait(_SERVED_S)

    def _fetch(self) -> list[Any]:
        """Fetch what is there; wait in the client only while the application has nothing to take."""
        self._served_at = time.monotonic()
        # Few at a time while nobody waits for them: meanwhile the loop does not get the interpreter.
        messages = self._consumer.consume(_FEW if len(self._buffer) else MOST_QUEUED, 0)
        if messages or len(self._buffer) or self._wake.is_set():
            return messages
        first = self._consumer.poll(BUSY_S if self._buffer.waits_for_ends else QUIET_S)
        return [] if first is None else [first]

    def _fail(self, error: BaseException) -> None:
        """Have the application get an error behind what is queued; while another one waits, log it."""
        self._buffer.fail(error)
        self.tell(self._notify)

    def _prune(self) -> None:
        """Forget what comes again, e.g. after an error, by which the consumer has to open its partitions again."""
        before, self._looked_at = self._looked_at, self._consumer._in_hand.doubts  # noqa: SLF001 (no public call only looks)
        if before == self._looked_at is not None and not self._leases:
            return
        if gone := self._buffer.prune(self.holds, self._knows):
            self._buffer.give_up(gone)
            self.tell_withdrawn(gone)

    def _put(self, items: list[Any]) -> None:
        self._buffer.put(items)
        self.tell(self._notify)

    def _serve(self, *, is_due: bool = True) -> None:
        """Answer requests, and pass on what has ended: much at a time, unless it ``is_due``.

        Whoever waits for the loop on the thread calls it, too.
        """
        for _ in range(len(self._requests)):  # what an answer leads to is for the next turn
            self._pass_on()
            call, future = self._requests.popleft()
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 (whoever asked gets it)
                self.answer(future, None, error)
                self._prune()
            else:
                self.answer(future, result)
        if is_due or self._buffer.ended >= MOST_QUEUED or time.monotonic() >= self._passed_on_at + _SERVED_S:
            self._pass_on()
        if self._end_error is not None and not self._end_told:
            # Nobody waits for these ends.
            self._fail(self._end_error)
        self._end_error = None

    def _pass_on(self) -> None:
        self._passed_on_at = time.monotonic()
        completed, others = self._buffer.take_ended()
        if not (completed or others):
            return
        self._end_error, self._end_told = None, False
        try:
            if completed:
                self._consumer.complete(*completed)
            for message, end in others:
                if end is End.RELEASED:
                    self._consumer.release(message)
                else:
                    self._consumer.complete(message, dead_lettered=True)
        except BaseException as error:  # noqa: BLE001 (the application gets it)
            # The consumer opens its partitions again, and what was not passed on comes again.
            self._end_error = error

    def _flushed(self) -> None:
        if self._end_error is not None:
            self._end_told = True
            raise self._end_error

    def answer(self, future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
        """Have the loop set a future, unless its caller was cancelled."""
        self.tell(_settle, future, result, error)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function; nothing happens if the loop is closed."""
        if self._event_loop is not None:
            try:
                self._event_loop.call_soon_threadsafe(function, *arguments)
            except RuntimeError:
                # The loop is closed: nobody waits, and the next turn ends the thread.
                return

    # --- rebalances, on the thread, inside a call of the client ----------------------------------------------------

    def leave(self, partitions: Collection[Coordinates], *, waits: bool) -> None:
        """Drop queued messages of partitions that go; ``waits``: give the application time to end those in hand."""
        buffer, until = self._buffer, time.monotonic() + (self._deadline_s if waits else 0.0)
        buffer.take_back(partitions)
        buffer.forget(partitions)
        left = buffer.out_of(partitions)
        self.tell_withdrawn(left)
        while (
            (left := buffer.out_of(partitions))
            and not self._closes
            and time.monotonic() < until
            and not self._is_orphan
        ):
            self._wait_and_serve()
        self._pass_on()
        buffer.give_up(left)
        for message in left if waits and not self._closes else ():
            self.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: stopped waiting for its handler; the message is delivered again",
                message.topic(), message.partition(), message.offset(),
                extra={"event": "handler-not-ended"},
            )  # fmt: skip

    def tell_withdrawn(self, messages: list[Message]) -> None:
        """Have no handler begin with these messages, nor again; on the thread."""
        if messages and self._withdraw is not None:
            self.tell(self._withdraw, messages)

    def _wait_and_serve(self) -> None:
        self._wake.wait(BUSY_S)
        self._wake.clear()
        self._serve()

    def call_back(
        self,
        callback: Callable[[Any, Any], object] | None,
        consumers: tuple[object, DedupConsumer],
        partitions: list[Any],
        *,
        assigns: bool = False,
    ) -> None:
        """Run a callback of a rebalance: a coroutine function on the loop, with the first of the consumers.

        ``assigns``: it may set offsets by `DedupConsumer.assign`.
        """
        self.assigns = assigns
        try:
            if runs_on_loop(callback):
                self._run_on_loop(callback, consumers[0], partitions)
            elif callback is not None:
                callback(consumers[1], partitions)
        finally:
            self.assigns = False

    def _run_on_loop(self, callback: Any, *arguments: Any) -> None:
        """Run a coroutine function on the loop, and answer its requests meanwhile; raise its error.

        A callback that takes longer than the deadline is cancelled: the loop may wait for this thread.
        """
        if self._event_loop is None or self._is_orphan:
            return

        async def run() -> None:
            self._callback = asyncio.current_task()
            await callback(*arguments)

        running = asyncio.run_coroutine_threadsafe(run(), self._event_loop)
        running.add_done_callback(lambda _: self._wake.set())
        until = time.monotonic() + self._deadline_s
        while not running.done():
            if time.monotonic() >= until or self._is_orphan:
                running.cancel()
                raise TimeoutError(
                    f"a rebalance callback did not end within {self._deadline_s:.1f} s, and was cancelled; the group "
                    "waits for it: do no slow work in it, or choose a longer revoke_deadline"
                )
            self._wait_and_serve()
        running.result()


def runs_on_loop(function: Any) -> bool:
    """Whether this is a coroutine function, or an object that is called as one."""
    return iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


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
