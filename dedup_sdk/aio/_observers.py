"""Observers that are coroutine functions: their events wait in one queue, which a task of the loop works off."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dedup_sdk._checks import callables, runs_on_loop
from dedup_sdk._observe import Observer
from dedup_sdk.aio._owner import Owner, nothing

logger = logging.getLogger("dedup_sdk")

MOST_EVENTS: Final = 10_000
"""So many events wait at most: the thread waits for no coroutine, and memory has an end."""
_OnLoop = Callable[[Any], Awaitable[object]]


class LoopObservers:
    """The observers of one consumer: functions are called on its thread, coroutine functions awaited on the loop.

    Coroutine functions are awaited one after the other, in the order of the events.
    """

    def __init__(self, owner: Callable[[], Owner]) -> None:
        self._owner = owner
        """Of the thread that the events come from; it is made after the observers."""
        self._events: deque[tuple[_OnLoop, object]] = deque()
        self._is_full = False
        """Whether the application was told that events are left out."""
        self._task: asyncio.Task[None] | None = None

    def of(self, observers: Iterable[Any]) -> list[Observer]:
        """Return functions that give their events to these observers."""
        return [self._of(each) for each in callables("observers", observers)]

    def _of(self, observer: Any) -> Observer:
        both: tuple[Any, Any] = observer, getattr(observer, "partition_event", nothing)
        if not any(map(runs_on_loop, both)):
            # It is called with each verdict, without a step between.
            return observer  # type: ignore[no-any-return]
        return _Observer(*(partial(self._put, each) if runs_on_loop(each) else each for each in both))

    def _put(self, function: _OnLoop, event: object) -> None:
        if len(self._events) >= MOST_EVENTS:
            self._owner().consumer.counters.observer_errors += 1
            if not self._is_full:
                self._is_full = True
                logger.warning(
                    "%d events wait for coroutine observers, which are too slow: more are left out, and counted as "
                    "observer_errors; let the observers only note their events", MOST_EVENTS,
                    extra={"event": "observers-slow"},
                )  # fmt: skip
            return
        self._events.append((function, event))
        if len(self._events) == 1:  # else the loop knows
            self._owner().tell(self._start)

    # --- on the loop -----------------------------------------------------------------------------------------------

    def _start(self, _: object = None) -> None:
        if self._events and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._work(), name="dedup-observers")
            # Also where an observer cancelled it.
            self._task.add_done_callback(self._start)

    async def _work(self) -> None:
        while self._events:
            function, event = self._events.popleft()
            try:
                await function(event)
            except Exception:
                self._owner().consumer.counters.observer_errors += 1
                logger.exception(
                    "an observer failed at %s; going on", type(event).__name__, extra={"event": "observer-failed"}
                )  # fmt: skip
        self._is_full = False

    async def end(self) -> None:
        """Wait until all events are worked off, or the deadline; then cancel what runs."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        await asyncio.wait([task], timeout=self._owner().deadline_s)
        if not task.done():
            left = len(self._events) + 1
            self._events.clear()
            task.cancel()
            logger.warning(
                "%d events of coroutine observers are left out: the consumer is closed, and waits no longer", left,
                extra={"event": "observer-not-ended"},
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Observer:
    verdict_event: Callable[[Any], object]
    partition_event: Callable[[Any], object]

    def __call__(self, event: Any) -> None:
        self.verdict_event(event)
