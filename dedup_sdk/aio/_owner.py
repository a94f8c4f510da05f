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
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.consumer import CLOSE_IN_CALLBACK, DedupConsumer
from dedup_sdk._kafka.recover.session import WAITING_SHARE
from dedup_sdk.aio._buffer import FEW, MOST_QUEUED, End, MessageBuffer

T = TypeVar("T")
_Call = Callable[..., object]
_Answer = asyncio.Future[tuple[Any, BaseException | None]]

logger = logging.getLogger("dedup_sdk")

QUIET_S: Final = 0.1
"""Seconds that the thread waits in the client for a message, at most, where nothing but a message can come."""
BUSY_S: Final = 0.01
"""The same while the application has messages, whose ends the thread has to pass on."""
_SERVED_S: Final = 0.05
"""The same while messages wait for the application, which wakes the thread when few are left."""

RebalanceCallback = Callable[[Any, list[TopicPartition]], object]
"""A function, which gets the `DedupConsumer`, or a coroutine function, which gets the `AsyncDedupConsumer`."""
_Callback = RebalanceCallback | None
CLOSED: Final = "this AsyncDedupConsumer is closed; make a new one"


def nothing(*_: object) -> None:
    """Do nothing."""


class Owner:
    """The thread, from `start` to `end`.

    ``buffer``: the messages between the thread and the loop. ``deadline_s``: seconds that a step waits for the
    application. ``is_over``: the consumer is closed.
    """

    def __init__(self, consumer: DedupConsumer) -> None:
        self.consumer, self.buffer = consumer, MessageBuffer(self.doubt, self.ask)
        self.settings: Final = consumer._settings  # noqa: SLF001
        """In these the callbacks are guarded, for the producer of dead letters, too."""
        self.deadline_s = self.settings.revoke_deadline_s * WAITING_SHARE
        self._flight = consumer._in_hand  # noqa: SLF001 (no public call only looks, or returns what nobody has seen)
        self._looked_at: object = None
        """What `InHand.doubts` was when the messages here were last looked at."""
        self._requests: deque[tuple[Callable[[], Any], _Answer]] = deque()
        self._wake = Event()
        self._wanted = 0
        """The thread fetches while fewer messages wait for the application; 0 before the first call for one."""
        self._end_error: BaseException | None = None
        """Of the ends that were passed on last: calls for them raise it."""
        self._due_at = 0.0
        """When (monotonic seconds) ends are passed on, few as they are."""
        self._abandoned = self.is_over = False
        self._thread = Thread(target=self._work, name=f"dedup-aio-{self.settings.group}", daemon=False)
        self.event_loop: asyncio.AbstractEventLoop | None = None
        self._ended: _Answer
        self.work_for()

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
                "this AsyncDedupConsumer belongs to another event loop; make one in each process and asyncio.run()"
            )

    def refusal(self) -> BaseException:
        """Return what a call after the end raises: once the error that the application has not got."""
        return self.buffer.errors.take() or RuntimeError(CLOSED)

    def ask(self, count: int = 0) -> None:
        """Have the thread fetch at once, and from here on, while fewer than ``count`` messages wait, or `FEW`."""
        self._wanted = max(count, FEW)
        self._wake.set()

    async def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Run a function on the thread, and return its result, or raise its error.

        If the call is cancelled, the function runs all the same.
        """
        self.start()
        answer: _Answer = asyncio.get_running_loop().create_future()
        self._requests.append((partial(function, *arguments, **named), answer))
        self._wake.set()
        if self.is_over:
            # Nobody will answer it.
            raise self.refusal()
        result, error = await answer
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def doubt(self, error: BaseException) -> None:
        """Have all messages come again if a signal's handler has raised: nobody knows which of them arrived."""
        if is_interruption(error) and not isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._flight.open_again()
            self._wake.set()

    def forget_doubted(self) -> None:
        """Wait for no message that the application has, if all of them are about to come again."""
        if self._flight.doubts is None:
            self.buffer.end(self.buffer.taken(), None)

    async def flush(self) -> None:
        """Return when what has ended is with the consumer; raise the consumer's error about that."""
        await self.call(self._flushed)

    @property
    def recovering(self) -> bool:
        """Whether a partition recovers; from any thread, without waiting."""
        return any(status.state == "recovering" for status in self.consumer.partition_statuses)

    @property
    def has_assignment(self) -> bool:
        """Whether partitions are assigned; from any thread, without waiting."""
        return bool(self.consumer.partition_statuses)

    def work_for(self, forget: _Call = nothing, serve: _Call = nothing) -> None:
        """Work for a run (without arguments: for none).

        ``forget`` is called on the loop with messages that go: no handler may begin with one of them. ``serve`` is
        called by the thread at each turn, to serve another client.
        """
        self.forget, self._serve_other = forget, serve

    def abandon(self) -> None:
        """Close and end the thread: the application has dropped its consumer."""
        self._abandoned = True
        self._wake.set()

    async def end(self) -> None:
        """Have all calls raise, also one that waits; pass on what has ended, close the consumer and end the thread.

        Raises the error that the application has not taken yet, or that of `DedupConsumer.close`.
        A cancellation is raised when that is done, because it cannot be undone. Later calls do nothing.
        """
        self.buffer.close()
        if self.event_loop is None:
            self.is_over = True
            self.consumer.close()
            return
        self.buffer.changed.set()
        self._wake.set()
        errors, cancelled = self.buffer.errors, None
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
        errors = self.buffer.errors
        for step in (self._take_turns, self.buffer.close, self.consumer.close):
            with suppress(BaseException):  # of a logger, which gets the second error
                errors.run(step)
        self.is_over = True
        self.answer(self._ended)
        while self._requests:
            self.answer(self._requests.popleft()[1], None, RuntimeError(CLOSED))
        self.tell(self.buffer.changed.set)
        if errors.kept is not None and self.is_orphan:
            logger.error(
                "closing an AsyncDedupConsumer that was left open failed", exc_info=errors.kept,
                extra={"event": "async-close-failed"},
            )  # fmt: skip

    def _take_turns(self) -> None:
        while not self.buffer.is_closed:
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
                if self.buffer.errors.kept is not None:
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
        buffer, now = self.buffer, time.monotonic()
        if now >= self._due_at or buffer.is_urgent or not len(buffer) or self._flight.doubts is None:
            self._due_at = now + _SERVED_S
            self.pass_on()
        if not self._wanted:
            self._wake.wait(QUIET_S)
            return
        has_room = len(buffer) < self._wanted and buffer.errors.kept is None
        # The group is served all the same.
        fetched = self._fetch() if has_room else self.consumer.consume(0)
        buffer.put(fetched)
        self._look()
        if fetched:
            self.tell(buffer.changed.set)
        if len(buffer) >= self._wanted or (not fetched and (len(buffer) or buffer.errors.kept is not None)):
            self._wake.wait(self._due_at - time.monotonic())

    def _fetch(self) -> list[Message]:
        """Fetch what is there; wait in the client only while the application has nothing to take."""
        # For a run a few at a time: while the thread decides about messages, handlers wait for the interpreter.
        most = MOST_QUEUED if self.forget is nothing else FEW
        messages = self.consumer.consume(min(most, MOST_QUEUED - len(self.buffer)), 0)
        if messages or len(self.buffer) or self._wake.is_set():
            return messages
        first = self.consumer.poll(BUSY_S if self.buffer.waits_for_ends else QUIET_S)
        return [] if first is None else [first]

    def _fail(self, error: BaseException) -> None:
        """Have the application get an error behind what is queued; while another one waits, log it."""
        self.buffer.errors.keep(error)
        self.tell(self.buffer.changed.set)

    def _look(self) -> None:
        """Return what is queued, and forget what comes again, if the consumer may have given messages up.

        By an error, after which it opens its partitions again; by a seek or a rebalance; by leases that are over.
        """
        before, self._looked_at = self._looked_at, self._flight.doubts
        if self._looked_at is None or before != self._looked_at:
            with self._flight.exclusive():
                stays = self._flight.is_delivered if self._looked_at is not None else nothing
                gone = [each for each in self.buffer.taken() if not stays(each)]
            self.buffer.end(gone, None)
            self.tell(self.forget, gone)
            self.give_back()

    def give_back(self, messages: Iterable[Message] | None = None) -> None:
        """Return messages that the application has not seen (None: all queued) to the consumer: they come again.

        Then the consumer knows where the application stands.
        """
        known, shown = list[Message](), list[Message]()
        with self._flight.exclusive():
            for each in self.buffer.take_back() if messages is None else messages:
                if each.error() is None and self._flight.in_flight(each) is not None:
                    known.append(each)
                elif each.error() is not None or self._flight.is_delivered(each):
                    # Events, and what is observed only: both are delivered once.
                    shown.append(each)
            if known:
                self._flight.deliver_again(known)
        self.buffer.put_first(shown)
        self.tell(self.buffer.changed.set)

    def _serve(self) -> None:
        """Answer requests; what has ended is passed on before each."""
        for _ in range(len(self._requests)):  # what an answer leads to is for the next turn
            self.pass_on()
            if not self._requests:
                break  # a rebalance, in one of these calls, has answered them
            call, answer = self._requests.popleft()
            outcome: tuple[Any, BaseException | None]
            try:
                outcome = call(), None
            except BaseException as error:  # noqa: BLE001 (whoever asked gets it)
                outcome = None, error
            try:
                # Before the answer: behind that no handler begins with a message which the call has given up.
                self._look()
            finally:
                self.answer(answer, *outcome)
        self._end_error = None

    def pass_on(self) -> None:
        """Tell the consumer what has ended."""
        ended = self.buffer.take_ended()
        if not any(ended.values()):
            return
        self._end_error = None
        try:
            if completed := ended[End.COMPLETED]:
                self.consumer.complete(*completed)
            if letters := ended[End.DEAD_LETTERED]:
                self.consumer.complete(*letters, dead_lettered=True)
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
            if self.buffer.errors.kept is error:
                self.buffer.errors.take()
            raise error

    def serve_until(self, is_over: Callable[[], bool], seconds: float) -> bool:
        """Answer requests while the thread waits for the loop, inside a call of the client; False: the time is up."""
        until = time.monotonic() + seconds
        while not is_over():
            if time.monotonic() >= until or self.is_orphan:
                return False
            self._wake.wait(BUSY_S)
            self._wake.clear()
            self._serve()
            self.pass_on()
            # A message that fails ends when its dead letter is delivered.
            self._serve_other()
        return True

    def answer(self, future: _Answer, result: object = None, error: BaseException | None = None) -> None:
        """Have the loop set a future to a result and an error, unless its caller was cancelled."""
        self.tell(lambda: None if future.done() else future.set_result((result, error)))

    def tell(self, function: Callable[..., object], *arguments: Any) -> None:
        """Have the loop call a function; nothing happens if the loop is closed."""
        # If it is closed nobody waits, and the next turn ends the thread.
        with suppress(RuntimeError):
            if self.event_loop is not None:
                self.event_loop.call_soon_threadsafe(function, *arguments)


class Rebalances:
    """What happens in rebalances. ``outer``: the consumer that coroutine functions get."""

    def __init__(self, owner: Owner, outer: object) -> None:
        # The client keeps the callbacks: the application may drop its consumer all the same.
        self._owner, self._buffer, self._outer = owner, owner.buffer, ref(outer)
        self._running: asyncio.Task[Any] | None = None
        """The task of the last callback."""

    def refuse_in_callback(self) -> None:
        """Raise `RuntimeError` in a callback that is a coroutine function, which the thread waits for."""
        if self._running is not None and self._running is asyncio.current_task():
            raise RuntimeError(CLOSE_IN_CALLBACK)

    def subscribe(
        self, topics: list[str], on_assign: _Callback, on_revoke: _Callback, on_lost: _Callback
    ) -> None:
        """Subscribe, on the thread, with callbacks of the application."""

        def revoked(inner: Any, partitions: list[TopicPartition]) -> None:
            try:
                self._call(on_revoke, inner, partitions)
            finally:
                self._leave(partitions, self._owner.deadline_s)

        def lost(inner: Any, partitions: list[TopicPartition]) -> None:
            self._leave(partitions, 0.0)
            self._call(on_lost or on_revoke, inner, partitions)

        assigned = partial(self._call, on_assign)
        self._owner.consumer.subscribe(topics, on_assign=assigned, on_revoke=revoked, on_lost=lost)

    def _call(self, callback: _Callback, inner: Any, partitions: list[TopicPartition]) -> None:
        """Call a callback; a coroutine function runs on the loop, and its requests are answered meanwhile.

        If that takes longer than the deadline, it is cancelled: the loop may wait for this thread.
        """
        owner = self._owner

        async def call(function: Any) -> None:
            # Only in here its task is known: a task factory, or a tracing tool, may wrap the coroutine.
            self._running = asyncio.current_task()
            await function(self._outer(), partitions)

        if callback is not None and not runs_on_loop(callback):
            callback(inner, partitions)
        elif callback is not None and owner.event_loop is not None and not owner.is_orphan:
            running = asyncio.run_coroutine_threadsafe(call(callback), owner.event_loop)
            if not owner.serve_until(running.done, owner.deadline_s):
                running.cancel()
                raise TimeoutError(
                    f"a rebalance callback did not end within {owner.deadline_s:.1f} s, and was cancelled; the group "
                    "waits for it: do no slow work in it, or choose a longer revoke_deadline"
                )
            running.result()

    def _leave(self, partitions: list[TopicPartition], wait_s: float) -> None:
        """Drop queued messages of partitions that go, and give the application time to end those that it has."""
        owner, buffer = self._owner, self._buffer
        going = {(each.topic, each.partition) for each in partitions}
        buffer.take_back(going)
        owner.tell(owner.forget, buffer.taken(going))
        owner.serve_until(lambda: buffer.is_closed or not buffer.taken(going), wait_s)
        owner.pass_on()
        left = buffer.end(buffer.taken(going), None)
        for message in left if wait_s and not buffer.is_closed else ():
            owner.consumer.counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: stopped waiting for its handler; the message is delivered again",
                message.topic(), message.partition(), message.offset(),
                extra={"event": "handler-not-ended"},
            )  # fmt: skip
