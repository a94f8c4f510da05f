"""`AsyncDedupConsumer`: a `DedupConsumer` in a thread of its own, for coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from math import inf
from pathlib import Path
from signal import SIG_DFL, SIGINT, SIGTERM, Signals, getsignal, signal
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from weakref import ref

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._checks import whole
from dedup_sdk._kafka.client.fields import note_message
from dedup_sdk._kafka.client.settings import client_settings
from dedup_sdk._kafka.consumer import DEFAULT_RECOVERY, NO_SETTINGS, Completion, DedupConsumer, Mode
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._kafka.deliver.write_policy import Durability
from dedup_sdk._kafka.recover.session import WAITING_SHARE
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._masking import error_shown, shown
from dedup_sdk._metrics import Metrics
from dedup_sdk._observe import Counters, Health, PartitionStatus, VerdictEvent
from dedup_sdk._record import Verdict
from dedup_sdk._runner.settings import Failures, OnError
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._strategy import Strategy
from dedup_sdk.aio._buffer import MOST_QUEUED, Coordinates, End, EndsBy, MessageBuffer, coordinates_of
from dedup_sdk.aio._observers import LoopObservers
from dedup_sdk.aio._owner import CLOSED, Owner
from dedup_sdk.aio._run import AsyncHandler, Order
from dedup_sdk.aio._taker import AnyTask, Iteration, Taker, coroutine_function, running_task
from dedup_sdk.shared._protocol import ClaimStore
from dedup_sdk.shared._settings import Shared

T = TypeVar("T")

logger = logging.getLogger("dedup_sdk")

AnyObserver = Callable[[VerdictEvent], object]
"""A function, which is called on the consumer's thread, or a coroutine function, which is awaited on the event loop."""
RebalanceCallback = Callable[[Any, list[TopicPartition]], object]
"""A function, which gets the `DedupConsumer`, or a coroutine function, which gets the `AsyncDedupConsumer`."""


class AsyncDedupConsumer:
    """A `DedupConsumer` for asyncio: the same arguments, verdicts, counters and errors; methods are awaited.

    It has one thread of its own, which owns the client: it polls for the group also while a handler takes minutes, or
    the event loop stands still. What you cancel is safe: a message that a cancelled call did not return is returned by
    the next one, and a message whose handling was cancelled in the body of ``async for``, in `once` or in `run` is
    delivered again.

    Args:
        config: as for `DedupConsumer`. Its callbacks (``error_cb``, ``stats_cb``, ...) run on the consumer's thread.
        dedup: how duplicates are recognised: `Lookup` or `LastId`.
        store: a folder for the key stores, or a `KeyStore`.
        completion: ``on-next-call``: asking for more messages (`poll`, `consume`, ``async for``) completes those that
            you got before; ``explicit``: only `complete` and `once` do.
        durability: as for `DedupConsumer`, as are ``mode``, ``recovery``, ``shared``, ``idle_timeout`` and
            ``revoke_deadline``.
        observers: functions, called on the consumer's thread, or coroutine functions, awaited on the event loop one
            event after the other. With 10,000 events waiting more are left out, and counted as ``observer_errors``.

    Raises the errors of `DedupConsumer`. Use it in ``async with``, in one event loop. One task at a time asks for
    messages; all other methods may be called by any task.
    """

    def __init__(
        self,
        config: Mapping[str, Any] = NO_SETTINGS,
        /,
        *,
        dedup: Strategy,
        store: str | Path | KeyStore,
        completion: Completion = "on-next-call",
        durability: Durability = "batch",
        mode: Mode = "dedup",
        recovery: Recovery = DEFAULT_RECOVERY,
        shared: Shared | ClaimStore | None = None,
        observers: Iterable[AnyObserver] = (),
        idle_timeout: float | None = None,
        revoke_deadline: float | None = None,
        **client_arguments: Any,
    ) -> None:
        settings = client_settings(config, client_arguments, revoke_deadline=revoke_deadline)
        loop_observers = LoopObservers()
        # The application has not seen what the thread has fetched: only the messages that it took may be completed by
        # its next call.
        by_offsets = not settings.completes_on_next_call
        self._consumer = DedupConsumer(
            config,
            dedup=dedup,
            store=store,
            completion=completion if by_offsets else "explicit",
            durability=durability,
            mode=mode,
            recovery=recovery,
            shared=shared,
            observers=loop_observers.of(observers),
            idle_timeout=idle_timeout,
            revoke_deadline=revoke_deadline,
            **client_arguments,
        )
        # In these the callbacks are guarded, for the producer of dead letters, too.
        self._settings, self._spec = self._consumer._settings, dedup.id  # noqa: SLF001
        self._deadline_s = settings.revoke_deadline_s * WAITING_SHARE
        self._idle_timeout_s = idle_timeout
        self._buffer = MessageBuffer()
        self._owner = Owner(
            self._consumer,
            self._buffer,
            deadline_s=self._deadline_s,
            # What is only observed is delivered also if it is completed.
            prunes=mode != "observe",
            leases=shared is not None,
            name=f"dedup-aio-{settings.group}",
        )
        loop_observers.attach(self._owner)
        self._observers = loop_observers
        ends = EndsBy.OFFSETS if by_offsets else EndsBy.NEXT
        self._taker = Taker(
            self._buffer,
            self._owner,
            EndsBy.CALL if completion == "explicit" else ends,
            writes_each=durability == "record",
        )
        self._closed = False

    # --- messages ------------------------------------------------------------------------------------------------

    @coroutine_function
    def poll(self, timeout: float | None = -1) -> Coroutine[Any, Any, Message | None]:
        """Return the next message that is no duplicate, or an error event; None after ``timeout`` s (-1: no limit).

        With ``completion="on-next-call"`` it first completes the message that you got before, whatever became of its
        handling: `once` tells the consumer exactly. If the call is cancelled, the next one returns its message.
        """
        return self._poll(running_task(), _seconds(timeout))

    async def _poll(self, asker: AnyTask, timeout_s: float) -> Message | None:
        got = await self._consume(asker, 1, timeout_s)
        return got[0] if got else None

    @coroutine_function
    def consume(
        self, num_messages: int = 1, timeout: float | None = -1
    ) -> Coroutine[Any, Any, list[Message]]:
        """Return up to ``num_messages`` messages; fewer (or none) after ``timeout`` seconds (-1: no limit).

        It waits until so many have come, or the time is up; never for more than 1,000, which is what waits here at
        most. With ``completion="on-next-call"`` it first completes the messages that you got before.
        """
        return self._consume(running_task(), num_messages, _seconds(timeout))

    async def _consume(self, asker: AnyTask, num_messages: int, timeout_s: float) -> list[Message]:
        whole("num_messages", num_messages, advice="give the most messages to return, e.g. 100")
        self._begin()
        enough = min(num_messages, MOST_QUEUED)
        return await self._taker.take(num_messages, timeout_s, asker=asker, enough=enough)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until `stop`, or ``idle_timeout`` seconds without one; raise fatal errors, log others.

        The next step completes the message before, unless ``completion="explicit"``. If the body is cancelled, its
        message is delivered again.
        """
        return self._iteration(self._taker.ends)

    def explicit(self) -> AsyncIterator[Message]:
        """Iterate without completing: each message ends by `once`, `complete` or `release`."""
        return self._iteration(EndsBy.CALL)

    def _iteration(self, ends: EndsBy) -> Iteration:
        self._begin()
        return Iteration(self, self._taker, IdleClock(self._owner, self._idle_timeout_s), ends)

    def stop(self) -> None:
        """End the iteration, or `run`, after the messages in hand; if none runs, end the next one when it begins.

        From the event loop's thread; elsewhere by ``loop.call_soon_threadsafe(consumer.stop)``.
        """
        self._taker.stop()

    @contextlib.contextmanager
    def stop_on_signals(self, *signals: Signals) -> Iterator[list[int]]:
        """Call `stop` when SIGTERM or Ctrl-C comes inside the block (or one of ``signals``, if you give some).

        A second Ctrl-C acts as if this block were not there. The block gets a list to which the received signals are
        added. You must call this in the main thread, inside a coroutine.
        """
        loop, caught = asyncio.get_running_loop(), list[int]()
        before = {number: getsignal(number) for number in signals or (SIGTERM, SIGINT)}

        def restore(number: Signals) -> None:
            if number in before:
                loop.remove_signal_handler(number)
                signal(number, before.pop(number))

        def receive(number: Signals) -> None:
            caught.append(number)
            if number is SIGINT:
                restore(number)
            self.stop()

        for number in list(before):
            loop.add_signal_handler(number, receive, number)
        try:
            yield caught
        finally:
            for number in list(before):
                restore(number)

    async def run(
        self,
        handler: AsyncHandler,
        *,
        concurrency: int = 100,
        order: Order = "key",
        on_error: OnError = "raise",
        dead_letters: str | None = None,
        attempts: int | None = 5,
        retry_on: Failures = Exception,
        wait_initial: float = 0.1,
        wait_max: float = 5.0,
    ) -> None:
        """Await ``handler`` for each message, up to ``concurrency`` at a time, until `stop` or ``idle_timeout``.

        A message is completed when its handler returns. SIGTERM acts as `stop` if nothing else handles that signal:
        running handlers end first. If this call is cancelled, or a handler fails for good, running handlers are
        cancelled, and waited for up to half of ``revoke_deadline``; all messages that are not completed come again.

        Args:
            handler: a coroutine function of a message; its result is ignored.
            concurrency: the most handlers that run at a time.
            order: ``key``: messages with the same key and partition are handled one after the other, messages without a
                key in any order. ``partition``: all messages of a partition are. None: any order.
            on_error: the reaction to an exception, as in `DedupConsumer.run`.
            dead_letters: the dead-letter topic, with ``on_error="dead-letter"``. None: the name of the group and
                ``.dead-letters``.
            attempts: the most calls of the handler for one message, the first included; None: no limit.
            retry_on: exception classes, or a function of an exception, that tell which errors may pass.
            wait_initial: seconds before the second call; each further pause is about twice as long.
            wait_max: seconds of the longest pause.

        Raises the error of the handler, `DeadLetterError`, the errors of iteration, and `ConfigurationError` for
        settings that make no sense.
        """
        from dedup_sdk._runner.settings import Retries, calls_at_most
        from dedup_sdk.aio._run import AsyncRunner, AsyncRunSettings, DeadLetters

        topic = dead_letters or f"{self._settings.group}.dead-letters"
        settings = AsyncRunSettings(
            handler=handler,
            concurrency=concurrency,
            order=order,
            on_error=on_error,
            dead_letters=topic if on_error == "dead-letter" else dead_letters,
            retries=Retries(
                attempts=calls_at_most(on_error, attempts),
                on=retry_on,
                wait_initial=wait_initial,
                wait_max=wait_max,
            ),
        )
        self._begin()
        if self._taker.runner is not None:
            raise RuntimeError(
                "run() is at work already: one consumer has one loop; give it more concurrency"
            )
        letters = (
            DeadLetters(self._owner, self._settings, topic, self._spec) if settings.dead_letters else None
        )
        runner = AsyncRunner(
            settings,
            taker=self._taker,
            owner=self._owner,
            idle=IdleClock(self._owner, self._idle_timeout_s),
            letters=letters,
            deadline_s=self._deadline_s,
        )
        self._taker.begin_run()
        try:
            if letters is not None:
                await letters.open()
            with self._stop_on_sigterm():
                await runner.run()
        finally:
            self._taker.end_run()
            if letters is not None:
                await letters.close()

    def _stop_on_sigterm(self) -> AbstractContextManager[object]:
        """Stop at SIGTERM, unless the program handles that signal, or signals come to another thread."""
        is_main = current_thread() is main_thread()
        if is_main and getsignal(SIGTERM) is SIG_DFL:
            return self.stop_on_signals(SIGTERM)
        return contextlib.nullcontext()

    # --- how messages end ----------------------------------------------------------------------------------------

    async def complete(self, *messages: Message, dead_lettered: bool = False) -> None:
        """Mark messages as handled; their IDs are in the store when this call returns.

        If the call is cancelled, they are completed all the same. See `DedupConsumer.complete`.
        """
        _refuse_others(messages)
        self._buffer.end(messages, End.DEAD_LETTERED if dead_lettered else None)
        await self._flush()

    async def release(self, message: Message) -> None:
        """Give a message back: it is delivered again before new ones, also if this call is cancelled."""
        _refuse_others([message])
        self._buffer.end([message], End.RELEASED)
        await self._flush()

    async def holds(self, message: Message) -> bool:
        """Whether you may still handle a message; see `DedupConsumer.holds`."""
        _refuse_others([message])
        return await self._call(self._consumer.holds, message)

    @contextlib.asynccontextmanager
    async def once(self, message: Message) -> AsyncIterator[Message]:
        """Complete a message at the end of the block; if it raises, or is cancelled, release the message.

        A note at the exception names topic, partition, offset and attempt. The block always runs: if messages wait in
        a queue of yours, ask `holds` first.
        """
        _refuse_others([message])
        self._buffer.keep_back(message)
        try:
            yield message
        except BaseException as error:
            # Without waiting: a cancellation must reach its caller at once.
            self._buffer.end([message], End.RELEASED)
            if isinstance(error, Exception):
                note_message(error, message, 1)
            raise
        await self.complete(message)

    # --- offsets -------------------------------------------------------------------------------------------------

    @overload
    def commit(
        self,
        message: Message | None = ...,
        offsets: list[TopicPartition] | None = ...,
        *,
        asynchronous: Literal[False],
    ) -> Coroutine[Any, Any, list[TopicPartition]]: ...
    @overload
    def commit(
        self,
        message: Message | None = ...,
        offsets: list[TopicPartition] | None = ...,
        asynchronous: bool = ...,  # noqa: FBT001 (the plain client's signature)
    ) -> Coroutine[Any, Any, list[TopicPartition] | None]: ...

    @coroutine_function
    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002 (the plain client's signature)
    ) -> Coroutine[Any, Any, list[TopicPartition] | None]:
        """Commit completed messages; see `DedupConsumer.commit`.

        With ``completion="on-next-call"`` it first completes messages that your task got: those up to ``message``, or
        below ``offsets``; without arguments all, but for that of an ``async for``, whose body may fail still. With
        ``enable.auto.commit=false`` all that any task got. Raises `RuntimeError` for a message that another task has.
        """
        return self._commit(running_task(), message, offsets, asynchronous)

    async def _commit(
        self, asker: AnyTask, message: Message | None, offsets: list[TopicPartition] | None, *how: bool
    ) -> list[TopicPartition] | None:
        taker, is_unnamed = self._taker, message is None and offsets is None
        if is_unnamed and taker.ends is EndsBy.OFFSETS and not self._settings.only_stored:
            # Not all that the consumer has delivered: some of that is still queued here.
            offsets = [TopicPartition(*at, end) for at, end in self._buffer.taken_up_to().items()]
        is_left_out = is_unnamed and taker.ends is EndsBy.NEXT and taker.iterates
        try:
            return await self._name(
                asker, message, offsets, lambda *named: self._consumer.commit(*named, *how)
            )
        except KafkaException as error:
            if is_left_out and error.args[0].code() == KafkaError._NO_OFFSET:  # noqa: SLF001
                return []  # nothing came before the message that is still in its body
            raise

    @coroutine_function
    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Complete the messages that your task got up to a message, or below offsets; the next commit includes them."""
        return self._name(running_task(), message, offsets, self._consumer.store_offsets)

    async def _name(
        self,
        asker: AnyTask,
        message: Message | None,
        offsets: list[TopicPartition] | None,
        call: Callable[[Message | None, list[TopicPartition] | None], T],
    ) -> T:
        """Make a call that may name messages: those of the last call for messages, if this task has them, end first."""
        self._complete_last(asker, message, offsets)
        return await self._call(lambda: call(*self._before_queued(message, offsets)))

    def _before_queued(
        self, message: Message | None, offsets: list[TopicPartition] | None
    ) -> tuple[Message | None, list[TopicPartition] | None]:
        """Return what a call names, but for messages behind one that waits here: a released one, which comes again."""
        if self._taker.ends is not EndsBy.OFFSETS or (message is None) == (offsets is None):
            return message, offsets
        if message is not None:
            offset = message.offset()
            if message.error() is not None or offset is None:
                return message, offsets
            offsets = [TopicPartition(*coordinates_of(message), offset + 1)]
        return None, self._up_to_queued(offsets or [])

    def _up_to_queued(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return partitions with their offsets, or with that of their first message that waits here, if it is lower."""
        first = self._buffer.first_queued()
        return [
            TopicPartition(
                each.topic,
                each.partition,
                min(each.offset, first.get((each.topic, each.partition), each.offset)),
            )
            for each in partitions
        ]

    async def committed(
        self,
        partitions: list[TopicPartition],
        timeout: float = 10.0,  # noqa: ASYNC109 (the plain client's signature)
    ) -> list[TopicPartition]:
        """Return the offsets that the group has committed, as the plain client does."""
        return await self._call(lambda: self._consumer.committed(partitions, timeout))

    async def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = 10.0,  # noqa: ASYNC109 (the plain client's signature)
        *,
        cached: bool = False,
    ) -> tuple[int, int]:
        """Return the first offset of a partition's log, and the offset behind its end, as the plain client does."""
        return await self._call(lambda: self._consumer.get_watermark_offsets(partition, timeout, cached))

    async def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return, for each partition, the offset after the last message that you got, or that was hidden."""
        return await self._call(self._positions, partitions)

    def _positions(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        return self._up_to_queued(self._consumer.position(partitions))

    @coroutine_function
    def seek(self, partition: TopicPartition) -> Coroutine[Any, Any, None]:
        """Read a partition from another offset on; see `DedupConsumer.seek`. Messages that wait here are dropped.

        With ``completion="on-next-call"`` it first completes what your task got below that offset.
        """
        return self._seek(running_task(), partition)

    async def _seek(self, asker: AnyTask, partition: TopicPartition) -> None:
        if not isinstance(partition, TopicPartition):
            raise TypeError(f"partition={shown(partition)}: give e.g. TopicPartition('orders', 0, 42)")
        self._complete_last(asker, None, [partition])

        def seek() -> None:
            if partition.offset >= 0 and partition.offset == self._positions([partition])[0].offset:
                # No move: what waits here stays.
                return
            self._move({(partition.topic, partition.partition)}, lambda: self._consumer.seek(partition))

        await self._call(seek)

    # --- which partitions are read -------------------------------------------------------------------------------

    async def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe; a callback is a function, or a coroutine function, of the consumer and the partitions.

        A function is called on the consumer's thread, and gets the `DedupConsumer`; a coroutine function runs on the
        event loop, and gets this consumer, whose methods it may await. It has half of ``revoke_deadline``, then it is
        cancelled. Messages that you have of partitions that are revoked may end meanwhile, up to that deadline.
        """
        owner, me = self._owner, ref(self)

        def assigned(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
            owner.call_back(on_assign, (me(), consumer), partitions, assigns=True)

        def revoked(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
            try:
                owner.call_back(on_revoke, (me(), consumer), partitions)
            finally:
                owner.leave(_coordinates(partitions), waits=True)

        def lost(consumer: DedupConsumer, partitions: list[TopicPartition]) -> None:
            owner.leave(_coordinates(partitions), waits=False)
            owner.call_back(on_lost or on_revoke, (me(), consumer), partitions)

        arguments: dict[str, Any] = {"on_revoke": revoked, "on_lost": lost}
        if on_assign is not None:
            arguments["on_assign"] = assigned
        await self._call(lambda: self._consumer.subscribe(topics, **arguments))

    async def unsubscribe(self) -> None:
        """Leave the group; see `DedupConsumer.unsubscribe`."""
        await self._call(self._consumer.unsubscribe)

    async def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are assigned."""
        return await self._call(self._consumer.assignment)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        """Take exactly these partitions; inside ``on_assign`` the way to set their offsets."""
        await self._leave(None, lambda: self._consumer.assign(partitions))

    async def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions besides those that are assigned; inside ``on_assign`` as `assign`."""
        await self._call(lambda: self._consumer.incremental_assign(partitions))

    async def unassign(self) -> None:
        """Let all partitions go: completed work is written and committed."""
        await self._leave(None, self._consumer.unassign)

    async def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let these partitions go: completed work is written and committed."""
        await self._leave(partitions, lambda: self._consumer.incremental_unassign(partitions))

    async def _leave(self, partitions: list[TopicPartition] | None, change: Callable[[], object]) -> None:
        """Change the assignment, by which some partitions (None: all) go, or are read from their position again."""

        def work() -> None:
            if self._owner.assigns:
                # In its callback the call sets offsets only.
                change()
                return
            going = self._consumer.assignment() if partitions is None else partitions
            self._move(_coordinates(going), change)

        await self._call(work)

    def _move(self, partitions: Collection[Coordinates], change: Callable[[], object]) -> None:
        """Let partitions go, or read them from another offset on; on the thread.

        The consumer counts what waits here as delivered. It has that back first, so that both stand at one place, and
        nothing is missing if the change fails.
        """
        for message in self._buffer.take_back(partitions):
            if self._consumer.holds(message):
                self._consumer.release(message)
        change()
        self._owner.tell_withdrawn(self._buffer.out_of(partitions))
        self._buffer.forget(partitions)

    async def pause(self, partitions: list[TopicPartition]) -> None:
        """Deliver nothing from these partitions until `resume`."""

        def pause() -> None:
            self._consumer.pause(partitions)
            self._buffer.set_aside(_coordinates(partitions))

        await self._call(pause)

    async def resume(self, partitions: list[TopicPartition]) -> None:
        """Deliver from these partitions again."""

        def resume() -> None:
            self._consumer.resume(partitions)
            self._buffer.bring_back(_coordinates(partitions), self._owner.holds)

        await self._call(resume)
        self._taker.notify()

    # --- verdicts, counters, status ------------------------------------------------------------------------------

    async def verdict(self, message: Message) -> Verdict | None:
        """Return the verdict of a message that you got; None if it is forgotten."""
        return await self._call(self._consumer.verdict, message)

    @property
    def counters(self) -> Counters:
        """Totals by verdict since the consumer was made."""
        return self._consumer.counters

    @property
    def partition_statuses(self) -> list[PartitionStatus]:
        """The state of each assigned partition, and the reasons why it waits; without waiting."""
        return self._consumer.partition_statuses

    def metrics(self) -> Metrics:
        """Return all counters, gauges and histograms of the registry at this moment; see `DedupConsumer.metrics`."""
        return self._consumer.metrics()

    def health(self) -> Health:
        """Return whether the consumer works, with the reasons if it does not; without waiting.

        Whether a handler hangs is not among them: the consumer's thread asks for messages all the same.
        """
        return self._consumer.health()

    @property
    def effective_window_ms(self) -> int | None:
        """The shortest time in ms over which IDs are known, of all partitions; see `DedupConsumer`."""
        return self._consumer.effective_window_ms

    # --- the end -------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Release the messages in hand, write and commit completed ones, leave the group; see `DedupConsumer.close`.

        The event loop goes on meanwhile. If the call is cancelled, that is raised when the consumer is closed. An error
        of a callback that no call for messages has raised yet is raised then, too.
        """
        self._owner.refuse_in_callback()
        self._closed = True
        self._taker.close()
        await self._owner.end()
        await self._observers.end(self._deadline_s)

    async def __aenter__(self) -> Self:
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; if the block ended without an exception, the messages of the last call are completed first.

        Unless another task got them, and is not over, or failed.
        """
        if error is None:
            self._taker.end_last()
            await self.close()
            return
        try:
            await self.close()
        except Exception:
            logger.exception(
                "closing failed too, after %s", error_shown(error), extra={"event": "async-close-failed"}
            )

    def __del__(self) -> None:
        """Have the thread of a consumer that was dropped without `close` close it."""
        owner = getattr(self, "_owner", None)
        if owner is not None:
            owner.abandon()

    # --- helpers -------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._closed:
            raise RuntimeError(CLOSED)
        self._owner.start(self._taker.notify)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        # Also while it closes: its rebalance callbacks may call.
        self._owner.start(self._taker.notify)
        return await self._owner.call(function, *arguments)

    async def _flush(self) -> None:
        self._owner.start(self._taker.notify)
        await self._owner.flush()

    def _complete_last(
        self, asker: AnyTask, message: Message | None, offsets: list[TopicPartition] | None
    ) -> None:
        """Complete messages of the last call, if this task has them: those up to a message, below offsets, or all."""
        if message is not None:
            _refuse_others([message])
        taker, buffer = self._taker, self._buffer
        if not taker.is_of(asker):
            if message is not None and buffer.is_last(message):
                raise RuntimeError(
                    f"{message.topic()}[{message.partition()}]@{message.offset()} is in the hands of another task, "
                    "which may fail still: have that task commit it, or await complete(message)"
                )
            return
        if message is not None:
            if message.error() is None:
                buffer.end_last_below({coordinates_of(message): (message.offset() or 0) + 1})
        elif offsets is not None:
            buffer.end_last_below({(each.topic, each.partition): each.offset for each in offsets})
        elif not taker.iterates:
            taker.end_last(asker)


def _seconds(timeout: float | None) -> float:
    return inf if timeout is None or timeout < 0 else timeout


def _refuse_others(messages: Iterable[object]) -> None:
    for message in messages:
        if not isinstance(message, Message):
            raise TypeError(f"message={shown(message)}: give a message that this consumer returned")


def _coordinates(partitions: Iterable[TopicPartition]) -> set[Coordinates]:
    return {(each.topic, each.partition) for each in partitions}
