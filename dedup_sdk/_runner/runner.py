"""The loop of `DedupConsumer.run`: hands messages to worker threads, and completes, dead-letters or releases them.

Only the polling thread changes the state of the run; workers only call the handler. So a rebalance callback, which
runs on the polling thread with the consumer's lock, can still complete handled messages, and no worker ever waits for
it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

from confluent_kafka import KafkaError, Message

from dedup_sdk._kafka.client.fields import note_message
from dedup_sdk._kafka.deliver.worker_session import WorkerSession
from dedup_sdk._observe import of_partition
from dedup_sdk._runner.dead_letters import DeadLetterProducer, undeliverable
from dedup_sdk._runner.settings import RunSettings
from dedup_sdk._runner.tasks import Coordinates, Task, Tasks
from dedup_sdk._runner.workers import Workers

logger = logging.getLogger("dedup_sdk")

WAIT_S = 0.2
"""Seconds that the loop waits for a message while no task is in flight."""
POLL_S = 0.02
"""Poll interval in seconds: for messages while handlers run, and for handlers while a partition is revoked."""


class LetterReport(NamedTuple):
    """A task with the delivery report of its dead letter; ``error`` is None when it was delivered."""

    task: Task
    error: KafkaError | None


class Ends(Protocol):
    """How messages end whose handlers have succeeded: at once, or in a transaction.

    Its length is the number of tasks that it keeps. ``in_transactions``: whether messages end in no other way.
    """

    @property
    def in_transactions(self) -> bool: ...

    def __len__(self) -> int: ...

    def begin(self) -> None:
        """Begin, in the session, before the first message."""

    def call(self, task: Task) -> object:
        """Call the handler of a task, on a worker's thread."""

    def handled(self, tasks: Sequence[Task]) -> None:
        """End the messages of tasks, or keep them until `work`; with the lock."""

    def kept(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Return the tasks of partitions (None: of all) that have not ended, oldest first."""

    def forget(self, partitions: Collection[Coordinates] | None) -> None:
        """Drop the kept tasks of partitions (None: of all): their messages come again. With the lock."""

    def work(self) -> None:
        """End what is due. Without the lock, between two calls for messages."""

    def finish(self) -> None:
        """End all kept tasks. Without the lock."""

    def log_in(self, username: str, password: str) -> None:
        """Use these credentials from the next login on."""

    def close(self) -> None:
        """Release what is held."""


class EndsAtOnce:
    """`Ends` by which a message is completed when its handler has returned."""

    in_transactions: Final = False

    def __init__(self, settings: RunSettings, session: WorkerSession) -> None:
        self._handler, self._session = settings.handler, session

    def __len__(self) -> int:
        return 0

    def begin(self) -> None:
        """See `Ends`."""

    def call(self, task: Task) -> object:
        """See `Ends`."""
        return self._handler(task.message)

    def handled(self, tasks: Sequence[Task]) -> None:
        """See `Ends`."""
        self._session.complete([task.message for task in tasks])

    def kept(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """See `Ends`."""
        del partitions
        return []

    def forget(self, partitions: Collection[Coordinates] | None) -> None:
        """See `Ends`."""

    def work(self) -> None:
        """See `Ends`."""

    def finish(self) -> None:
        """See `Ends`."""

    def log_in(self, username: str, password: str) -> None:
        """See `Ends`."""

    def close(self) -> None:
        """See `Ends`."""


class Runner:
    """One run over a `WorkerSession`. Its state changes only in ``session.exclusive()``.

    ``failure`` is the error that ends the run. ``letters`` sends dead letters; None if failures are not
    dead-lettered.
    """

    def __init__(
        self,
        settings: RunSettings,
        session: WorkerSession,
        *,
        group: str,
        letters: DeadLetterProducer | None,
        ends: Ends,
    ) -> None:
        self._ends = ends
        self.failure: BaseException | None = None
        self._settings, self._session, self._counters = settings, session, session.counters
        self._group, self._letters = group, letters
        self._tasks = Tasks(settings.order, self._counters)
        self._workers = Workers(ends.call, settings.workers, settings.retries, settings.is_final)
        self._reports: dict[Task, KafkaError | None] = {}
        """Delivery reports of dead letters, by task: None, or the error of a letter that was not delivered."""
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the worker threads and the producer; messages still in flight are abandoned."""
        idle = not self._tasks
        self._workers.close()
        if idle:
            self._workers.join(timeout_s=1.0)
        if self._letters is not None:
            self._letters.close()
        self._ends.close()

    def run(self) -> None:
        """Handle messages until `stop`, an error, or ``idle_timeout``; then wait for the running handlers."""
        try:
            self._ends.begin()
            self._serve()
        except BaseException:
            self._drain_after_error()
            raise
        self._drain(None if self.failure is None else self._session.deadline_s)

    def log_in(self, username: str, password: str) -> None:
        """Have the producers use these credentials from their next login on."""
        self._ends.log_in(username, password)
        if self._letters is not None:
            self._letters.log_in(username, password)

    def stop(self) -> None:
        """Begin no further message. You may call this from any thread, or from a signal handler."""
        self._stopped = True
        self._workers.halt()

    @property
    def ends_in_transactions(self) -> bool:
        """Whether messages end in transactions, and in no other way."""
        return self._ends.in_transactions

    def has(self, message: Message) -> bool:
        """Whether a message is in flight."""
        return any(task.message is message for task in (*self._tasks.of(), *self._ends.kept()))

    # --- the loop ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        session = self._session
        while not self._stopped and self.failure is None:
            self._process_outcomes(0)
            self._ends.work()
            kept = len(self._ends)
            if len(self._tasks) + kept >= self._settings.max_in_flight:
                if not self._process_outcomes(POLL_S):
                    session.keep_alive()
                continue
            message = session.poll(0 if self._tasks else POLL_S if kept else WAIT_S)
            if message is not None:
                with session.exclusive():
                    self._accept(message)
            elif session.is_idle(busy=bool(self._tasks or kept)):
                return
            elif self._tasks:
                self._process_outcomes(POLL_S)

    def _accept(self, message: Message) -> None:
        if not self._session.is_delivered(message):
            # Its partition was revoked or moved after the message left the delivery queue.
            return
        task = Task(message)
        if self._tasks.add(task):
            self._workers.put(task)

    def _drain(self, timeout_s: float | None) -> None:
        """Wait for running handlers, at most ``timeout_s``; have the other messages delivered again, in order."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self._workers.halt()
        try:
            self._withdraw()
            while self._tasks and (until is None or time.monotonic() < until):
                self._process_outcomes(POLL_S)
                self._withdraw()
                self._session.keep_alive()
                if until is None and self._tasks.are_finished:
                    # The broker may be away: dead letters are not waited for without an end.
                    until = time.monotonic() + self._session.deadline_s
            self._ends.finish()
        finally:
            with self._session.exclusive():
                for task in self._ends.kept():
                    self._session.give_back(task.message)
                self._ends.forget(None)
                for task in self._abandon(None):
                    self._give_back(task)
                self._session.deliver_again()

    def _drain_after_error(self) -> None:
        """Drain after an error; a second error is logged, so that it does not hide the first."""
        try:
            self._drain(self._session.deadline_s)
        except Exception:
            self._session.doubt()
            logger.exception(
                "waiting for the running handlers failed; the messages in flight are delivered again",
                extra={"event": "handlers-not-ended"},
            )

    def _withdraw(self) -> None:
        with self._session.exclusive():
            self._session.keep_back(task.message for task in self._tasks.withdraw())

    # --- outcomes of messages ------------------------------------------------------------------------------------

    def _process_outcomes(self, timeout_s: float) -> bool:
        """Process finished tasks and delivery reports; wait for one up to ``timeout_s``. True if there was any."""
        finished = self._workers.finished(timeout_s)
        if not finished and not self._letter_reports():
            return False
        with self._session.exclusive(), self._session.ending():
            done = []
            for task in finished:
                if not self._workers.acknowledge(task):
                    continue
                if task not in self._tasks:
                    # Abandoned, perhaps while this thread waited for the lock: its message is delivered again. But no
                    # handler begins after a final error.
                    if task.error is not None and self._settings.is_final(task.error):
                        note_message(task.error, task.message, task.attempts)
                        self._fail(task.error)
                    continue
                of_partition(self._counters, *task.coordinates).retried += max(0, task.attempts - 1)
                if task.error is not None:
                    self._handle_failure(task, task.error)
                    continue
                self._remove(task)
                done.append(task)
            self._ends.handled(done)
            for task, error in self._letter_reports():
                if error is None:
                    self._remove(task)
                    self._session.complete([task.message], dead_lettered=True)
                else:
                    self._fail(undeliverable(task.message, error))
                    self._give_back(task)
        return True

    def _remove(self, task: Task) -> None:
        """Remove a task, and start the next one of its key queue."""
        following = self._tasks.remove(task)
        self._reports.pop(task, None)
        # After a failure the next message with the same key must not overtake the failed one.
        if following is not None and self.failure is None:
            self._workers.put(following)

    def _fail(self, error: BaseException) -> None:
        """End the run with an error; the first error wins."""
        self.failure = self.failure or error

    def _give_back(self, task: Task) -> None:
        """Remove a task and release its message, which is delivered again after the run."""
        if task in self._tasks:
            self._remove(task)
        self._session.give_back(task.message)

    def _handle_failure(self, task: Task, error: BaseException) -> None:
        """Handle an error after the last retry: end the run, or send a dead letter, as ``on_error`` says."""
        known = self._session.in_flight(task.message)
        attempts = task.attempts if known is None else known.attempt - 1 + task.attempts
        note_message(error, task.message, attempts)
        if self._settings.is_final(error):
            self._fail(error)
            self._give_back(task)
            return
        if known is None:
            self._remove(task)
            self._counters.stale += 1
            return
        if self._letters is None:
            raise AssertionError("a run without a dead-letter topic tried to send a dead letter")
        # The task stays in flight until its delivery report was processed.
        self._letters.send(
            task.message,
            error,
            partial(self._report, task),
            group=self._group,
            attempts=attempts,
            digest=known.digest,
        )

    def _report(self, task: Task, error: KafkaError | None) -> None:
        self._reports[task] = error

    def _letter_reports(self) -> list[LetterReport]:
        """Return the delivery reports of tasks in flight; reports of removed tasks are dropped."""
        if self._letters is not None:
            self._letters.poll()
        # Copies, each made in one step: a thread that moves a partition removes tasks, and their reports.
        for task in list(self._reports):
            if task not in self._tasks:
                self._reports.pop(task, None)
        return [LetterReport(task, error) for task, error in list(self._reports.items())]

    # --- revoked and lost partitions -----------------------------------------------------------------------------

    def leave(self, partitions: Collection[Coordinates], *, until: float | None) -> None:
        """Process the outcomes in partitions that are revoked, and abandon their other tasks; call with the lock held.

        ``until``: when (monotonic seconds) running handlers are waited for no longer; None: not at all.
        """
        revoked = set(partitions)
        self._tasks.withdraw(revoked)
        # A handler that caused the revocation would wait for itself.
        until = 0.0 if until is None or self._workers.is_this_thread else until
        while self._tasks.of(revoked):
            self._process_outcomes(0)
            self._tasks.withdraw(revoked)
            if not self._tasks.of(revoked) or time.monotonic() >= until:
                break
            # A rebalance callback holds the lock; a handler may need it, e.g. for `verdict`. So wait without it.
            self._session.wait(POLL_S)
        self._ends.forget(revoked)
        self._abandon(revoked)

    def began(self, partitions: Collection[Coordinates]) -> set[int]:
        """Return the offsets of messages whose handler was called, of partitions; call with the lock held."""
        began = (*self._tasks.of(partitions), *self._ends.kept(partitions))
        return {task.offset for task in began if task.attempts}

    def withdraw(self, partitions: Collection[Coordinates]) -> set[int]:
        """Drop the tasks of partitions whose handlers were never called; return their offsets; with the lock held."""
        return {task.offset for task in self._tasks.withdraw(partitions) if not task.attempts}

    def lose(self, partitions: Collection[Coordinates] | None) -> None:
        """Abandon the tasks of lost partitions (None: of all) without a write; call with the lock held."""
        self._tasks.withdraw(partitions)
        self._ends.forget(partitions)
        self._abandon(partitions)

    def _abandon(self, partitions: Collection[Coordinates] | None) -> list[Task]:
        """Remove and count the tasks in flight; their messages are delivered again, even if a handler succeeds."""
        abandoned = self._tasks.of(partitions)
        for task in abandoned:
            task.abandon()
        for task in reversed(abandoned):
            self._tasks.remove(task)
        for task in abandoned:
            self._counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d: stopped waiting for its handler or dead letter; the message is delivered again",
                *task.coordinates,
                task.offset,
                extra={"event": "handler-not-ended"},
            )
        return abandoned
