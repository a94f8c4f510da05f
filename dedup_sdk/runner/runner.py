"""One run of a handler: messages go to worker threads, and what fails is tried again or dead-lettered, in order.

Only the thread that polls draws conclusions; the workers do nothing but call the handler. So a rebalance callback, which runs on the polling
thread with the consumer's lock, can still complete what they did, and no worker ever waits for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from functools import partial
from types import TracebackType
from typing import NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message

from dedup_sdk.errors import DeadLetterError
from dedup_sdk.kafka.worker_session import WorkerSession
from dedup_sdk.runner.dead_letters import DeadLetter, DeadLetterProducer
from dedup_sdk.runner.settings import RunSettings
from dedup_sdk.runner.tasks import Coordinates, Task, Tasks
from dedup_sdk.runner.workers import Workers

logger = logging.getLogger("dedup_sdk")

WAIT_S = 0.2
"""Seconds that the loop waits for a message while nothing is in flight."""
LOOK_S = 0.02
"""Seconds between two looks for new messages while handlers are busy, and for handlers while a partition goes."""

_ITSELF = KafkaError(KafkaError._INVALID_ARG, "the message is in the dead-letter topic already")  # noqa: SLF001 (its public name)


class DeadLettered(NamedTuple):
    """A task whose dead letter came to an end; ``error`` is None when it was delivered."""

    task: Task
    error: KafkaError | None


class Runner:
    """One run and its loop, over a `WorkerSession`. Its state changes only in ``session.exclusive()``.

    ``failure`` is the error that ends the run. ``letters`` sends dead letters, None where failures are not dead-lettered.
    """

    def __init__(
        self,
        settings: RunSettings,
        session: WorkerSession,
        *,
        group: str,
        letters: DeadLetterProducer | None,
    ) -> None:
        self.failure: BaseException | None = None
        self._settings, self._session, self._counters = settings, session, session.counters
        self._group, self._letters = group, letters
        self._tasks = Tasks(settings.order)
        self._workers = Workers(settings.handler, settings.workers, settings.retries, settings.is_final)
        self._reports: dict[Task, KafkaError | None] = {}
        """Dead letters whose delivery report has come, with the error where they were not delivered."""
        self._stopped = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End threads and producer; what is in flight by now is nobody's."""
        idle = not self._tasks
        self._workers.close()
        if idle:
            self._workers.join(timeout_s=1.0)
        if self._letters is not None:
            self._letters.close()

    def run(self) -> None:
        """Have messages handled until `stop`, an error, or silence; then wait for the handlers that are running."""
        try:
            self._serve()
        except BaseException:
            self._wind_up_anyhow()
            raise
        self._wind_up(None if self.failure is None else self._session.deadline_s)

    def stop(self) -> None:
        """Begin no further message. From any thread, or a signal handler."""
        self._stopped = True
        self._workers.halt()

    def has(self, message: Message) -> bool:
        """Whether a message is in flight."""
        return any(task.message is message for task in self._tasks.of())

    # --- the loop ------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        session = self._session
        while not self._stopped and self.failure is None:
            self._settle(0)
            if len(self._tasks) >= self._settings.max_in_flight:
                if not self._settle(LOOK_S):
                    session.keep_alive()
                continue
            message = session.poll(0 if self._tasks else WAIT_S)
            if message is not None:
                with session.exclusive():
                    self._take(message)
            elif session.is_idle(busy=bool(self._tasks)):
                return
            elif self._tasks:
                self._settle(LOOK_S)

    def _take(self, message: Message) -> None:
        if self._session.in_flight(message) is None:
            # Its partition went, or was moved, on the way from the queue.
            return
        task = Task(message)
        if self._tasks.add(task):
            self._workers.put(task)

    def _wind_up(self, patience_s: float | None) -> None:
        """Wait for the running handlers, ``patience_s`` seconds at most; have the rest delivered again, in order."""
        until = None if patience_s is None else time.monotonic() + patience_s
        self._workers.halt()
        try:
            self._withdraw()
            while self._tasks and (until is None or time.monotonic() < until):
                self._settle(LOOK_S)
                self._withdraw()
                self._session.keep_alive()
        finally:
            with self._session.exclusive():
                for task in self._abandon(None):
                    self._return(task)
                self._session.deliver_again()

    def _wind_up_anyhow(self) -> None:
        """Wind up after an error, which is not to be hidden by another."""
        try:
            self._wind_up(self._session.deadline_s)
        except Exception:
            logger.exception("the handlers could not be waited for in order; what was in flight comes again")

    def _withdraw(self) -> None:
        with self._session.exclusive():
            self._session.keep_back(task.message for task in self._tasks.withdraw())

    # --- how messages end ----------------------------------------------------------------------------------------

    def _settle(self, timeout_s: float) -> bool:
        """Draw the conclusions from what is over, after at most so many seconds; True when there was something."""
        over = self._over(timeout_s)
        if not over and not self._dead_lettered():
            return False
        with self._session.settling():
            done = []
            for task in over:
                if not self._workers.taken(task) or task not in self._tasks:
                    # Let go while this thread waited for the lock: its handler's work comes again.
                    continue
                self._counters.retried += max(0, task.attempts - 1)
                if task.error is not None:
                    self._give_up(task, task.error)
                    continue
                self._end(task)
                done.append(task.message)
            self._session.complete(done)
            for task, error in self._dead_lettered():
                if error is None:
                    self._end(task)
                    self._session.complete([task.message], dead_lettered=True)
                else:
                    self._fail(_undeliverable(task, error))
                    self._return(task)
        return True

    def _over(self, timeout_s: float) -> list[Task]:
        """Return the tasks whose handler is over, after at most so many seconds; those let go meanwhile are left out."""
        ours: list[Task] = []
        for task in self._workers.over(timeout_s):
            if task in self._tasks:
                ours.append(task)
                continue
            if task.error is not None and self._settings.is_final(task.error):
                self._fail(task.error)
            self._workers.taken(task)
        return ours

    def _end(self, task: Task) -> None:
        """Let a task go; what waited for it begins."""
        following = self._tasks.remove(task)
        self._reports.pop(task, None)
        # What follows a failure in its line must not overtake it.
        if following is not None and self.failure is None:
            self._workers.put(following)

    def _fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        self.failure = self.failure or error

    def _return(self, task: Task) -> None:
        """Release a task's message, to be delivered again after the run."""
        if task in self._tasks:
            self._end(task)
        self._session.give_back(task.message)

    def _give_up(self, task: Task, error: BaseException) -> None:
        """Do what the user wants with a message whose handler failed for good."""
        if self._settings.is_final(error):
            self._fail(error)
            self._return(task)
            return
        known = self._session.in_flight(task.message)
        if known is None:
            self._end(task)
            self._counters.stale += 1
            return
        attempt, digest = known
        letter = DeadLetter.of(
            task.message, error, group=self._group, attempts=attempt - 1 + task.attempts, digest=digest
        )
        logger.warning(
            "%s[%d]@%d goes to the dead-letter topic after %d attempts: %s",
            letter.topic, letter.partition, letter.offset, letter.attempts, letter.error_type,
        )  # fmt: skip
        self._send_letter(task, letter)

    # --- dead letters --------------------------------------------------------------------------------------------

    def _send_letter(self, task: Task, letter: DeadLetter) -> None:
        """Send a dead letter; the task stays in flight until its report is among `_dead_lettered`."""
        if self._letters is None:
            raise AssertionError("a run without dead letters was to send one")
        if letter.topic == self._letters.topic:
            # Else it would come again, and fail again, for ever.
            self._reports[task] = _ITSELF
            return
        try:
            self._letters.send(task.message, letter, partial(self._report, task))
        except KafkaException as error:
            self._report(task, error.args[0])

    def _report(self, task: Task, error: KafkaError | None) -> None:
        self._reports[task] = error

    def _dead_lettered(self) -> list[DeadLettered]:
        """Return the dead letters that came to an end, until their tasks end; those of tasks let go meanwhile are left out."""
        if self._letters is not None:
            self._letters.poll()
        for task in [task for task in self._reports if task not in self._tasks]:
            del self._reports[task]
        return [DeadLettered(task, error) for task, error in self._reports.items()]

    # --- partitions that go --------------------------------------------------------------------------------------

    def leave(self, partitions: Collection[Coordinates], *, waits: bool) -> None:
        """Draw the conclusions of what is over of partitions that go, and let go of the rest; with the lock.

        ``waits``: handlers that are running are waited for.
        """
        going = set(partitions)
        self._tasks.withdraw(going)
        # A handler that has them go would wait for itself.
        waits = waits and not self._workers.is_this_thread
        until = time.monotonic() + (self._session.deadline_s if waits else 0)
        while self._tasks.of(going):
            self._settle(0)
            self._tasks.withdraw(going)
            if not self._tasks.of(going) or time.monotonic() >= until:
                break
            # A handler may need the consumer, e.g. for `verdict`, and this thread has it in a rebalance callback.
            self._session.wait(LOOK_S)
        self._abandon(going)

    def lose(self, partitions: Collection[Coordinates] | None) -> None:
        """Let go of all messages of partitions (None: of all): what their handlers did must not be written any more; with the lock."""
        self._tasks.withdraw(partitions)
        self._abandon(partitions)

    def _abandon(self, partitions: Collection[Coordinates] | None) -> list[Task]:
        """Let go of what is in flight, and count it: it is delivered again, although its handler may still come to its end."""
        abandoned = self._tasks.of(partitions)
        for task in abandoned:
            task.abandon()
        for task in reversed(abandoned):
            self._tasks.remove(task)
        for task in abandoned:
            self._counters.abandoned += 1
            logger.warning(
                "%s[%d]@%d is still being handled, and is not waited for any more: it is delivered again",
                *task.coordinates,
                task.offset,
            )
        return abandoned


def _undeliverable(task: Task, error: KafkaError) -> DeadLetterError:
    topic, partition = task.coordinates
    return DeadLetterError(
        f"the dead letter of {topic}[{partition}]@{task.offset} was not delivered: {error}; the message comes again: see that the "
        "dead-letter topic takes it (max.message.bytes, access rights), then start again"
    )
