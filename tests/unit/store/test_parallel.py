from __future__ import annotations

from functools import partial
from threading import Event, Lock

import pytest

from dedup_sdk._store.snapshot_source import AT_ONCE, Task, in_parallel


class Counted:
    """Tasks that wait, and how many of them were inside at a time."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = self.most = self.ended = self.stopped = 0

    def run(self, seconds: float, stop: Event) -> None:
        """Wait so long, or until it is over."""
        with self.lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        stopped = stop.wait(seconds)
        with self.lock:
            self.inside -= 1
            self.ended += 1
            self.stopped += stopped


def test_all_are_done_a_few_at_a_time() -> None:
    """Every task runs once, never more than `AT_ONCE` at a time, and more than one."""
    counted = Counted()
    list(in_parallel(partial(counted.run, 0.02) for _ in range(3 * AT_ONCE)))
    assert counted.ended == 3 * AT_ONCE
    assert 1 < counted.most <= AT_ONCE
    assert not counted.stopped


def test_a_step_is_short() -> None:
    """Who asks is never held up by a slow task."""
    counted = Counted()
    # Longer than a test may take.
    steps = in_parallel([partial(counted.run, 3600.0)])
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert counted.stopped == 1


def test_an_error_ends_the_others() -> None:
    """The first error comes out; tasks that run are told to stop, those that wait never begin."""
    counted = Counted()

    def fail(_: Event) -> None:
        raise ValueError("broken")

    tasks: list[Task] = [partial(counted.run, 30.0), fail, *[partial(counted.run, 30.0)] * 20]
    with pytest.raises(ValueError, match="broken"):
        list(in_parallel(tasks))
    assert counted.ended == counted.stopped
    assert counted.ended < 10
