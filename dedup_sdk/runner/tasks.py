"""Messages between the thread that polls and the threads that handle them.

task
    one message on its way through a handler. In flight until the polling thread has drawn its conclusions.
line
    tasks with the same key of the same partition: the next one begins when the one before it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from enum import Enum
from threading import Lock
from typing import Any, Literal

Order = Literal["key", "none"]
Coordinates = tuple[str, int]


class Stage(Enum):
    """Where a task is."""

    WAITING = "waiting"
    """No handler was called for it yet."""
    RUNNING = "running"
    """Its handler is running."""
    BACKING_OFF = "backing off"
    """Its handler failed, and will be called again after a while."""
    OVER = "over"
    """Its handler will not be called again."""
    WITHDRAWN = "withdrawn"
    """The same, and what was called failed, or nothing was: it is not handled."""


class Task:
    """One message, and how its handler fares. Both sides may call any method, at any time."""

    __slots__ = ("_abandoned", "_lock", "_stage", "attempts", "coordinates", "error", "message")

    def __init__(self, message: Any) -> None:
        self.message = message
        self.coordinates: Coordinates = (message.topic(), message.partition())
        self.attempts = 0
        self.error: BaseException | None = None
        self._stage = Stage.WAITING
        self._abandoned = False
        self._lock = Lock()

    @property
    def offset(self) -> int:
        """The message's offset."""
        return int(self.message.offset())

    def begin(self) -> bool:
        """Note that the handler is about to be called; False: it must not be any more."""
        with self._lock:
            if self._stage in (Stage.OVER, Stage.WITHDRAWN):
                return False
            self._stage = Stage.RUNNING
            self.attempts += 1
            return True

    def back_off(self) -> bool:
        """Note that the handler failed and may be called again after a while; False: it must not be any more."""
        with self._lock:
            if self._stage in (Stage.OVER, Stage.WITHDRAWN) or self._abandoned:
                return False
            self._stage = Stage.BACKING_OFF
            return True

    def end(self, error: BaseException | None = None) -> bool:
        """Note how it went in the end; False: it was withdrawn, and goes nowhere from there."""
        with self._lock:
            if self._stage is Stage.WITHDRAWN:
                return False
            self._stage = Stage.OVER
            self.error = error
            return True

    def withdraw(self) -> bool:
        """Keep the handler from being called (again); False when it is running, or was through. May be repeated."""
        with self._lock:
            if self._stage in (Stage.RUNNING, Stage.OVER):
                return False
            self._stage = Stage.WITHDRAWN
            return True

    def abandon(self) -> None:
        """Let the handler run on, and never call it again for this task."""
        with self._lock:
            self._abandoned = True


class Tasks:
    """The tasks in flight, in the order in which they came. Not thread-safe.

    With ``order="key"`` the tasks of a key form a line; messages without a key are in no line.
    """

    def __init__(self, order: Order) -> None:
        self._by_key = order == "key"
        self._tasks: dict[Task, Hashable] = {}
        self._lines: dict[Hashable, deque[Task]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: Task) -> bool:
        return task in self._tasks

    def add(self, task: Task) -> bool:
        """Take a task in; True when it may begin now."""
        key = task.message.key() if self._by_key else None
        if key is None:
            self._tasks[task] = None
            return True
        name = (task.coordinates, key)
        self._tasks[task] = name
        line = self._lines.setdefault(name, deque())
        line.append(task)
        return len(line) == 1

    def remove(self, task: Task) -> Task | None:
        """Let a task go; return the one that may begin now because of that."""
        name = self._tasks.pop(task)
        if name is None:
            return None
        line = self._lines[name]
        was_first = line[0] is task
        line.remove(task)
        if not line:
            del self._lines[name]
            return None
        return line[0] if was_first else None

    def of(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Return the tasks of some partitions (None: all of them), oldest first."""
        return [task for task in self._tasks if partitions is None or task.coordinates in partitions]

    def withdraw(self, partitions: Collection[Coordinates] | None = None) -> list[Task]:
        """Let those tasks go whose handler is not running; return them, oldest first."""
        withdrawn = [task for task in self.of(partitions) if task.withdraw()]
        # The last of a line first, so that none that goes too may begin.
        for task in reversed(withdrawn):
            self.remove(task)
        return withdrawn
