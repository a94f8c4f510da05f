"""The drop-in consumer: a `confluent_kafka.Consumer` whose loop sees each logical message once.

`DedupConsumer` is a façade; its parts own their state:

    `Poller`          a call for messages: fetched, judged, delivered; the calls before are completed
    `InHand`          messages that the application has, and how each ends
    `Delivery`        the table of the messages that are out, and the policy that completes them
    `Judge`           verdicts: fetched messages become delivered ones
    `Fetcher`         messages that were fetched and are not judged yet
    `Maintenance`     the work on a timer
    `AssignmentApi`   subscription and assignment, and the rebalance callbacks
    `Positions`       seek, position, pause
    `Handover`        messages of partitions that end or move
    `Session`         the assigned partitions: their recovery, their commits
    `ClientLock`      one thread at a time in the client
    `Interruption`    a step that an exception left half done: partitions are opened again
    `CallbackErrors`  exceptions of callbacks, kept until they can be raised
"""

from __future__ import annotations

import contextlib
import logging
import operator
import sys
import time
import warnings
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial, wraps
from inspect import Parameter, signature
from math import isnan
from pathlib import Path
from signal import Signals
from threading import Thread, get_ident
from types import FrameType, MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Literal, ParamSpec, Self, TypeVar, cast, overload

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.cimpl import Consumer, Producer

from dedup_sdk._checks import choice, seconds
from dedup_sdk._engine.deduplicator import Deduplicator, is_key_store
from dedup_sdk._fork_safety import keep_from_children
from dedup_sdk._interruptions import is_interruption
from dedup_sdk._kafka.assign.health import Asked, health_of, warn_of_recovering
from dedup_sdk._kafka.client.client import HAS_CLUSTER_ID, Client
from dedup_sdk._kafka.client.client_errors import handle_error
from dedup_sdk._kafka.client.closing import ClientEnd, leave_group, stopped_by
from dedup_sdk._kafka.client.fields import note_message, refuse_other
from dedup_sdk._kafka.client.guards import (
    CallbackErrors,
    ClientLock,
    Interruption,
    Steps,
    depth_in,
    is_inside,
)
from dedup_sdk._kafka.client.settings import (
    ASK_S,
    DESERIALIZE,
    ClientSettings,
    client_settings,
    is_writable,
    refuse_no_broker,
    refuse_unknown,
    unknown_settings_explained,
)
from dedup_sdk._kafka.deliver.assignment_api import AssignmentApi
from dedup_sdk._kafka.deliver.classifier import BatchClassifier, IdWatch
from dedup_sdk._kafka.deliver.completion import ByName, ByOffsets, OnNextCall
from dedup_sdk._kafka.deliver.delivery import CompletionPolicy, Delivery
from dedup_sdk._kafka.deliver.fetcher import Fetcher
from dedup_sdk._kafka.deliver.handover import Handover
from dedup_sdk._kafka.deliver.idle import IdleClock
from dedup_sdk._kafka.deliver.in_hand import InHand
from dedup_sdk._kafka.deliver.judge import Judge
from dedup_sdk._kafka.deliver.maintenance import Maintenance
from dedup_sdk._kafka.deliver.poller import Poller
from dedup_sdk._kafka.deliver.positions import Positions
from dedup_sdk._kafka.deliver.write_policy import Durability, WritePolicy
from dedup_sdk._kafka.recover.session import WAITING_SHARE, Session
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._kafka.recover.upkeep import Upkeep
from dedup_sdk._masking import error_shown, shown
from dedup_sdk._metrics import Metrics, samples_of
from dedup_sdk._observe import Counters, Health, Observer, PartitionStatus, by_partition
from dedup_sdk._record import Verdict
from dedup_sdk._store.protocol import KeyStore
from dedup_sdk._store.rocks import RocksStore
from dedup_sdk._strategy import LastId, Lookup, Strategy
from dedup_sdk.errors import ConfigurationError

if TYPE_CHECKING:
    from confluent_kafka.cimpl import RebalanceCallback

    from dedup_sdk._kafka.deliver.worker_session import WorkerSession
    from dedup_sdk._runner.runner import Runner
    from dedup_sdk._runner.settings import Failures, Handler, OnError
    from dedup_sdk._runner.tasks import Order
    from dedup_sdk._transactions.settings import ProducingHandler
    from dedup_sdk._transactions.transactions import TransactionBlock
    from dedup_sdk.shared import ClaimStore, Shared

logger = logging.getLogger("dedup_sdk")

BATCH = 1_000
"""Messages that ``poll`` judges together; larger batches were slower (cache misses)."""
MOST_CONSUMED = 1_000_000
"""Messages that the client's ``consume`` returns at most; it refuses to be asked for more."""
CLIENT_END_S = 10.0
"""The most seconds that `DedupConsumer.close` waits for a client that has nothing assigned any more."""
WAIT_S = 0.2
"""Seconds that iteration and `DedupConsumer.run` wait for a message before they look whether they are to end."""

Completion = Literal["on-next-call", "explicit"]
Mode = Literal["dedup", "observe"]

_CHOICES = {
    "completion": ("on-next-call", "explicit"),
    "mode": ("dedup", "observe"),
    "durability": ("record", "batch", "commit"),
}

DEFAULT_RECOVERY: Final = Recovery()
NO_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType({})
_T = TypeVar("_T")
_P = ParamSpec("_P")


def _ends_messages(
    call: Callable[Concatenate[DedupConsumer, _P], _T],
) -> Callable[Concatenate[DedupConsumer, _P], _T]:
    """Count an interruption of a call as one of a step, also before the step began.

    Nobody else ends the messages that the call names; for a release, asking for more would even complete them.
    """

    @wraps(call)
    def noted(self: DedupConsumer, /, *arguments: _P.args, **named: _P.kwargs) -> _T:
        try:
            return call(self, *arguments, **named)
        except BaseException as error:
            if is_interruption(error):
                self._interruption.note()
            raise

    return noted


# The C class itself: the package's `Consumer` is another one where an automatic instrumentation has replaced it, and
# would make a span of each batch that is read.
class DedupConsumer(Consumer):
    """A `confluent_kafka.Consumer` that hides duplicates.

    - In flight: a message that the application has and that is not completed.
    - Completed: handled. Its ID is remembered, and the message is never delivered again while the window lasts. With
      ``completion="on-next-call"``, asking for more messages (`poll`, `consume`, iteration) completes the ones that
      you got before; with ``completion="explicit"`` only `complete` does.
    - Released: given back, to be delivered again. If an exception leaves the ``with`` block, the messages in flight are
      released. `close` does the same, because it cannot know whether you handled the last message.

    Args:
        config: the settings of `confluent_kafka.Consumer`; single ones may be keyword arguments (``**conf``). Completed
            messages are committed on ``auto.commit.interval.ms``, asynchronously. With ``enable.auto.commit=false``
            only your `commit` commits messages, and only it (or `complete`) completes them: messages that you did not
            commit come again after a restart; hidden records directly behind your commits are committed on the
            interval. With ``enable.auto.offset.store=false`` only `store_offsets`, and a `commit` that names messages
            or offsets, complete messages.
        dedup: how duplicates are recognised: `Lookup` or `LastId`.
        store: a folder for the key stores (readable by your user alone; several processes may use it), or a
            `KeyStore`, which several consumers may use, and which none of them closes.
        completion: ``on-next-call`` or ``explicit`` (for worker threads: complete messages in any order, from any
            thread).
        durability: when the IDs of completed messages are on disk, so that a crash does not forget them: ``batch``
            (every 1,000 records or 100 ms, and with each `complete`), ``record`` (each message before you get the next
            one), or ``commit`` (when offsets are committed: the fewest writes, but after a crash everything since the
            last commit comes again).
        mode: ``observe`` judges and counts, but hides nothing.
        recovery: how a partition gets the IDs that its store lacks, and how it goes on meanwhile, e.g.
            ``Recovery(snapshot="s3://bucket/snapshots")``.
        shared: a memory that several consumers share, e.g. `dedup_adapters.redis.RedisStore`, or `Shared` with its
            settings. Then an ID is also recognised in another partition, or at another consumer.
        observers: functions called with every verdict.
        idle_timeout: seconds without a message after which iteration and `run` end, counted from the first assignment;
            the time of recoveries does not count. None: never.
        revoke_deadline: seconds in which partitions must be written, committed and closed in a rebalance; unfinished
            messages are abandoned and come again. None: a fifth of ``max.poll.interval.ms``.

    Raises `ConfigurationError` for settings that would break a promise, and the errors of `confluent_kafka.Consumer`.
    Observers and rebalance callbacks run inside `poll`, `consume` and `close`, on the calling thread. After a fork the
    child must make its own consumer: every call of this one raises `RuntimeError` there, but for `close`, which does
    nothing.
    """

    def __init_subclass__(cls, **named: Any) -> None:
        """Refuse a class that mixes in another consumer: each would read what the other one has read."""
        super().__init_subclass__(**named)
        others = [
            each.__name__ for each in cls.__mro__ if issubclass(each, Consumer) and each is not Consumer
            if not issubclass(each, DedupConsumer)
        ]  # fmt: skip
        if others:
            raise TypeError(f"{cls.__name__} mixes {others[0]} into DedupConsumer: {DESERIALIZE}")

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
        observers: Iterable[Observer] = (),
        idle_timeout: float | None = None,
        revoke_deadline: float | None = None,
        **client_arguments: Any,
    ) -> None:
        _refuse_choices(completion=completion, mode=mode, durability=durability)
        _refuse_strategy(dedup, mode, recovery)
        recovery.try_folders()
        refuse_unknown(client_arguments, _OURS, _ELSEWHERE)
        settings = client_settings(config, client_arguments, revoke_deadline=revoke_deadline)
        refuse_no_broker(settings.client)
        self._idle_timeout_s = None if idle_timeout is None else seconds("idle_timeout", idle_timeout)
        keys = _key_store(store, settings.group)
        sharing = _sharing(shared, dedup, mode, settings)
        self._interruption = Interruption()
        self._callback_errors = CallbackErrors(self._interruption.note)
        # First of all: the settings of every other client are made of these.
        settings = replace(settings, client=self._callback_errors.around(settings.client))
        self._settings = settings
        with unknown_settings_explained():
            super().__init__({**settings.client, "on_commit": self._on_commit})
        self._engine = Deduplicator(
            dedup,
            keys,
            group=settings.group,
            isolation=settings.isolation,
            observers=observers,
            tolerates_full_disk=True,
            forgets_unwritten=recovery.on_full_disk == "unverified",
        )
        self._engine.write_unless(partial(getattr, self._interruption, "happened"))
        if sharing is not None:
            gatekeeper = sharing.gatekeeper(
                self._engine.counters, group=settings.group, silence_s=settings.silence_s
            )
            self._engine.share(gatekeeper)
        self._client = Client(self, settings)
        self._session = Session(self._engine, self._client, settings, recovery.set_back)
        self._upkeep = Upkeep(self._session, self._client, settings, recovery, self._callback_errors)
        self._access = ClientLock(self._interruption.note)
        self._access.closes_by(partial(_is_closing, self))
        steps = self._steps = Steps(self._access, self._interruption, self._callback_errors)
        watch = partial(_id_advice, dedup)
        classifier = BatchClassifier(self._engine, self._session, observing=mode == "observe", watch=watch)
        self._delivery = Delivery(classifier.partition_of, self._engine.counters)
        self._delivery.use(_policy(self._delivery, completion, settings))
        # With durability="record" each message is written before the next one, so poll() has no quick way.
        self._ready: deque[Message] = deque() if durability == "record" else self._delivery.batch.ready
        self._returning = self._delivery.returning
        self._fetcher = Fetcher(self, self._session, self._access)
        handover = self._handover = Handover(self._session, self._fetcher, classifier, self._delivery, steps)
        self._assignment = AssignmentApi(self, self._client, settings, handover, steps)
        self._positions = Positions(self, self._client, handover, self._assignment, steps)
        judge = Judge(self._engine, classifier, handover, self._upkeep, steps)
        writes = WritePolicy(self._engine, durability)
        maintenance = Maintenance(judge, self._assignment, self._positions, writes, steps)
        self._poller = Poller(
            judge, maintenance, self._assignment, self._positions, steps, is_nested=partial(_is_nested, self)
        )
        self._in_hand = InHand(self._engine, handover, writes, steps, observing=mode == "observe")
        self._stopped = False
        self._client_end: ClientEnd | None = None
        self._runner: Runner | None = None
        self._block: TransactionBlock | None = None
        """The block of `transactions` that is at work."""
        keep_from_children(self)

    # --- messages ------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """Return the next message that is no duplicate, or an error event; None after ``timeout`` s (-1: no limit).

        It returns in time even if partitions recover, or all records that come are duplicates: None says nothing about
        the end of the topic. For a loop that ends there, iterate with ``idle_timeout``. With
        ``completion="on-next-call"`` it first completes the messages that you got before. So a call whose result you
        drop loses a message: `asyncio.to_thread` and other thread pools, whose tasks may be cancelled, may call this
        method with ``completion="explicit"`` only (else `RuntimeError`); do not let a function that calls it be
        cancelled, either.
        """
        interruption, returning = self._interruption, self._returning
        if (
            self._ready
            and not interruption.happened
            and time.monotonic() < interruption.maintenance_at
            # Else a signal's handler asks in the middle of a call, or another thread does.
            and self._poller.thread is None
            and not returning[0]
        ):
            returning[0] = True
            try:
                # Without the lock, which would cost more than all the rest; see `Delivery`.
                message = self._ready.popleft()
            except IndexError:
                returning[0] = False
            except BaseException:
                self._interruption.note()
                raise
            else:
                # No call between these lines: no signal comes there.
                returning[0] = False
                return message
        if type(timeout) not in _NUMBERS or timeout != timeout:  # noqa: PLR0124 (nan)
            timeout = _seconds(timeout)
        got = self._poller.messages(1, timeout, BATCH)
        # No call after that: a signal would drop the message, and nobody would note the interruption.
        return got[0] if got else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Return up to ``num_messages`` messages that are no duplicates; fewer (or none) after ``timeout`` seconds.

        Like the plain client it waits until so many have come or the time is up. It does not wait again to replace
        duplicates if there is a message to return. Error events are among the messages, in their place. An empty list
        says nothing about the end of the topic, as None from `poll`.

        ``consume(0)`` takes no message and does not wait: the group hears from the consumer, callbacks run, recoveries
        and commits go on. Call it on the thread that asks for messages, while your program has no room for one.
        """
        try:
            num_messages = operator.index(num_messages)
        except TypeError:
            raise TypeError(f"num_messages={shown(num_messages)}: give a whole number, e.g. 100") from None
        if not 0 <= num_messages <= MOST_CONSUMED:
            raise ValueError(
                f"num_messages={shown(num_messages)}: give a number from 0 to {MOST_CONSUMED}, e.g. 100"
            )
        if num_messages == 0:
            self._poller.heartbeat()
            self._callback_errors.raise_kept()
            return []
        if type(timeout) not in _NUMBERS or timeout != timeout:  # noqa: PLR0124 (nan)
            timeout = _seconds(timeout)
        return self._poller.messages(num_messages, timeout, num_messages)

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until `stop`, or ``idle_timeout`` seconds without one; raise fatal errors, log others."""
        idle = IdleClock(self._session, self._idle_timeout_s)
        try:
            while not self._stopped:
                message = self.poll(WAIT_S)
                if message is None:
                    if idle.is_up:
                        return
                    continue
                # No call before the message is yielded: a signal would drop it behind another thread's commit.
                if message is not self._delivery.event:
                    yield message
                    idle.heard()
                else:
                    handle_error(message.error())
        finally:
            self._stopped = False

    def stop(self) -> None:
        """End the iteration, or `run`, after the messages in hand; if none runs, end the next one when it begins.

        You may call it from a signal handler or another thread.
        """
        self._stopped = True
        runner = self._runner
        if runner is not None:
            runner.stop()

    @contextlib.contextmanager
    def stop_on_signals(self, *signals: Signals) -> Iterator[list[int]]:
        """Call `stop` when SIGTERM or Ctrl-C comes inside the block (or one of ``signals``, if you give some).

        The iteration, or `run`, ends after the message in hand, which is completed. A second Ctrl-C acts as if this
        block were not there. The block gets a list to which the received signals are added, for loops over `poll` and
        `consume` (``while not caught``). You must call this in the main thread.
        """
        with stopped_by(signals or (Signals.SIGTERM, Signals.SIGINT), self.stop) as caught:
            yield caught

    def run(
        self,
        handler: Handler | ProducingHandler,
        *,
        transactions: TransactionBlock | None = None,
        on_error: OnError = "raise",
        dead_letters: str | None = None,
        workers: int = 1,
        order: Order = "key",
        attempts: int | None = 5,
        retry_on: Failures = Exception,
        wait_initial: float = 0.1,
        wait_max: float = 5.0,
        max_in_flight: int = 1_000,
    ) -> None:
        """Call ``handler`` with each message, on worker threads, until `stop` or ``idle_timeout``.

        A message is completed when its handler returns, whatever ``completion`` says. Messages that are not completed
        when this method returns or raises come again.

        Args:
            handler: called with a message; its result is ignored. An exception means that the message is not handled.
            transactions: what `transactions` returns: messages end in Kafka transactions. ``handler`` is called with a
                message and a function that produces, with the arguments of the client's ``produce``; its records
                become visible exactly once, together with the group's offsets. A transaction begins when handlers have
                returned.
            on_error: the reaction to an exception. ``raise``: this method raises the first one. ``retry``: the handler
                is called again after a pause; this method raises the error of the last attempt. ``dead-letter``: after
                the last attempt the message goes to the dead-letter topic, counts as handled, and the loop goes on; see
                ``dedup redrive``.
            dead_letters: the dead-letter topic, with ``on_error="dead-letter"``. None: the name of the group and
                ``.dead-letters``.
            workers: threads. One is enough for a handler that is sometimes slow; the consumer stays in its group.
            order: ``key``: messages with the same key and partition are handled one after the other, messages without
                a key in any order. ``none``: any order.
            attempts: the most calls of the handler for one message, the first included; None: no limit. It
                needs ``on_error`` with ``retry`` or ``dead-letter``.
            retry_on: exception classes, or a function of an exception, that tell which errors may pass; others are
                final at once.
            wait_initial: seconds before the second call; each further pause is about twice as long.
            wait_max: seconds of the longest pause.
            max_in_flight: the most messages with the workers; at that number, no message is read until one has ended.

        Raises the error of the handler, `DeadLetterError`, the errors of iteration, and `ConfigurationError` for
        settings that make no sense. Running handlers are waited for first.
        """
        from dedup_sdk._kafka.deliver.worker_session import WorkerSession
        from dedup_sdk._runner.dead_letters import DeadLetterProducer
        from dedup_sdk._runner.runner import Ends, EndsAtOnce, Runner
        from dedup_sdk._runner.settings import Retries, RunSettings, calls_at_most

        settings = RunSettings(
            handler=handler,
            on_error=on_error,
            dead_letters=dead_letters,
            workers=workers,
            order=order,
            retries=Retries(
                attempts=calls_at_most(on_error, attempts),
                on=retry_on,
                wait_initial=wait_initial,
                wait_max=wait_max,
            ),
            max_in_flight=max_in_flight,
            produces=transactions is not None,
        )
        self._access.check_open()
        letters = None
        if (topic := settings.letters_of(self._settings.group)) is not None:
            letters = DeadLetterProducer(self._settings, topic)
        session = WorkerSession(
            self.poll,
            self._poller,
            self._in_hand,
            idle=IdleClock(self._session, self._idle_timeout_s),
            counters=self.counters,
            deadline_s=self._settings.revoke_deadline_s * WAITING_SHARE,
            doubt=self._interruption.note,
        )
        ends: Ends = EndsAtOnce(settings, session)
        if transactions is not None:
            from dedup_sdk._transactions.handled import EndsInTransactions

            ends = EndsInTransactions(self, transactions, handler, most=max_in_flight)
        with Runner(settings, session, group=self._settings.group, letters=letters, ends=ends) as runner:
            self._work(runner, session)
        if runner.failure is not None:
            raise runner.failure
        # Of callbacks, while the running handlers were waited for.
        self._callback_errors.raise_kept()

    def _work(self, runner: Runner, session: WorkerSession) -> None:
        """Run a runner in its session; `stop` and `release` know of it meanwhile."""
        self._callback_errors.begin()
        try:
            self._make_current(runner)
            session.begin(runner)
            if self._stopped:
                runner.stop()
            runner.run()
        except BaseException as error:
            if self._runner is runner and not self._callback_errors.has_raised(error):
                # Messages may be between two places.
                self._interruption.note()
            raise
        finally:
            if self._runner is runner:
                try:
                    session.end()
                except BaseException:
                    self._interruption.note()
                    session.end()
                    raise
                finally:
                    self._runner, self._stopped = None, False

    def _make_current(self, runner: Runner) -> None:
        with self._access.lock:
            self._refuse_second_loop()
            self._runner = runner
        # Its producer may have been made with older credentials.
        if self._client.login is not None:
            runner.log_in(*self._client.login)

    # --- how messages end ----------------------------------------------------------------------------------------

    @_ends_messages
    def complete(self, *messages: Message, dead_lettered: bool = False) -> None:
        """Mark messages as handled, all in one write of the store. From any thread.

        ``dead_lettered``: count them as dead-lettered, too; you have sent them elsewhere.

        Their IDs are in the store when this method returns; with ``durability="commit"``, when offsets are committed.
        If a signal handler calls it in the middle of another call, it is carried out a little later. If the store is
        damaged, or its disk is full, a message may come again after a crash.
        """
        if not {Message}.issuperset(map(type, messages)):
            for message in messages:
                refuse_other(message)
        for owner in (self._block, self._runner):
            if owner is not None and owner.ends_in_transactions:
                messages = self._without_own(owner, messages)
        self._steps.do_or_note(self._in_hand.complete, messages, dead_lettered=dead_lettered)

    def _without_own(
        self, owner: TransactionBlock | Runner, messages: tuple[Message, ...]
    ) -> tuple[Message, ...]:
        """Return the messages that do not end in a transaction; the others are counted as stale."""
        left = tuple(message for message in messages if not owner.has(message))
        self._engine.counters.stale += len(messages) - len(left)
        return left

    @_ends_messages
    def release(self, message: Message) -> None:
        """Give a message back: it is delivered again before new ones. From any thread.

        Its duplicates that came meanwhile go on waiting. A call for a message that was released already, or that a
        handler of `run` or a block of `transactions` has, changes nothing and is counted as stale.
        """
        refuse_other(message)
        self._steps.do_or_note(self._release, message)

    def _release(self, message: Message) -> None:
        with self._access.lock:
            runner = self._runner
            if runner is not None and runner.has(message):
                self._engine.counters.stale += 1
                return
            if self._block is not None and not self._without_own(self._block, (message,)):
                return
            self._in_hand.release(message)

    def holds(self, message: Message) -> bool:
        """Whether you may still handle a message: it did not end, and its partition is still assigned. From any thread.

        If messages wait in a queue of yours, ask right before the work begins; nothing stops a handler that runs
        already. With a shared memory it is also False if another consumer may have the message, because this process
        stood still, or was cut off, for longer than a lease. Then the message is taken back, and delivered again unless
        another consumer completes it. This call may ask the shared memory.
        """
        refuse_other(message)
        return self._in_hand.holds(message)

    @contextlib.contextmanager
    def once(self, message: Message) -> Iterator[Message]:
        """Complete a message at the end of the block; if the block raises, release it, and let the exception go on.

        A note at the exception names topic, partition, offset and attempt. From any thread.
        The block always runs: if messages wait in a queue of yours, ask `holds` first.
        """
        refuse_other(message)
        has_ended = False
        try:
            self._steps.do_or_note(self._in_hand.take_out, message)
            try:
                yield message
            except BaseException as error:
                verdict = self._in_hand.verdict(message)
                note_message(error, message, 1 if verdict is None else verdict.attempt)
                self.release(message)
                has_ended = True
                raise
            self.complete(message)
            has_ended = True
        finally:
            if not has_ended:
                # A signal struck in between. Nobody else ends this message: without a reopening it would stay in
                # flight for good, and no commit would pass it.
                self._interruption.note()

    # --- offsets -------------------------------------------------------------------------------------------------

    # The plain client's overloads, in its order; the last is for positional arguments, and for a flag from a variable.
    @overload
    def commit(self, *, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(self, *, message: Message, asynchronous: Literal[False]) -> list[TopicPartition]: ...
    @overload
    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[True] = ...) -> None: ...
    @overload
    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: Literal[False]
    ) -> list[TopicPartition]: ...
    @overload
    def commit(
        self,
        message: Message | None = ...,
        offsets: list[TopicPartition] | None = ...,
        asynchronous: bool = ...,  # noqa: FBT001 (the plain client's signature)
    ) -> list[TopicPartition] | None: ...

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,  # noqa: FBT001, FBT002 (the plain client's signature)
    ) -> list[TopicPartition] | None:
        """Commit completed messages, with metadata; never past an unfinished message, never backwards. From any thread.

        First it completes the messages that you got: those of the message's partition up to this message, those below
        the given offsets, or all (with ``enable.auto.offset.store=false`` only those that you name; with
        ``completion="explicit"`` none). While a released message waits to be delivered again, only messages below it in
        its partition are completed; those above it follow with the next commit, or call for messages, after it has
        come. In the middle of a call of the same thread (a signal handler, an observer) a commit that names nothing
        completes nothing that this call returns. A synchronous commit raises `KafkaException` (``_NO_OFFSET``) if there
        is nothing to commit, and `RuntimeError` in the middle of a call. If another thread commits while a rebalance
        callback runs, the commit is noted and goes out after the callback, which may wait for that thread; the offsets
        that it will commit are returned.
        """
        self._access.check_open()
        below = below_of(message, offsets)
        if asynchronous:
            # In the middle of a call nobody knows which messages you got, and later you have got others.
            completes = below is not None or not self._steps.is_midway
            self._steps.do_or_note(self._commit, below, asynchronous=True, completes=completes)
            return None
        # A step may run inside a callback of the client, too; the application's own callbacks run without the lock.
        if self._access.is_mine() or (self._is_in_call and not self._callback_errors.runs_here()):
            raise RuntimeError(_IN_STEP)
        self._steps.do_noted()
        return self._commit(below, asynchronous=False)

    def _commit(
        self, below: dict[tuple[str, int], int] | None, *, asynchronous: bool, completes: bool = True
    ) -> list[TopicPartition] | None:
        with self._access.lock:
            alone = self._access.until_client_free_or_callback()
            with self._steps.guarded():
                if completes:
                    self._in_hand.complete_below(below)
                if not self._interruption.happened:
                    self._fetcher.pass_holes()
                # After an interruption marks may be missing below a watermark: the next call for messages reopens.
                is_sound = not self._interruption.happened
                ready = self._session.commits.below(below, asynchronous=asynchronous) if is_sound else []
                if ready and not alone:
                    self._session.commits.note(ready)
                    self._interruption.request_maintenance()
                    return None if asynchronous else ready
                if ready:
                    return self._session.commits.exactly(ready, asynchronous=asynchronous)
                if asynchronous:
                    return None
                raise KafkaException(KafkaError(KafkaError._NO_OFFSET))  # noqa: SLF001 (that is its public name)

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Complete the messages that you got up to a message, or below offsets; the next commit includes them.

        From any thread.
        """
        self._access.check_open()
        below = below_of(message, offsets)
        if below is None:
            raise ValueError("expected either message or offsets")
        if message is not None and not below:
            raise _not_a_record("the message has no offset: give one that poll() returned")
        self._steps.do_or_note(self._in_hand.store_offsets, below)

    def transactions(
        self,
        producer: Mapping[str, Any] | Producer = NO_SETTINGS,
        *,
        max_messages: int = 1_000,
        seconds: float = 0.1,
        id_header: str | None = "dedup-id",
    ) -> TransactionBlock:
        """Consume, and write to Kafka, in transactions: what you write becomes visible exactly once.

            with consumer.transactions({"transactional.id": "billing-1"}) as transactions:
                for transaction in transactions:
                    for message in transaction:
                        transaction.produce("bills", bill(message))

        A transaction has the messages that came in ``seconds`` after its first one, at most ``max_messages``, what you
        `produce`, and the group's offsets. It is committed when you ask for the next one, or leave the block without an
        exception; an exception aborts it, and its messages come again. Transactions end after `stop`, and after
        ``idle_timeout``, as iteration does. Nothing else ends the messages of a transaction: `complete` and `release`
        change nothing, and are counted as stale. A consumer has one such block, or one `run`, at a time. `run` takes
        the transactions in place of a block.

        Args:
            producer: settings for the producer besides those of the consumer, or a `Producer` of yours with a
                ``transactional.id``, for which the block calls ``init_transactions``, or, if that was done, aborts an
                open transaction. The ID must belong to one process at a time, e.g. the pod's name. Without one it is
                made of ``group.id`` and ``group.instance.id``; without the latter each consumer has another one.
            max_messages: the most messages of a transaction.
            seconds: the most seconds between the first message of a transaction and its commit, besides your work.
            id_header: the header for the ID of each record that you produce, made from the partition and the ID of its
                message, so that the next consumer can hide copies; None: no header.

        The block raises `TransactionError` if the broker refuses transactions, if nobody can tell whether a transaction
        was committed, or if another producer has the ID of your `Producer`; then close the consumer: the next one
        begins where the group's offsets are.
        """
        from dedup_sdk._transactions.committer import Committer
        from dedup_sdk._transactions.settings import TransactionSettings
        from dedup_sdk._transactions.transactions import TransactionBlock

        given = TransactionSettings(producer, max_messages=max_messages, seconds=seconds, id_header=id_header)
        self._access.check_open()
        self._refuse_dirty_offsets()
        committer = Committer(
            self,
            self._in_hand,
            given,
            settings=self._settings,
            is_subscribed=lambda: self._assignment.subscribed,
            is_stopped=lambda: self._stopped,
            stop_limit_s=self._settings.revoke_deadline_s * WAITING_SHARE,
        )
        return TransactionBlock(
            self,
            self._in_hand,
            committer,
            given,
            idle=IdleClock(self._session, self._idle_timeout_s),
            is_stopped=lambda: self._stopped,
            forget_stop=self._forget_stop,
            begin_block=self._begin_block,
            end_block=self._end_block,
        )

    def _forget_stop(self) -> None:
        self._stopped = False

    def _begin_block(self, block: TransactionBlock) -> None:
        with self._access.lock:
            self._refuse_second_loop()
            self._block = block
        # Its settings may have older credentials.
        if self._client.login is not None:
            block.log_in(*self._client.login)

    def _end_block(self, block: TransactionBlock) -> None:
        # Not where another loop is at work, which the block was refused for.
        if self._block is block:
            self._in_hand.end_explicit()
            self._block = None

    def _refuse_second_loop(self) -> None:
        if self._runner is not None:
            raise RuntimeError("run() is at work already: one consumer has one loop; give it more workers")
        if self._block is not None:
            raise RuntimeError("transactions() are at work already: one consumer has one loop")

    def _refuse_dirty_offsets(self) -> None:
        if self._settings.isolation.lower() != "read_committed":
            raise ConfigurationError(
                f"isolation.level={shown(self._settings.isolation)}: transactions need read_committed, the default: by "
                "it the next owner of a partition waits for the end of an open transaction; else it would begin before "
                "it, and your records would come twice"
            )

    def transaction_offsets(self, messages: Iterable[Message]) -> list[TopicPartition]:
        """Return the offsets, with metadata, of a transaction in which these messages end, and hidden ones with them.

        For a loop of your own, with ``completion="explicit"`` or ``enable.auto.commit=false``; `transactions` does all
        of it. Give the offsets to ``producer.send_offsets_to_transaction``, with `consumer_group_metadata` of the time
        when you got the first of the messages, and tell how the transaction ended: `transaction_committed` or
        `transaction_aborted`. A partition stands at the first message that you got and do not name. Raises
        `TransactionError` if you have one of the messages no more: abort the transaction. For the thread that asks for
        messages.
        """
        if self._delivery.policy.completes_on_next_call:
            raise ConfigurationError(
                "transaction_offsets() needs a consumer whose next call completes nothing: give "
                'completion="explicit", or "enable.auto.commit": False, or use transactions()'
            )
        self._refuse_dirty_offsets()
        named = list(messages)
        for message in named:
            refuse_other(message)
        # Callbacks of rebalances run here: a message that comes again is handed out without a call of the client.
        self.consume(0)
        until = time.monotonic() + ASK_S
        while (offsets := self._in_hand.transaction_offsets(named)) is None:
            if time.monotonic() > until:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "a commit before has no answer"))  # noqa: SLF001 (that is its public name)
            self.consume(0)
            time.sleep(_ANSWER_PAUSE_S)
        return offsets

    @_ends_messages
    def transaction_committed(self, messages: Iterable[Message], offsets: list[TopicPartition]) -> None:
        """Complete the messages of a transaction that is committed, with the offsets of `transaction_offsets`.

        From any thread.
        """
        self._steps.do_or_note(
            self._in_hand.transaction_committed, list(messages), _partitions(offsets, "offsets")
        )

    @_ends_messages
    def transaction_aborted(self, messages: Iterable[Message]) -> None:
        """Release the messages of a transaction that is aborted, in this order; those gone are left out.

        From any thread. Call it only if the transaction is surely not committed.
        """
        self._steps.do_or_note(self._in_hand.transaction_aborted, list(messages))

    def consumer_group_metadata(self) -> Any:
        """Return the metadata with which a transactional producer commits offsets; that completes no message here.

        From any thread.
        Commit the offsets of `transaction_offsets`, which have the text that keeps the group's history. Offsets of your
        own have none, so that after a restart messages that depend on older IDs are unverified, and you must call
        `store_offsets` when the transaction is committed.
        """
        if self._session.commits.begin_transactions():
            logger.warning(
                "consumer_group_metadata(): offsets that a transaction commits complete nothing, and vouch for no "
                "history, unless they are those of transaction_offsets(messages): use these, or transactions()",
                extra={"event": "transactions-complete-nothing"},
            )
        return self._assignment.of_member(Consumer.consumer_group_metadata)

    # --- questions, from any thread and in callbacks: see `dedup_sdk._kafka.client.questions` ------------------------

    def assignment(self) -> list[TopicPartition]:
        """Return the assigned partitions, each with the offset that it was assigned with. From any thread."""
        self._access.check_open()
        # A copy, made at once, and not with the lock: a step that has the lock may wait for a broker.
        return [assigned.as_given for assigned in self._session.assigned.copy().values()]

    def memberid(self) -> str:
        """Return the ID that the group gave this member. From any thread."""
        return cast("str", self._assignment.of_member(Consumer.memberid))

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """Return the group's committed offsets, as the plain client does. From any thread."""
        return self._ask(Consumer.committed, _partitions(partitions), timeout=timeout)

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """Return the first offsets at or after timestamps (ms), as the plain client does. From any thread."""
        return self._ask(Consumer.offsets_for_times, _partitions(partitions), timeout=timeout)

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,  # noqa: FBT001, FBT002 (the plain client's signature)
    ) -> tuple[int, int]:
        """Return the first offset and the end of a partition, as the plain client does. From any thread."""
        if cached:
            in_step = self._access.is_mine()
            with self._access.lock:
                alone = in_step or self._access.until_client_free_or_callback()
                self._access.check_open()
                if alone:
                    return super().get_watermark_offsets(partition, cached=True)
        return self._ask(Consumer.get_watermark_offsets, partition, timeout=timeout)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Return the metadata of the cluster, as the plain client does. From any thread."""
        return self._ask(Consumer.list_topics, topic, timeout=timeout)

    def cluster_id(self, timeout: float = -1) -> str:
        """Return the cluster's ID, as the plain client does. From any thread."""
        if not HAS_CLUSTER_ID:
            return str(self.list_topics("", timeout).cluster_id)
        return self._ask(Consumer.cluster_id, timeout=timeout)

    def _ask(self, question: Callable[..., _T], *arguments: Any, timeout: float) -> _T:
        self._access.check_open()
        return self._client.questions.ask(question, *arguments, timeout=timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Use these credentials from the next login on, in every client of this consumer. From any thread.

        Besides the client that reads there are those that ask for metadata, read during recoveries, send dead letters,
        and write in transactions. Connections that are open stay open. The clients of the loop get the credentials
        between two of its calls: a synchronous `commit` that waits for just these fails first, and has them when it is
        repeated.
        """
        given: dict[str, object] = {"username": username, "password": password}
        for name, value in given.items():
            if not isinstance(value, str):
                # Without the value: it may be the password.
                raise TypeError(f"{name} is not text; give the credentials as str")
            if "\0" in value or not is_writable(value):
                raise ValueError(f"{name} has a character that no client can send; write it again")
        self._access.check_open()
        self._client.log_in(username, password)
        runner = self._runner
        if runner is not None:
            runner.log_in(username, password)
        if (block := self._block) is not None:
            block.log_in(username, password)
        # A step that has the lock may wait for a broker, which waits for these credentials.
        self._interruption.request_maintenance()
        self._access.run_if_free(self._tell_login)

    def _tell_login(self) -> None:
        # Not in a callback of the client, which would end the process; maintenance tells the clients then.
        if not self._access.closed and self._access.client_thread is None:
            self._client.tell_login()

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        theirs = self._session.commits.answered(error, partitions)
        if self._settings.on_commit is not None and (theirs or not partitions):
            self._callback_errors.run(self._settings.on_commit, error, theirs)

    # --- which partitions are read -------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Subscribe as the plain client does; callbacks get this consumer and may set offsets and call `assign`.

        From any thread but one that a callback of yours waits for, as all calls that change what is assigned.
        Your callbacks run before the consumer's own work. Their exceptions are raised by the `poll`, `consume` or
        `close` that ran them, and cost no message. Do no slow work in them: the group waits. ``on_revoke`` may wait for
        threads of yours: messages that they `complete` meanwhile are committed, and their `commit` goes out after the
        callback. From ``on_lost`` on, completions of these partitions count as stale.
        """
        given: object = topics  # what callers without a type checker pass
        if not isinstance(given, list):
            listed = f"[{shown(given)}]" if isinstance(given, str) else "['orders']"
            raise TypeError(f"topics={shown(given)}: give a list of topics, e.g. subscribe({listed})")
        for each in given:
            # The client ends the whole process for some of these.
            if not isinstance(each, str) or any("\ud800" <= character <= "\udfff" for character in each):
                raise TypeError(f"topics={shown(given)}: {shown(each)} is not a topic's name; give text")
        self._steps.do_or_note(self._subscribe, topics, on_assign, on_revoke, on_lost)

    def _subscribe(self, topics: list[str], *callbacks: RebalanceCallback | None) -> None:
        try:
            self._assignment.subscribe(topics, *callbacks)
        except KafkaException as error:
            raise _refused_topics(error, topics) from None

    def unsubscribe(self) -> None:
        """Leave the group; the messages of the last call come again to the next owner of their partition.

        Unless your own `commit` completes them before it: behind this call, too, or in ``on_revoke``.
        From any thread, as `subscribe`.
        The partitions are revoked, and `on_revoke` is called, with the next `poll` or `consume`. Partitions that you
        assigned by hand stay, as with the plain client.
        """
        self._steps.do_or_note(self._assignment.unsubscribe)

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Take exactly these partitions; inside ``on_assign`` the way to set their offsets. From any thread."""
        self._steps.do_or_note(self._assignment.assign, _partitions(partitions))

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Take these partitions besides those that are assigned; inside ``on_assign`` as `assign`. From any thread."""
        self._steps.do_or_note(self._assignment.incremental_assign, _partitions(partitions))

    def unassign(self) -> None:
        """Let all partitions go: completed work is written and committed. From any thread.

        Inside ``on_assign`` as `assign` of none.
        """
        self._steps.do_or_note(self._assignment.unassign)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Let these partitions go: completed work is written and committed. From any thread."""
        self._steps.do_or_note(self._assignment.incremental_unassign, _partitions(partitions))

    def seek(self, partition: TopicPartition) -> None:
        """Read a partition from another offset on. From any thread.

        Messages below the target that you got are completed (not with ``completion="explicit"``), the others are
        forgotten. A seek forward begins the group's history anew at the target. After a seek backward, completed
        messages come again with the verdicts of the first time; a seek to the first unfinished message does not count
        as one. A seek to `position()` is no move: messages in flight stay in flight. What was completed before is
        committed, unless you commit yourself; the commit follows a seek backward as soon as that has brought a message.
        If you commit yourself, and do not, the next start is at the committed offset, and messages completed above it
        come again. If another thread calls it while a rebalance callback runs, it is done after the callback, if the
        partition is still assigned.
        """
        if not isinstance(partition, TopicPartition):
            raise TypeError(f"partition={shown(partition)}: give e.g. TopicPartition('orders', 0, 42)")
        self._steps.do_or_note(self._positions.seek, partition)

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return, for each partition, the offset after the last message that was delivered or hidden. From any thread.

        While a message was released, or waits for a worker of `run`: the lowest offset of these messages. In a signal
        handler that interrupted another call: the offset below which all is completed.
        """
        return self._positions.position(_partitions(partitions))

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Deliver nothing from these partitions until `resume`; fetched messages wait, too. From any thread."""
        self._steps.do_or_note(self._positions.pause, _partitions(partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Deliver from these partitions again; one that still recovers starts when that is done. From any thread."""
        self._steps.do_or_note(self._positions.resume, _partitions(partitions))

    # --- verdicts, counters, status --------------------------------------------------------------------------------

    def verdict(self, message: Message) -> Verdict | None:
        """Return the verdict of a message that you got, by its topic, partition and offset; None if it is forgotten.

        From any thread.
        """
        refuse_other(message)
        return self._in_hand.verdict(message)

    @property
    def counters(self) -> Counters:
        """Totals by verdict since the consumer was made. From any thread, without waiting."""
        self._poller.look_if_free()
        return self._engine.counters

    @property
    def partition_statuses(self) -> list[PartitionStatus]:
        """The state of each assigned partition, and the reasons why it waits. From any thread, without waiting.

        While another thread is in a step, these are the statuses after the last step, at most about a second older.
        """
        board = self._session.board
        if self._access.is_mine():
            # For an observer, who is told of this step. A signal's handler may meet a partition that is half changed.
            with contextlib.suppress(AssertionError, AttributeError, LookupError):
                board.renew()
        else:
            self._poller.look_if_free(board.renew)
        return list(board.statuses)

    def metrics(self) -> Metrics:
        """Return all counters, gauges and histograms of the registry at this moment. From any thread, without waiting.

        The sizes of the stores follow a second after the first call.
        """
        self._session.board.ask_for_sizes()
        statuses = self.partition_statuses
        counters = self._engine.counters
        return Metrics(self._settings.group, tuple(samples_of(counters, by_partition(counters), statuses)))

    def health(self) -> Health:
        """Return whether the consumer works, with the reasons if it does not. From any thread, without waiting.

        ``live`` is False if your program has not asked for messages for longer than ``max.poll.interval.ms``, if the
        client has stopped fetching a partition, or has failed for good. See `Health` for ``ready``.
        """
        session = self._session
        asked = Asked(
            at=self._poller.heard_at,
            interval_s=self._settings.poll_interval_s,
            is_subscribed=self._assignment.subscribed,
            has_partitions=bool(session.assigned),
            has_assignment=session.has_assignment,
            is_closed=self._access.closed or self._access.closer is not None,
            ended_by=session.ended_by,
        )
        return health_of(asked, self.partition_statuses, self._upkeep.fetch_watch, time.monotonic())

    @property
    def effective_window_ms(self) -> int | None:
        """The shortest time in ms over which IDs are known, of all partitions. From any thread, without waiting.

        None before a partition is ready, and without a window by time.
        """
        known = [status.effective_window_ms for status in self.partition_statuses]
        return min((window_ms for window_ms in known if window_ms is not None), default=None)

    # --- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the messages of the last call, write and commit completed ones, leave; harmless if repeated.

        From any thread, but not in a callback, nor in a signal handler that interrupted a call for messages. With
        ``enable.auto.commit=false`` only hidden records behind your commits are committed. All of it together (running
        handlers, the commit, the group, the stores, the client) takes ``revoke_deadline`` seconds at most: no step
        waits for a handler, broker or coordinator for more than half of the time that is left. Not in that sum: your
        own callbacks, and a commit of a coordinator that falls silent at that moment, for which the client has no time
        limit. What does not fit is given up, and comes again. Calls in your callbacks that would change the
        subscription or the assignment meanwhile have no effect; each is logged. Exceptions of your rebalance callbacks
        and of ``on_commit`` are raised at the end, those of ``error_cb`` and other events are logged.
        """
        until = time.monotonic() + self._settings.revoke_deadline_s
        in_callback = self._callback_errors.runs_here()
        if depth_in((DedupConsumer.close,), self) == 1:
            # A second exception may have struck before the call that it interrupted could say so.
            self._access.end_close()
        if self._access.closer == get_ident() or (in_callback and self._access.closer is not None):
            # A callback of the close itself, which may run on a thread of its own.
            return
        if in_callback:
            raise RuntimeError(CLOSE_IN_CALLBACK)
        if self._is_in_call:
            raise RuntimeError(
                "close() was called by a signal handler, or an observer, in the middle of a call of the same thread, "
                "which it would wait for; call stop() there, and close() after your loop"
            )
        # No context manager: an exception of a signal could leave that half entered while its traceback is kept.
        try:
            if self._access.begin_close():
                self._close(until)
        finally:
            self._access.end_close()

    @property
    def _is_in_call(self) -> bool:
        """Whether this thread is in a call for messages, in `run` or in a step, and a signal's handler calls."""
        return self._poller.is_in_call or is_inside(DedupConsumer.run, self)

    def _close(self, until: float) -> None:
        self._callback_errors.begin_close()
        with self._access.lock:
            self._access.until_client_free()
            self._steps.do_noted()
            warn_of_recovering(self._session.assigned.values())
            self._session.close_by(until)
            self._steps.run_kept(self._handover.settle)
            by_hand = self._session.assigned.keys() - self._session.of_group
            self._steps.run_kept(self._assignment.part)
            if self._interruption.happened:
                # Its state may be half changed: again, from what is completed.
                self._steps.run_kept(self._assignment.part)
        began = time.monotonic()
        if self._session.of_group:
            self._callback_errors.run(self._assignment.commit_in_group)
        self._end(self._access.call_client, self._close_client, by_hand, began, until)
        with self._access.lock:
            self._client.readers.close(max(0.0, until - time.monotonic()))
            self._client.requests.renew()
            self._client.questions.close(max(0.0, until - time.monotonic()))
            # Not the store: it may be the user's, and other consumers may have partitions of it open.
            for topic, partition in self._engine.opened:
                in_time = time.monotonic() < until
                self._end(self._engine.close if in_time else self._engine.lose, topic, partition)
            if self._engine.gatekeeper is not None:
                self._end(self._engine.gatekeeper.close)
            # Last: an interrupted `close` can be repeated.
            self._access.close()
        self._client_end = None
        self._callback_errors.raise_kept()

    def _end(self, step: Callable[..., object], *arguments: Any) -> None:
        """Do a step of `close`; keep an error of it. An interruption is raised: `close` has to be repeated."""
        try:
            step(*arguments)
        except Exception as error:
            if is_interruption(error):
                raise
            self._callback_errors.keep(error)

    def _close_client(self, by_hand: Collection[tuple[str, int]], began: float, until: float) -> None:
        if self._client_end is not None and self._client_end.has_begun:
            # An earlier `close` was interrupted.
            self._client_end.wait(max(0.0, until - time.monotonic()))
            return
        self._session.commits.become_last()
        leaves_by = self._session.leaves_by(began)
        leave_group(self, self._settings.membership, until=leaves_by, by_hand=by_hand)
        with self._access.lock:
            # The partitions of a static member, or of a group that could not be left: the client revokes them inside
            # its `close`, where no request is answered, so no deadline could be kept there.
            left = [TopicPartition(*coordinates) for coordinates in self._session.assigned]
            self._steps.run_kept(self._handover.give_back, left)
            self._session.commit_no_more()
        within_s = max(0.0, until - time.monotonic())
        if not (Consumer.assignment(self) or self._session.awaits_last_answer):
            # Nobody waits for it any more. It may still hang on a connection of its own.
            within_s = min(within_s, CLIENT_END_S)
        self._client_end = ClientEnd(self, self._access.enter_client)
        self._client_end.wait(within_s)

    def __del__(self) -> None:
        """Close a consumer that was dropped without `close`, on a thread of its own: the client may never return."""
        # A constructor that failed has subscribed nothing.
        if getattr(self, "_in_hand", None) is None or self._access.closed or sys.is_finalizing():
            return
        try:
            warnings.warn(
                f"{self._dropped}; use it in a with block, or call close()",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )
        finally:
            # The collector may run while this thread holds the locks that logging, or a `threading.Thread`, needs.
            start_new_thread(self._begin_to_close, ())

    @property
    def _dropped(self) -> str:
        return f"a DedupConsumer of group {shown(self._settings.group)} was dropped without close()"

    def _begin_to_close(self) -> None:
        # Not a daemon: the interpreter must wait for it at exit.
        Thread(target=self._close_dropped, name="dedup-close", daemon=False).start()

    def _close_dropped(self) -> None:
        logger.warning("%s: it is closed now", self._dropped, extra={"event": "dropped-without-close"})
        try:
            self.close()
        except Exception:
            logger.exception(
                "closing a consumer that was dropped failed", extra={"event": "dropped-close-failed"}
            )

    def leave_to_parent(self) -> bool:
        """Count as closed in the child of a fork, where the holder of a lock does not exist; False if closed before."""
        if self._access.closed:
            return False
        self._access.leave_to_parent()
        self._interruption.request_maintenance()
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close; if the block ended without an exception, the messages in flight are completed first."""
        if error is None:
            try:
                self._steps.do_noted()
                with self._access.lock:
                    if not self._access.closed:
                        self._steps.run_kept(self._in_hand.complete_given)
            finally:
                self.close()
            return
        try:
            self.close()
        except Exception:
            logger.exception(
                "closing failed too, after %s", error_shown(error), extra={"event": "close-failed"}
            )


def _is_nested(consumer: DedupConsumer) -> bool:
    """Whether this thread is inside two calls for messages of a consumer: a signal's handler has made the second."""
    return depth_in((DedupConsumer.poll, DedupConsumer.consume), consumer) > 1


def _is_closing(consumer: DedupConsumer, frame: FrameType | None) -> bool:
    return frame is not None and depth_in((DedupConsumer.close,), consumer, frame) > 0


def _partitions(given: Any, name: str = "partitions") -> list[TopicPartition]:
    """Return the partitions that a call is given; they must be a list, as for the plain client."""
    if not isinstance(given, list) or not all(isinstance(each, TopicPartition) for each in given):
        raise TypeError(
            f"{name}={shown(given)}: give a list of TopicPartition, e.g. [TopicPartition('orders', 0, 42)]"
        )
    return given


def _refused_topics(error: KafkaException, topics: list[Any]) -> KafkaException:
    """Return the client's error about topics that it cannot subscribe to, with a text that says why."""
    code = error.args[0].code()
    if code != KafkaError._INVALID_ARG:  # noqa: SLF001 (that is its public name)
        return error
    advice = "give at least one topic, e.g. subscribe(['orders'])"
    if topics:
        advice = "give each topic once, none of them empty, and patterns (which begin with ^) without errors"
    return KafkaException(KafkaError(code, f"topics={shown(topics)}: {advice}"))


_NUMBERS: Final = (float, int)
_ANSWER_PAUSE_S: Final = 0.005
CLOSE_IN_CALLBACK: Final = (
    "close() was called in a callback, and would wait for ever for the call that runs it; call stop() there, and "
    "close() after your loop"
)
_IN_STEP: Final = (
    "commit(asynchronous=False) was called by a signal handler, or an observer, in the middle of a call of the same "
    "thread; call commit() there, which is carried out a little later"
)


def _seconds(timeout: Any) -> float:
    """Return a call's timeout as the plain client takes it: any number; None, and -1, mean no limit."""
    if timeout is None:
        return -1
    try:
        if hasattr(timeout, "__index__"):
            return operator.index(timeout)
        given = float(timeout.__float__())
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"timeout={shown(timeout)}: give seconds, e.g. 1.0") from None
    if isnan(given):
        # No time is at or after it: the call would never return.
        raise ValueError(f"timeout={shown(timeout)}: give seconds, e.g. 1.0, or -1 for no limit")
    return given


def _refuse_choices(**chosen: str) -> None:
    for name, value in chosen.items():
        choice(name, value, _CHOICES[name])


def _keywords(function: Callable[..., object]) -> list[str]:
    return [
        name for name, each in signature(function).parameters.items() if each.kind is Parameter.KEYWORD_ONLY
    ]


_OURS: Final = _keywords(DedupConsumer)
_ELSEWHERE: Final = {
    **{name: f"store=RocksStore('var/dedup', {name}=...)" for name in _keywords(RocksStore)},
    **{name: f"run({name}=...)" for name in _keywords(DedupConsumer.run)},
    **{
        each.name: f"dedup={kind.__name__}({each.name}=...)"
        for kind in (LastId, Lookup)
        for each in fields(kind)
    },
    **{each.name: f"recovery=Recovery({each.name}=...)" for each in fields(Recovery)},
}
"""Settings that are not given to the constructor itself -> where they are given."""


def _refuse_strategy(dedup: Strategy, mode: Mode, recovery: Recovery) -> None:
    """Raise `ConfigurationError` if it is no strategy, or does not fit the other settings."""
    if not isinstance(dedup, Lookup | LastId):
        raise ConfigurationError(
            f"dedup={shown(dedup)}: give a strategy, e.g. Lookup(id=header('dedup-id'), window=Window(days=7))"
        )
    if isinstance(dedup, Lookup) and dedup.unit is not None and mode == "observe":
        raise ConfigurationError(
            "mode='observe' hides nothing, and a unit is withheld until it is whole: leave out unit, or choose "
            "mode='dedup'"
        )
    given: object = recovery  # what callers without a type checker pass
    if not isinstance(given, Recovery):
        raise ConfigurationError(
            f"recovery={shown(given)}: give e.g. Recovery(snapshot='snapshots', timeout=60)"
        )
    recovery.check_strategy(dedup)


def _sharing(
    given: Shared | ClaimStore | None, dedup: Strategy, mode: Mode, settings: ClientSettings
) -> Shared | None:
    if given is None:
        return None
    # Only a consumer that shares a memory loads its code.
    from dedup_sdk.shared._settings import shared_for

    return shared_for(given, dedup, observes=mode == "observe", session_s=settings.session_s)


def _id_advice(dedup: Strategy) -> IdWatch:
    # Most consumers never load it.
    from dedup_sdk._advice.ids import IdAdvice

    return IdAdvice(dedup)


def _key_store(store: object, group: str) -> KeyStore:
    if isinstance(store, str | Path):
        store = RocksStore(store)
    if isinstance(store, RocksStore):
        # Here, and not with the first partition: a wrong path is seen when the consumer is made.
        store.try_folder(group)
        return store
    if isinstance(store, type) or not is_key_store(store):
        raise ConfigurationError(
            f"store={shown(store)}: give a folder, e.g. 'var/dedup', or a key store, e.g. MemoryStore()"
        )
    return cast("KeyStore", store)


def _policy(delivery: Delivery, completion: Completion, settings: ClientSettings) -> CompletionPolicy:
    if completion == "explicit":
        return ByName(delivery)
    if settings.completes_on_next_call:
        return OnNextCall(delivery)
    return ByOffsets(delivery, only_stored=settings.only_stored)


def _not_a_record(reason: str) -> KafkaException:
    """Return the error of the plain client for a message that names no record."""
    return KafkaException(KafkaError(KafkaError._INVALID_ARG, reason))  # noqa: SLF001 (that is its public name)


def below_of(message: Any, offsets: list[TopicPartition] | None) -> dict[tuple[str, int], int] | None:
    """Return, for each named partition, the offset below which it is meant; None: all partitions.

    A partition with a negative offset (none, or a logical one) is left out, and a message that has no offset.
    """
    if message is not None and offsets is not None:
        raise ValueError("message and offsets are mutually exclusive")
    if message is not None:
        refuse_other(message)
        if message.error() is not None:
            raise _not_a_record(
                f"the message is an error, {message.error().str()}: give a record that poll() returned"
            )
        if message.offset() is None:
            return {}
        return {(message.topic(), message.partition()): message.offset() + 1}
    if offsets is None:
        return None
    named = _partitions(offsets, "offsets")
    return {(tp.topic, tp.partition): tp.offset for tp in named if tp.offset >= 0}
