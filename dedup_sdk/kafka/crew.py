"""One run of a handler: the tasks in flight, the threads that work on them, and the dead letters under way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Literal, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from dedup_sdk.checks import choice, whole
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.dead_letter_producer import DeadLetterProducer
from dedup_sdk.kafka.dead_letters import DeadLetter
from dedup_sdk.kafka.tasks import Coordinates, Order, Task, Tasks
from dedup_sdk.kafka.workers import Handler, Retries, Workers

MOST_WORKERS = 10_000
"""More threads than that a process does not get, as a rule."""

OnError = Literal["raise", "retry", "dead-letter"]

_ITSELF = KafkaError(KafkaError._INVALID_ARG, "the message is in the dead-letter topic already")  # noqa: SLF001 (its public name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the user chose; raises `ConfigurationError` in one line."""

    handler: Handler
    on_error: OnError
    workers: int
    order: Order
    retries: Retries
    max_in_flight: int

    def __post_init__(self) -> None:
        choice("on_error", self.on_error, ("raise", "retry", "dead-letter"))
        choice("order", self.order, ("key", "none"))
        whole(
            "workers",
            self.workers,
            most=MOST_WORKERS,
            advice=f"give a number of threads from 1 to {MOST_WORKERS:,}",
        )
        whole(
            "max_in_flight", self.max_in_flight, least=self.workers,
            advice=f"some of the {self.workers} workers would be idle; give at least {self.workers}",
        )  # fmt: skip
        if iscoroutinefunction(self.handler) or not callable(self.handler):
            raise ConfigurationError(
                f"handler={self.handler!r}: give a plain function; a coroutine would count as handled before it has run"
            )

    def is_final(self, error: BaseException) -> bool:
        """Whether an error of a handler, its retries used up, ends the run."""
        return self.on_error != "dead-letter" or not isinstance(error, Exception)


class DeadLettered(NamedTuple):
    """A task whose dead letter came to an end; ``error`` is None when it was delivered."""

    task: Task
    error: KafkaError | None


class Crew:
    """The state of one run. Only one thread at a time uses it.

    ``failure`` is what ends the run, ``returned`` are the messages to be delivered again when it has ended.
    """

    def __init__(self, settings: RunSettings, letters: DeadLetterProducer | None) -> None:
        self.settings = settings
        self.letters = letters
        self.failure: BaseException | None = None
        self.returned: list[Any] = []
        self._tasks = Tasks(settings.order)
        self._workers = Workers(settings.handler, settings.workers, settings.retries, settings.is_final)
        self.halt = self._workers.halt
        self._reports: dict[Task, KafkaError | None] = {}

    def __contains__(self, task: Task) -> bool:
        return task in self._tasks

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return len(self._tasks) > 0

    @property
    def full(self) -> bool:
        """Whether no more may be taken in for now."""
        return len(self._tasks) >= self.settings.max_in_flight

    def take(self, message: Any) -> None:
        """Have a message handled."""
        task = Task(message)
        if self._tasks.add(task):
            self._workers.put(task)

    def has(self, message: Any) -> bool:
        """Whether a message is in flight."""
        return any(task.message is message for task in self._tasks.of())

    def over(self, timeout_s: float = 0) -> list[Task]:
        """Return the tasks whose handler is over, after at most so many seconds; those let go meanwhile are left out.

        They are returned again until they are `taken`.
        """
        ours: list[Task] = []
        for task in self._workers.over(timeout_s):
            if task in self._tasks:
                ours.append(task)
                continue
            if task.error is not None and self.settings.is_final(task.error):
                self.fail(task.error)
            self._workers.taken(task)
        return ours

    def taken(self, task: Task) -> bool:
        """Note that the conclusions from a task that is over are drawn; False when they were, or it was let go."""
        return self._workers.taken(task) and task in self._tasks

    def end(self, task: Task) -> None:
        """Let a task go; what waited for it begins."""
        following = self._tasks.remove(task)
        self._reports.pop(task, None)
        # What follows a failure in its line must not overtake it.
        if following is not None and self.failure is None:
            self._workers.put(following)

    def fail(self, error: BaseException) -> None:
        """End the run with an error; the first one counts."""
        self.failure = self.failure or error

    def of(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Return the tasks of some partitions (None: all of them), oldest first."""
        return self._tasks.of(partitions)

    @property
    def is_handling_here(self) -> bool:
        """Whether the calling thread is a worker's, in a handler."""
        return self._workers.is_this_thread

    def withdraw(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Let those tasks go whose handler is not running; return them, oldest first."""
        return self._tasks.withdraw(partitions)

    def abandon(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Let all those tasks go, whatever they do; return them, oldest first."""
        abandoned = self.of(partitions)
        for task in abandoned:
            task.abandon()
        for task in reversed(abandoned):
            self._tasks.remove(task)
        return abandoned

    # --- dead letters --------------------------------------------------------------------------------------------

    def send_letter(self, task: Task, letter: DeadLetter) -> None:
        """Send a dead letter; the task stays in flight until its report is among `dead_lettered`."""
        if self.letters is None:
            raise AssertionError("a run without dead letters was to send one")
        if letter.topic == self.letters.topic:
            # Else it would come again, and fail again, for ever.
            self._reports[task] = _ITSELF
            return
        try:
            self.letters.send(task.message, letter, partial(self._report, task))
        except KafkaException as error:
            self._report(task, error.args[0])

    def _report(self, task: Task, error: KafkaError | None) -> None:
        self._reports[task] = error

    def dead_lettered(self) -> list[DeadLettered]:
        """Return the dead letters that came to an end, until their tasks end; those of tasks let go meanwhile are left out."""
        if self.letters is not None:
            self.letters.poll()
        for task in [task for task in self._reports if task not in self._tasks]:
            del self._reports[task]
        return [DeadLettered(task, error) for task, error in self._reports.items()]

    def close(self) -> None:
        """End threads and producer; what is in flight by now is nobody's."""
        idle = not self.busy
        self._workers.close()
        if idle:
            self._workers.join(timeout_s=1.0)
        if self.letters is not None:
            self.letters.close()
