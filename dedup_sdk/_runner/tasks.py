"""Messages between the polling thread and the worker threads.

task
    one message and the state of its handler. In flight until the polling thread has processed its outcome.
key queue
    the tasks with one key of one partition: each begins when the one before it was removed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from enum import Enum
from threading import Lock
from typing import Any, Literal

from dedup_sdk._observe import Counters, of_partition

Order = Literal["key", "partition", "none"]
Coordinates = tuple[str, int]


class Stage(Enum):
    """The state of a task."""

    WAITING = "waiting"
    """Its handler was not called yet."""
    RUNNING = "running"
    """Its handler is running."""
    BACKING_OFF = "backing off"
    """Its handler failed, and will be called again after a pause."""
    FINISHED = "finished"
    """Its handler succeeded or failed, and will not be called again."""
    WITHDRAWN = "withdrawn"
    """Its handler will not be called (again), and has not succeeded: the message is not handled."""


class Task:
    """One message and the state of its handler. Thread-safe."""

    __slots__ = ("_abandoned", "_lock", "_stage", "attempts", "coordinates", "error", "message", "output")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.coordinates: Coordinates = (message.topic(), message.partition())
        self.attempts = 0
        self.error: BaseException | None = None
        self.output: Any = None
        """What the call that succeeded has kept; see `keep`."""
        self._stage = Stage.WAITING
        self._abandoned = False
        self._lock = Lock()

    def keep(self, output: Any) -> None:
        """Keep the output of a call of the handler; a later call replaces it."""
        self.output = output

    @property
    def offset(self) -> int:
        """The message's offset."""
        return int(self.message.offset())

    @property
    def is_finished(self) -> bool:
        """Whether the handler has succeeded or failed, and will not be called again."""
        return self._stage is Stage.FINISHED

    def begin(self) -> bool:
        """Record that the handler is about to be called; False: it must not be called."""
        with self._lock:
            if self._stage in (Stage.FINISHED, Stage.WITHDRAWN):
                return False
            self._stage = Stage.RUNNING
            self.attempts += 1
            return True

    def back_off(self) -> bool:
        """Record that the handler failed and will be called again after a pause; False: it must not be called again."""
        with self._lock:
            if self._stage in (Stage.FINISHED, Stage.WITHDRAWN) or self._abandoned:
                return False
            self._stage = Stage.BACKING_OFF
            return True

    def end(self, error: BaseException | None = None) -> bool:
        """Record the final outcome of the handler; False: the task was withdrawn, and the outcome is ignored."""
        with self._lock:
            if self._stage is Stage.WITHDRAWN:
                return False
            self._stage = Stage.FINISHED
            self.error = error
            return True

    def withdraw(self) -> bool:
        """Prevent further calls of the handler; False if it is running, succeeded, or failed for good. Idempotent."""
        with self._lock:
            if self._stage in (Stage.RUNNING, Stage.FINISHED):
                return False
            self._stage = Stage.WITHDRAWN
            return True

    def abandon(self) -> None:
        """Let a running handler finish, but never call it again for this task."""
        with self._lock:
            self._abandoned = True


class Tasks:
    """The tasks in flight, in order of arrival. Not thread-safe.

    A task whose handler was called counts as delivered when it leaves. With ``order="key"`` the tasks with one key of
    one partition form a queue; messages without a key are not queued. With ``partition`` all tasks of one do.
    """

    def __init__(self, order: Order, counters: Counters) -> None:
        self._order = order
        self._counters = counters
        self._tasks: dict[Task, Hashable] = {}
        self._queues: dict[Hashable, deque[Task]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: Task) -> bool:
        return task in self._tasks

    @property
    def are_finished(self) -> bool:
        """Whether no handler runs, or will be called: what is still in flight waits for its dead letter."""
        return all(task.is_finished for task in self.of())

    def add(self, task: Task) -> bool:
        """Add a task; True if its handler may be called now."""
        key = task.message.key() if self._order == "key" else None
        if key is None and self._order != "partition":
            self._tasks[task] = None
            return True
        queue_key = (task.coordinates, key)
        self._tasks[task] = queue_key
        queue = self._queues.setdefault(queue_key, deque())
        queue.append(task)
        return len(queue) == 1

    def remove(self, task: Task) -> Task | None:
        """Remove a task; return the next one of its key queue if its handler may be called now."""
        queue_key = self._tasks.pop(task)
        of_partition(self._counters, *task.coordinates).delivered += task.attempts > 0
        if queue_key is None:
            return None
        queue = self._queues[queue_key]
        was_first = queue[0] is task
        queue.remove(task)
        if not queue:
            del self._queues[queue_key]
            return None
        return queue[0] if was_first else None

    def of(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Return the tasks of some partitions (None: of all), oldest first. Also without the lock."""
        # A copy, which is made in one step.
        return [task for task in list(self._tasks) if partitions is None or task.coordinates in partitions]

    def withdraw(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Withdraw and remove the tasks whose handler is not running; return them, oldest first."""
        withdrawn = [task for task in self.of(partitions) if task.withdraw()]
        # Back to front, so that `remove` never returns a task that is itself withdrawn.
        for task in reversed(withdrawn):
            self.remove(task)
        return withdrawn
