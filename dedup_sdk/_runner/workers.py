"""Worker threads that call a handler, and call it again when it fails."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Final

from dedup_sdk._runner.settings import Retries, UnfitHandlerError
from dedup_sdk._runner.tasks import Task

_MISSING = object()
_NOT_RUN: Final = (GeneratorType, AsyncGeneratorType, Future)
"""Results of a handler whose code may not have run, besides all that can be awaited."""


class Workers:
    """A fixed number of threads that run tasks; end them with `close`.

    ``call`` calls the handler of a task. ``ends_all`` returns whether no further task may begin after a handler's last
    error.
    """

    def __init__(
        self,
        call: Callable[[Task], object],
        count: int,
        retries: Retries,
        ends_all: Callable[[BaseException], bool],
    ) -> None:
        self._call_handler = call
        self._ends_all = ends_all
        self._halted = False
        self._retries = retries
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # A dictionary, not a queue: an exception of a signal in the polling thread could lose a popped task. Finished
        # tasks stay here until they are acknowledged, and a restarted `finished` returns them again.
        self._finished: dict[Task, None] = {}
        # Free: a task has finished since the last look. No queue: before Python 3.13 its `get` waits for ever if a
        # signal's handler took longer than the timeout. No `Event`: an exception of a signal could keep its lock.
        self._wakeup = Lock()
        self._wakeup.acquire()
        # Daemon threads: a handler that never returns must not keep the process alive.
        self._threads = [
            Thread(target=self._work, name=f"dedup-worker-{number}", daemon=True)
            for number in range(1, count + 1)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            # Interrupted: nobody else could end those that run.
            self.close()
            raise

    def put(self, task: Task) -> None:
        """Queue a task: a worker thread calls its handler."""
        self._tasks.put(task)

    def halt(self) -> None:
        """Let no further task begin; waiting tasks can be withdrawn."""
        self._halted = True

    def finished(self, timeout_s: float) -> list[Task]:
        """Return the finished tasks that are not acknowledged, in the order in which they finished.

        Waits for one for at most ``timeout_s`` seconds, sometimes less.
        """
        # Before the look: a task that finishes behind it frees the lock again.
        self._wakeup.acquire(timeout=0 if self._finished else max(0.0, timeout_s))
        return list(self._finished)

    def acknowledge(self, task: Task) -> bool:
        """Record that the outcome of a finished task was processed; False if it was recorded before."""
        return self._finished.pop(task, _MISSING) is None

    def close(self) -> None:
        """End the threads, each after the handler that it is running."""
        for _ in self._threads:
            self._tasks.put(None)

    @property
    def is_this_thread(self) -> bool:
        """Whether the calling thread is a worker, so that the caller is a handler."""
        return current_thread() in self._threads

    def join(self, timeout_s: float) -> None:
        """Wait for the threads to end, at most ``timeout_s`` seconds for each."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._halted:
                self._call(task)
            # Else the message stays in memory until the next task.
            del task

    def _call(self, task: Task) -> None:
        try:
            self._handle(task)
        except BaseException as error:  # noqa: BLE001 (the polling thread handles it)
            counts = task.end(error)
            # Not for a task that was withdrawn meanwhile: its error is nobody's, and the run goes on.
            if counts and self._ends_all(error):
                self.halt()
        else:
            counts = task.end()
        if counts:
            # A withdrawn task is not reported: after an interruption it may still be among the tasks in flight.
            self._finished[task] = None
            # RuntimeError: the lock is free already, because of another task.
            with suppress(RuntimeError):
                self._wakeup.release()

    def _handle(self, task: Task) -> None:
        try:
            if task.begin():
                self._run(task)
        except Exception as error:
            if self._retries.attempts == 1 or not self._retries.is_retriable(error):
                raise
            self._handle_again(task, error)

    def _run(self, task: Task) -> None:
        result = self._call_handler(task)
        if isinstance(result, _NOT_RUN) or hasattr(result, "__await__"):
            if isinstance(result, CoroutineType):
                result.close()  # else the interpreter warns that nobody awaited it
            raise UnfitHandlerError(
                f"the handler returned a {type(result).__name__}, so that its code may not have run: give a plain "
                "function that returns when the message is handled; it may call asyncio.run(), or a future's result()"
            )

    def _handle_again(self, task: Task, first: Exception) -> None:
        for attempt in self._retries.after(task):
            with attempt:
                if attempt.num == 1:
                    raise first
                if task.begin():
                    self._run(task)
