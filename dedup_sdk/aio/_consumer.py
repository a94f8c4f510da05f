"""`AsyncDedupConsumer`: a `DedupConsumer` in a thread of its own, for coroutines."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from signal import SIGINT, SIGTERM, Signals
from typing import Any, Literal, Self, TypeVar, overload

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from dedup_sdk._checks import choice, whole
from dedup_sdk._kafka.client.closing import is_unhandled, stopped_by
from dedup_sdk._kafka.client.fields import note_message, refuse_other
from dedup_sdk._kafka.consumer import DEFAULT_RECOVERY, NO_SETTINGS, Completion, DedupConsumer, Mode, below_of
from dedup_sdk._kafka.deliver.write_policy import Durability
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._masking import error_shown, shown
from dedup_sdk._metrics import Metrics
from dedup_sdk._observe import Counters, Health, PartitionStatus, VerdictEvent
from dedup_sdk._record import Verdict
from dedup_sdk._runner.settings import AsyncRunSettings, Failures, OnError, Retries, calls_at_most
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._strategy import Strategy
from dedup_sdk.aio._buffer import MOST_QUEUED, End
from dedup_sdk.aio._observers import LoopObservers
from dedup_sdk.aio._owner import Owner, RebalanceCallback, Rebalances
from dedup_sdk.aio._taker import AnyTask, EndsBy, Iteration, Taker, coroutine_function, running_task
from dedup_sdk.shared._protocol import ClaimStore
from dedup_sdk.shared._settings import Shared

T = TypeVar("T")
_Places = list[TopicPartition]
_Named = _Places | None

logger = logging.getLogger("dedup_sdk")

AnyObserver = Callable[[VerdictEvent], object]
"""A function, which is called on the consumer's thread, or a coroutine function, which is awaited on the event loop."""


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
        # Not by `self`: what refers to that would keep a consumer that the application has dropped.
        self._observers, self._spec = LoopObservers(lambda: owner), dedup.id
        self._consumer = DedupConsumer(
            config, dedup=dedup, store=store, durability=durability, mode=mode, recovery=recovery, shared=shared,
            # The application has not seen all that the thread has fetched: it alone knows what ends.
            completion="explicit",
            observers=self._observers.of(observers), idle_timeout=idle_timeout, revoke_deadline=revoke_deadline,
            **client_arguments,
        )  # fmt: skip
        self._owner = owner = Owner(self._consumer)
        self._rebalances = Rebalances(self._owner, self)
        choice("completion", completion, ("on-next-call", "explicit"))
        by_rule = EndsBy.NEXT if self._owner.settings.completes_on_next_call else EndsBy.COMMIT
        ends = EndsBy.CALL if completion == "explicit" else by_rule
        self._taker = Taker(self._owner, ends, idle_timeout, writes_each=durability == "record")
        # A consumer that was dropped without `close` is closed by its thread.
        weakref.finalize(self, self._owner.abandon)

    # --- messages ------------------------------------------------------------------------------------------------

    @coroutine_function
    def poll(self, timeout: float | None = -1) -> Coroutine[Any, Any, Message | None]:
        """Return the next message that is no duplicate, or an error event; None after ``timeout`` s (-1: no limit).

        With ``completion="on-next-call"`` it first completes the message that you got before, whatever became of its
        handling: `once` tells the consumer exactly. If the call is cancelled, the next one returns its message.
        """
        return self._poll(running_task(), timeout)

    async def _poll(self, asker: AnyTask, timeout: float | None) -> Message | None:
        got = await self._consume(asker, 1, timeout)
        return got[0] if got else None

    @coroutine_function
    def consume(
        self, num_messages: int = 1, timeout: float | None = -1
    ) -> Coroutine[Any, Any, list[Message]]:
        """Return up to ``num_messages`` messages; fewer (or none) after ``timeout`` seconds (-1: no limit).

        It waits until so many have come, or the time is up; never for more than 1,000, which is what waits here at
        most. With ``completion="on-next-call"`` it first completes the messages that you got before.
        """
        return self._consume(running_task(), num_messages, timeout)

    async def _consume(self, asker: AnyTask, count: int, timeout: float | None) -> list[Message]:
        whole("num_messages", count, advice="give the most messages to return, e.g. 100")
        timeout_s = None if timeout is None or timeout < 0 else timeout
        enough = min(count, MOST_QUEUED)
        return await self._taker.take(count, timeout_s, asker=asker, enough=enough, ends=self._taker.ends)

    def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages until `stop`, or ``idle_timeout`` seconds without one; raise fatal errors, log others.

        The next step completes the message before, unless ``completion="explicit"``. If the body is cancelled, its
        message is delivered again.
        """
        return Iteration(self, self._taker, self._taker.ends)

    def explicit(self) -> AsyncIterator[Message]:
        """Iterate without completing: each message ends by `once`, `complete` or `release`."""
        return Iteration(self, self._taker, EndsBy.CALL)

    def stop(self) -> None:
        """End the iteration, or `run`, after the messages in hand; if none runs, end the next one when it begins.

        From the event loop's thread; elsewhere by ``loop.call_soon_threadsafe(consumer.stop)``.
        """
        self._taker.stop()

    def stop_on_signals(self, *signals: Signals) -> AbstractContextManager[list[int]]:
        """Call `stop` when SIGTERM or Ctrl-C comes inside the block (or one of ``signals``, if you give some).

        A second Ctrl-C acts as if this block were not there. The block gets a list to which the received signals are
        added. You must call this in the main thread, inside a coroutine.
        """
        loop = asyncio.get_running_loop()
        return stopped_by(signals or (SIGTERM, SIGINT), lambda: loop.call_soon_threadsafe(self.stop))

    async def run(
        self,
        handler: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 100,
        order: Literal["key", "partition"] | None = "key",
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
        from dedup_sdk.aio._run import AsyncRunner, letter_sender

        calls = calls_at_most(on_error, attempts)
        settings = AsyncRunSettings(
            handler=handler, concurrency=concurrency, order=order, on_error=on_error, dead_letters=dead_letters,
            retries=Retries(attempts=calls, on=retry_on, wait_initial=wait_initial, wait_max=wait_max),
        )  # fmt: skip
        self._owner.start()
        with self._taker.running(), self.stop_on_signals(SIGTERM) if is_unhandled(SIGTERM) else nullcontext():
            async with letter_sender(settings, self._owner, self._spec) as letters:
                try:
                    await AsyncRunner(settings, self._taker, self._owner, letters).run()
                except BaseException as error:
                    self._owner.doubt(error)
                    raise

    # --- how messages end ----------------------------------------------------------------------------------------

    async def complete(self, *messages: Message, dead_lettered: bool = False) -> None:
        """Mark messages as handled; their IDs are in the store when this call returns.

        If the call is cancelled, they are completed all the same. See `DedupConsumer.complete`.
        """
        for message in messages:
            refuse_other(message)
        self._owner.buffer.end(messages, End.DEAD_LETTERED if dead_lettered else End.COMPLETED)
        await self._owner.flush()

    async def release(self, message: Message) -> None:
        """Give a message back: it is delivered again before new ones, also if this call is cancelled."""
        refuse_other(message)
        if not self._owner.buffer.end([message], End.RELEASED):
            self.counters.stale += 1
        await self._owner.flush()

    async def holds(self, message: Message) -> bool:
        """Whether you may still handle a message; see `DedupConsumer.holds`."""
        return await self._owner.call(self._consumer.holds, message)

    @asynccontextmanager
    async def once(self, message: Message) -> AsyncIterator[Message]:
        """Complete a message at the end of the block; if it raises, or is cancelled, release the message.

        A note at the exception names topic, partition, offset and attempt. The block always runs: if messages wait in
        a queue of yours, ask `holds` first.
        """
        refuse_other(message)
        try:
            self._owner.buffer.keep_back(message)
            yield message
            await self.complete(message)
        except BaseException as error:
            # Without waiting: a cancellation must reach its caller at once. A completed message is not had any more.
            self._owner.buffer.end([message], End.RELEASED)
            if isinstance(error, Exception):
                note_message(error, message, 1)
            raise

    # --- offsets -------------------------------------------------------------------------------------------------

    @overload
    def commit(
        self, message: Message | None = ..., offsets: _Named = ..., *, asynchronous: Literal[False]
    ) -> Coroutine[Any, Any, _Places]: ...
    @overload
    def commit(
        self, message: Message | None = ..., offsets: _Named = ..., *, asynchronous: Literal[True] = ...
    ) -> Coroutine[Any, Any, None]: ...
    @overload
    def commit(
        self, message: Message | None = ..., offsets: _Named = ..., asynchronous: bool = ...
    ) -> Coroutine[Any, Any, _Named]: ...
    @coroutine_function
    def commit(
        self, message: Message | None = None, offsets: _Named = None, asynchronous: bool = True
    ) -> Coroutine[Any, Any, _Named]:
        """Commit completed messages; see `DedupConsumer.commit`.

        With ``completion="on-next-call"`` it first completes messages that your task got: those up to ``message``, or
        below ``offsets``; without arguments all, but for that of an ``async for``, whose body may fail still. With
        ``enable.auto.commit=false`` all that any task got. Raises `RuntimeError` for a message that another task has.
        """
        return self._commit(running_task(), message, offsets, asynchronous)

    async def _commit(self, asker: AnyTask, message: Message | None, offsets: _Named, *how: bool) -> _Named:
        is_left_out = message is None and offsets is None and self._taker.iterates
        try:
            return await self._name(asker, message, offsets, self._consumer.commit, message, offsets, *how)
        except KafkaException as error:
            if is_left_out and error.args[0].code() == KafkaError._NO_OFFSET:  # noqa: SLF001
                return []  # nothing came before the message that is still in its body
            raise

    @coroutine_function
    def store_offsets(
        self, message: Message | None = None, offsets: _Named = None
    ) -> Coroutine[Any, Any, None]:
        """Complete the messages that your task got up to a message, or below offsets; the next commit includes them."""
        return self._name(running_task(), message, offsets, self._consumer.store_offsets, message, offsets)

    async def _name(
        self, asker: AnyTask, message: Message | None, offsets: _Named, call: Callable[..., T], *how: Any
    ) -> T:
        """Make a call that may name messages: those in hand, if this task has them, end first."""
        below = below_of(message, offsets)
        if below is None and self._owner.settings.only_stored:
            below = {}
        self._taker.end_named(asker, message, below)
        return await self._owner.call(call, *how)

    async def committed(self, partitions: _Places, timeout: float = 10.0) -> _Places:
        """Return the offsets that the group has committed, as the plain client does."""
        return await self._owner.call(self._consumer.committed, partitions, timeout)

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = 10.0, *, cached: bool = False
    ) -> tuple[int, int]:
        """Return the first offset of a partition's log, and the offset behind its end, as the plain client does."""
        return await self._owner.call(self._consumer.get_watermark_offsets, partition, timeout, cached)

    async def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return, for each partition, the offset after the last message that you got, or that was hidden."""
        return await self._owner.call(self._where_you_are, self._consumer.position, partitions)

    @coroutine_function
    def seek(self, partition: TopicPartition) -> Coroutine[Any, Any, None]:
        """Read a partition from another offset on; see `DedupConsumer.seek`. Messages that wait here are dropped.

        With ``completion="on-next-call"`` it first completes what your task got below that offset.
        """
        if not isinstance(partition, TopicPartition):
            raise TypeError(f"partition={shown(partition)}: give e.g. TopicPartition('orders', 0, 42)")
        return self._name(
            running_task(), None, [partition], self._where_you_are, self._consumer.seek, partition
        )

    def _where_you_are(self, call: Callable[..., T], *arguments: Any) -> T:
        """Make a call on the thread that asks, or changes, where partitions are read.

        First the consumer has back what waits here, so that it stands where you do.
        """
        self._owner.give_back()
        return call(*arguments)

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
        await self._owner.call(self._rebalances.subscribe, topics, on_assign, on_revoke, on_lost)

    async def unsubscribe(self) -> None:
        """Leave the group; see `DedupConsumer.unsubscribe`."""
        await self._owner.call(self._consumer.unsubscribe)

    async def assignment(self) -> list[TopicPartition]:
        """Return the partitions that are assigned."""
        return await self._owner.call(self._consumer.assignment)

    async def assign(self, partitions: list[TopicPartition]) -> None:
        """Take exactly these partitions; inside ``on_assign`` the way to set their offsets."""
        await self._owner.call(self._where_you_are, self._consumer.assign, partitions)

    async def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions besides those that are assigned; inside ``on_assign`` as `assign`."""
        await self._owner.call(self._consumer.incremental_assign, partitions)

    async def unassign(self) -> None:
        """Let all partitions go: completed work is written and committed."""
        await self._owner.call(self._where_you_are, self._consumer.unassign)

    async def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let these partitions go: completed work is written and committed."""
        await self._owner.call(self._where_you_are, self._consumer.incremental_unassign, partitions)

    async def pause(self, partitions: list[TopicPartition]) -> None:
        """Deliver nothing from these partitions until `resume`."""
        await self._owner.call(self._where_you_are, self._consumer.pause, partitions)

    async def resume(self, partitions: list[TopicPartition]) -> None:
        """Deliver from these partitions again."""
        await self._owner.call(self._consumer.resume, partitions)

    # --- verdicts, counters, status ------------------------------------------------------------------------------

    async def verdict(self, message: Message) -> Verdict | None:
        """Return the verdict of a message that you got; None if it is forgotten."""
        return await self._owner.call(self._consumer.verdict, message)

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
        self._rebalances.refuse_in_callback()
        await self._owner.end()
        await self._observers.end()

    async def __aenter__(self) -> Self:
        self._owner.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
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
