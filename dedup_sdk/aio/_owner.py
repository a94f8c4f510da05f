"""The thread that owns a consumer, the calls that reach it, and the rebalances that happen on it.

One thread polls, completes, commits and closes; the event loop never waits for it: each call is a request with a
future, and the messages of a fetch come by one wake-up of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from threading import Event, Thread, main_thread
from typing import Any, Final, TypeVar
from weakref import ref

from confluent_kafka import Message, TopicPartition

from dedup_sdk._checks import runs_on_loop
from dedup_sdk._kafka.consumer import CLOSE_IN_CALLBACK, DedupConsumer
from dedup_sdk._observe import Counters
from dedup_sdk.aio._buffer import MOST_QUEUED, End, MessageBuffer

T = TypeVar("T")
_Answer = asyncio.Future[tuple[Any, BaseException | None]]
_offset: Final[Callable[[Any], Any]] = Message.offset

logger = logging.getLogger("dedup_sdk")

QUIET_S: Final = 0.1
"""Seconds that the thread waits in the client for a message, at most, where nothing but a message can come."""
BUSY_S: Final = 0.01
"""The same while the application has messages, whose ends the thread has to pass on."""
_SERVED_S: Final = 0.05
"""The same while messages wait for the application, which wakes the thread when few are left."""
_FEW: Final = 100
"""So many messages are fetched at a time while others wait for the application."""

RebalanceCallback = Callable[[Any, list[TopicPartition]], object]
"""A function, which gets the `DedupConsumer`, or a coroutine function, which gets the `AsyncDedupConsumer`."""
_Callback = RebalanceCallback | None
CLOSED: Final = "this AsyncDedupConsumer is closed; make a new one"


def _nothing(*_: object) -> None:
    """Do nothing."""


class Owner:
    """The thread, from `start` to `end`.

    ``deadline_s``: seconds that a step waits for the application. ``is_closing``: no rebalance waits for it any more.
    ``is_over``: the consumer is closed.
    """

    def __init__(
        self, consumer: DedupConsumer, buffer: MessageBuffer, *, deadline_s: float, name: str
    ) -> None:
        self._consumer, self._buffer, self.deadline_s = consumer, buffer, deadline_s
        self._flight = consumer._in_hand  # noqa: SLF001 (no public call only looks, or returns what nobody has seen)
        self._looked_at: object = None
        """What `InHand.doubts` was when the messages here were last looked at."""
        self._requests: deque[tuple[Callable[[], Any], _Answer]] = deque()
        self._wake = Event()
        self._asks = False
        """Whether messages are asked for, from the first call for one on."""
        self._end_error: BaseException | None = None
        """Of the ends that were passed on last: calls for them raise it."""
        self._due_at = 0.0
        """When (monotonic seconds) ends are passed on, few as they are, and the group is served."""
        self._ends = self._abandoned = self.is_closing = self.is_over = False
        self._thread = Thread(target=self._work, name=name, daemon=False)
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self._ended: _Answer
        self._serve_other: Callable[[], object] = _nothing
        self._withdraw: Callable[[list[Message]], object] = _nothing

    # --- the loop's side -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread, or check that the caller's loop is the one that it was started for."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "AsyncDedupConsumer needs a running event loop of asyncio (or uvloop); with trio, use DedupConsumer in "
                "a thread"
            ) from None
        if self.is_over:
            raise self.refusal()
        if self.event_loop is None:
            self.event_loop, self._ended = loop, loop.create_future()
            self._thread.start()
        elif self.event_loop is not loop:
            raise RuntimeError(
                "this AsyncDedupConsumer belongs to another event loop; make one for each call of asyncio.run(), and "
                "in each process"
            )

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
        self.start()
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._requests.append((partial(function, *arguments), answer))
        self._wake.set()
        if self.is_over:
            # Nobody will answer it.
            raise self.refusal()
        result, error = await answer
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    async def flush(self) -> None:
        """Return when what has ended is with the consumer; raise the consumer's error about that."""
        await self.call(self._flushed)

    @property
    def counters(self) -> Counters:
        """The totals of the consumer."""
        return self._consumer.counters

    @property
    def recovering(self) -> bool:
        """Whether a partition recovers; from any thread, without waiting."""
        return any(status.state == "recovering" for status in self._consumer.partition_statuses)

    @property
    def has_assignment(self) -> bool:
        """Whether partitions are assigned; from any thread, without waiting."""
        return bool(self._consumer.partition_statuses)

    def serve_by(self, serve: Callable[[], object] = _nothing) -> None:
        """Have the thread call a function at each turn, e.g. to serve another client."""
        self._serve_other = serve

    def withdraw_by(self, withdraw: Callable[[list[Message]], object] = _nothing) -> None:
        """Set who is told, on the loop, which messages go, so that no handler begins with one."""
        self._withdraw = withdraw

    def abandon(self) -> None:
        """Close and end the thread: the application has dropped its consumer."""
        self._abandoned = True
        self._wake.set()

    async def end(self) -> None:
        """Pass on what has ended, close the consumer and end the thread.

        Raises the error that the application has not taken yet, or that of `DedupConsumer.close`.
        A cancellation is raised when that is done, because it cannot be undone. Later calls do nothing.
        """
        if self.event_loop is None:
            self.is_over = True
            self._consumer.close()
            return
        self._ends = True
        self._wake.set()
        errors, cancelled = self._buffer.errors, None
        while not self._ended.done() and self._thread.is_alive():
            try:
                await asyncio.wait([self._ended])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from errors.take()
        errors.raise_kept()

    # --- the thread ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Take turns; whatever ends them, the consumer is closed, and the application gets the first error."""
        errors = self._buffer.errors
        for step in (self._take_turns, self._close):
            with suppress(BaseException):  # of a logger, which gets the second error
                errors.run(step)
        self.is_over = True
        self.answer(self._ended)
        while self._requests:
            self.answer(self._requests.popleft()[1], None, RuntimeError(CLOSED))
        self.tell(self._buffer.changed.set)
        if errors.kept is not None and self.is_orphan:
            logger.error(
                "closing an AsyncDedupConsumer that was left open failed",
                exc_info=errors.kept,
                extra={"event": "async-close-failed"},
            )

    def _close(self) -> None:
        self.is_closing = True
        self._buffer.close()
        self._consumer.close()

    def _take_turns(self) -> None:
        while not self._ends:
            if self.is_orphan:
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
        self.pass_on()

    @property
    def is_orphan(self) -> bool:
        """Whether nobody can call any more."""
        loop = self.event_loop
        is_over = loop is None or loop.is_closed() or not (loop.is_running() or main_thread().is_alive())
        return self._abandoned or is_over

    def _turn(self) -> None:
        """Answer requests, pass on what has ended, and fetch messages; wait for something to do, but not for long."""
        self._wake.clear()
        self._serve()
        buffer, now = self._buffer, time.monotonic()
        is_due = now >= self._due_at
        if is_due or buffer.is_urgent or not len(buffer):
            self._due_at = now + _SERVED_S
            self.pass_on()
        if not self._asks:
            self._wake.wait(QUIET_S)
            return
        fetched = list[Message]()
        if len(buffer) < MOST_QUEUED and buffer.errors.kept is None:
            fetched = self._fetch()
            buffer.put(fetched)
        elif is_due:
            # The group is served all the same.
            self._consumer.consume(0)
        self._look()
        if fetched:
            self.tell(buffer.changed.set)
        elif len(buffer) or buffer.errors.kept is not None:
            self._wake.wait(_SERVED_S)

    def _fetch(self) -> list[Message]:
        """Fetch what is there; wait in the client only while the application has nothing to take."""
        # Few at a time while nobody waits for them: meanwhile the loop does not get the interpreter.
        messages = self._consumer.consume(_FEW if len(self._buffer) else MOST_QUEUED, 0)
        if messages or len(self._buffer) or self._wake.is_set():
            return messages
        first = self._consumer.poll(BUSY_S if self._buffer.waits_for_ends else QUIET_S)
        return [] if first is None else [first]

    def _fail(self, error: BaseException) -> None:
        """Have the application get an error behind what is queued; while another one waits, log it."""
        self._buffer.errors.keep(error)
        self.tell(self._buffer.changed.set)

    def _look(self) -> None:
        """Return what is queued, and forget what comes again, if the consumer may have given messages up.

        By an error, after which it opens its partitions again; by a seek or a rebalance; by leases that are over.
        """
        before, self._looked_at = self._looked_at, self._flight.doubts
        if self._looked_at is None or before != self._looked_at:
            with self._flight.exclusive():
                stays = self._flight.is_delivered if self._looked_at is not None else _nothing
                gone = [each for each in self._buffer.taken() if not stays(each)]
            self._buffer.end(gone, None)
            self.withdraw(gone)
            self.give_back()

    def give_back(self, messages: Iterable[Message] | None = None) -> None:
        """Return messages that the application has not seen (None: all queued) to the consumer: they come again.

        Then the consumer knows where the application stands.
        """
        known, shown = list[Message](), list[Message]()
        with self._flight.exclusive():
            for each in self._buffer.take_back() if messages is None else messages:
                if each.error() is None and self._flight.in_flight(each) is not None:
                    known.append(each)
                elif each.error() is not None or self._flight.is_delivered(each):
                    # Events, and what is observed only: both are delivered once.
                    shown.append(each)
            if known:
                self._flight.deliver_again(known)
        self._buffer.put_first(shown)

    def _serve(self) -> None:
        """Answer requests; what has ended is passed on before each."""
        for _ in range(len(self._requests)):  # what an answer leads to is for the next turn
            self.pass_on()
            call, answer = self._requests.popleft()
            try:
                self.answer(answer, call())
            except BaseException as error:  # noqa: BLE001 (whoever asked gets it)
                self.answer(answer, None, error)
            self._look()
        self._end_error = None

    def pass_on(self) -> None:
        """Tell the consumer what has ended."""
        ended = self._buffer.take_ended()
        if not any(ended.values()):
            return
        self._end_error = None
        try:
            if completed := ended[End.COMPLETED]:
                # Messages in order are completed together.
                self._consumer.complete(*sorted(completed, key=_offset))
            if letters := ended[End.DEAD_LETTERED]:
                self._consumer.complete(*letters, dead_lettered=True)
            self.give_back(ended[End.RETURNED])
            if released := ended[End.RELEASED]:
                with self._flight.exclusive(), self._flight.ending():
                    again = [each for one in released for each in self._flight.release_quietly(one)]
                    self._flight.deliver_again(again)
        except BaseException as error:  # noqa: BLE001 (the application gets it)
            # The consumer opens its partitions again, and what was not passed on comes again.
            self._end_error = error
            self._fail(error)

    def _flushed(self) -> None:
        if (error := self._end_error) is not None:
            if self._buffer.errors.kept is error:
                self._buffer.errors.take()
            raise error

    def serve_for(self, seconds: float) -> None:
        """Answer requests while the thread waits for the loop, inside a call of the client."""
        self._wake.wait(seconds)
        self._wake.clear()
        self._serve()
        self.pass_on()

    def withdraw(self, messages: list[Message]) -> None:
        """Have no handler begin with these messages, nor again."""
        if messages:
            self.tell(self._withdraw, messages)

    def wake(self, _: object = None) -> None:
        """Have the thread look at once."""
        self._wake.set()

    def answer(self, future: _Answer, result: object = None, error: BaseException | None = None) -> None:
        """Have the loop set a future to a result and an error, unless its caller was cancelled."""

        def answer() -> None:
            if not future.done():
                future.set_result((result, error))

        self.tell(answer)

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function; nothing happens if the loop is closed."""
        # If it is closed nobody waits, and the next turn ends the thread.
        with suppress(RuntimeError):
            if self.event_loop is not None:
                self.event_loop.call_soon_threadsafe(function, *arguments)


class Rebalances:
    """What happens in rebalances."""

    def __init__(self, owner: Owner, buffer: MessageBuffer) -> None:
        self._owner, self._buffer = owner, buffer
        self._running: asyncio.Task[Any] | None = None
        """The task of the last callback."""

    def refuse_in_callback(self) -> None:
        """Raise `RuntimeError` in a callback that is a coroutine function, which the thread waits for."""
        if self._running is not None and self._running is asyncio.current_task():
            raise RuntimeError(CLOSE_IN_CALLBACK)

    def callbacks(
        self, consumer: object, *, on_assign: _Callback, on_revoke: _Callback, on_lost: _Callback
    ) -> dict[str, Any]:
        """Return the callbacks of a subscription; ``consumer`` is what coroutine functions get."""
        # The client keeps them: the application may drop its consumer all the same.
        outer = ref(consumer)

        def call(callback: _Callback, inner: DedupConsumer, partitions: list[TopicPartition]) -> None:
            if runs_on_loop(callback):
                self._run_on_loop(callback, outer(), partitions)
            elif callback is not None:
                callback(inner, partitions)

        def revoked(inner: DedupConsumer, partitions: list[TopicPartition]) -> None:
            try:
                call(on_revoke, inner, partitions)
            finally:
                self._leave(partitions, self._owner.deadline_s)

        def lost(inner: DedupConsumer, partitions: list[TopicPartition]) -> None:
            self._leave(partitions, 0.0)
            call(on_lost or on_revoke, inner, partitions)

        return {"on_assign": partial(call, on_assign), "on_revoke": revoked, "on_lost": lost}

    def _leave(self, partitions: list[TopicPartition], wait_s: float) -> None:
        """Drop queued messages of partitions that go, and give the application time to end those that it has."""
        owner, buffer, until = self._owner, self._buffer, time.monotonic() + wait_s
        going = {(each.topic, each.partition) for each in partitions}
        buffer.take_back(going)
        owner.withdraw(buffer.taken(going))
        while buffer.taken(going) and time.monotonic() < until and not (owner.is_closing or owner.is_orphan):
            owner.serve_for(BUSY_S)
        owner.pass_on()
        left = buffer.end(buffer.taken(going), None)
        for message in left if wait_s and not owner.is_closing else ():
            owner.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: stopped waiting for its handler; the message is delivered again",
                message.topic(), message.partition(), message.offset(),
                extra={"event": "handler-not-ended"},
            )  # fmt: skip

    def _run_on_loop(self, callback: Any, *arguments: Any) -> None:
        """Run a coroutine function on the loop, and answer its requests meanwhile; raise its error.

        A callback that takes longer than the deadline is cancelled: the loop may wait for this thread.
        """
        owner, until = self._owner, time.monotonic() + self._owner.deadline_s
        if owner.event_loop is None or owner.is_orphan:
            return

        async def run() -> None:
            self._running = asyncio.current_task()
            await callback(*arguments)

        running = asyncio.run_coroutine_threadsafe(run(), owner.event_loop)
        running.add_done_callback(owner.wake)
        while not running.done():
            if time.monotonic() >= until or owner.is_orphan:
                running.cancel()
                raise TimeoutError(
                    f"a rebalance callback did not end within {owner.deadline_s:.1f} s, and was cancelled; the group "
                    "waits for it: do no slow work in it, or choose a longer revoke_deadline"
                )
            owner.serve_for(BUSY_S)
        running.result()
