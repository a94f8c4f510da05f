"""Threads that call a handler, and call it again when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import TYPE_CHECKING, Any

from dedup_sdk.checks import seconds, whole
from dedup_sdk.errors import ConfigurationError
from dedup_sdk.kafka.tasks import Task

if TYPE_CHECKING:
    from stamina import Attempt

_GONE = object()

Handler = Callable[[Any], object]
Failures = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and after what pauses, a handler is called again for a message.

    ``attempts``: calls at most, the first included; None: no limit. ``on``: the errors that may pass, or a function that tells. The pauses grow from
    ``wait_initial`` to ``wait_max`` seconds, twice as long each time, with some jitter.
    """

    attempts: int | None
    on: Failures
    wait_initial: float
    wait_max: float

    def __post_init__(self) -> None:
        if self.attempts is not None:
            whole("attempts", self.attempts, advice="give at least 1, or None for as many as it takes")
        failures: tuple[Any, ...] = self.on if isinstance(self.on, tuple) else (self.on,)
        tells = callable(self.on) and not isinstance(self.on, type)
        if not tells and not (
            failures and all(isinstance(each, type) and issubclass(each, Exception) for each in failures)
        ):
            raise ConfigurationError(
                f"retry_on={self.on!r}: give a class of errors, a tuple of them, e.g. (OSError, TimeoutError), or a function that tells"
            )
        if seconds("wait_initial", self.wait_initial) > seconds("wait_max", self.wait_max):
            raise ConfigurationError(
                f"wait_initial={self.wait_initial!r}, wait_max={self.wait_max!r}: give seconds, the first not above the second"
            )
        if self.attempts != 1 and find_spec("stamina") is None:
            raise ConfigurationError(
                "retries need the package stamina, which is not installed: pip install 'dedup-sdk[retry]'"
            )

    def may_pass(self, error: Exception) -> bool:
        """Whether the handler may succeed when it is called again."""
        on = self.on
        return isinstance(error, on) if isinstance(on, type | tuple) else bool(on(error))

    def after(self, task: Task) -> Iterator[Attempt]:
        """Yield one attempt after the other, with pauses, for a task that failed; the first is the one that failed.

        What is raised in the last one is raised on.
        """
        # Not where the handler succeeds: it costs ten times as much as calling a function.
        import stamina

        def may_pass(error: Exception) -> bool:
            return self.may_pass(error) and task.back_off()

        return iter(
            stamina.retry_context(
                on=may_pass,
                attempts=self.attempts,
                timeout=None,
                wait_initial=self.wait_initial,
                wait_max=self.wait_max,
                wait_jitter=self.wait_initial,
            )
        )


class Workers:
    """So many threads that take tasks and hand them back when they are over; they end with `close`.

    ``ends_all`` says of a handler's last error whether no other task may begin after it.
    """

    def __init__(
        self, handler: Handler, count: int, retries: Retries, ends_all: Callable[[BaseException], bool]
    ) -> None:
        self._handler = handler
        self._ends_all = ends_all
        self._halted = False
        self._retries = retries
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # What is popped from a queue is lost when a signal interrupts the polling thread; what is in here is looked at first.
        self._over: dict[Task, None] = {}
        self._bell: SimpleQueue[None] = SimpleQueue()
        # A handler that never comes back must not keep the process from ending.
        self._threads = [
            Thread(target=self._work, name=f"dedup-worker-{number}", daemon=True)
            for number in range(1, count + 1)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Task) -> None:
        """Have a task's handler called."""
        self._tasks.put(task)

    def halt(self) -> None:
        """Let no further task begin; those that wait may be withdrawn."""
        self._halted = True

    def over(self, timeout_s: float) -> list[Task]:
        """Return the tasks that are over and were not taken yet, in the order in which they ended.

        Waits for one at most so many seconds, and now and then less.
        """
        try:
            if timeout_s > 0 and not self._over:
                self._bell.get(timeout=timeout_s)
            while True:
                self._bell.get_nowait()
        except Empty:
            return list(self._over)

    def taken(self, task: Task) -> bool:
        """Note that the conclusions from a task that is over are drawn; False when they were before."""
        return self._over.pop(task, _GONE) is None

    def close(self) -> None:
        """End the threads; one whose handler is busy ends when that comes back."""
        for _ in self._threads:
            self._tasks.put(None)

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is one of them, so that a handler calls."""
        return current_thread() in self._threads

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most so many seconds for each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._halted:
                self._call(task)
            # Else the message stays in memory until the next one comes.
            del task

    def _call(self, task: Task) -> None:
        try:
            self._handle(task)
        except BaseException as error:  # noqa: BLE001 (the polling thread says what becomes of it)
            if self._ends_all(error):
                self.halt()
            ended = task.end(error)
        else:
            ended = task.end()
        if ended:
            # One that was withdrawn is not over: an interruption may have left it among those in flight.
            self._over[task] = None
            self._bell.put(None)

    def _handle(self, task: Task) -> None:
        try:
            if task.begin():
                self._handler(task.message)
        except Exception as error:
            if self._retries.attempts == 1 or not self._retries.may_pass(error):
                raise
            self._handle_again(task, error)

    def _handle_again(self, task: Task, first: Exception) -> None:
        for attempt in self._retries.after(task):
            with attempt:
                if attempt.num == 1:
                    raise first
                if task.begin():
                    self._handler(task.message)
