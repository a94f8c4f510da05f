"""Threads that call a handler, and call it again when it fails."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread, current_thread

from dedup_sdk.runner.settings import Handler, Retries
from dedup_sdk.runner.tasks import Task

_GONE = object()


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
