"""Observers that are coroutine functions: their events wait in one queue, which a task of the loop works off."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from dedup_sdk._checks import callables
from dedup_sdk._observe import Observer
from dedup_sdk.aio._owner import Owner, runs_on_loop

logger = logging.getLogger("dedup_sdk")

MOST_EVENTS: Final = 10_000
"""So many events wait at most: the thread waits for no coroutine, and memory has an end."""
_OnLoop = Callable[[Any], Awaitable[object]]


class LoopObservers:
    """The observers of one consumer: functions are called on its thread, coroutine functions awaited on the loop.

    Coroutine functions are awaited one after the other, in the order of the events.
    """

    def __init__(self) -> None:
        self._owner: Owner | None = None
        self._events: deque[tuple[_OnLoop, object]] = deque()
        self._is_told = self._is_full = False
        """Whether the loop knows of the events; whether it was told that some are left out."""
        self._task: asyncio.Task[None] | None = None

    def attach(self, owner: Owner) -> None:
        """Set the owner of the thread that the events come from."""
        self._owner = owner

    def of(self, observers: Iterable[Any]) -> list[Observer]:
        """Return functions that give their events to these observers."""
        return [self._of(each) for each in callables("observers", observers)]

    def _of(self, observer: Any) -> Observer:
        listen = getattr(observer, "partition_event", None)
        if not (runs_on_loop(observer) or runs_on_loop(listen)):
            # It is called with each verdict, without a step between.
            return observer  # type: ignore[no-any-return]
        return _Observer(self._on_thread(observer), None if listen is None else self._on_thread(listen))

    def _on_thread(self, function: Any) -> Callable[[Any], object]:
        if not runs_on_loop(function):
            return function  # type: ignore[no-any-return]
        return lambda event: self._put(function, event)

    def _put(self, function: _OnLoop, event: object) -> None:
        owner = self._owner
        if owner is None:
            raise AssertionError("an event before attach()")
        if len(self._events) >= MOST_EVENTS:
            owner.counters.observer_errors += 1
            if not self._is_full:
                self._is_full = True
                logger.warning(
                    "%d events wait for coroutine observers, which are too slow: more are left out, and counted as "
                    "observer_errors; let the observers only note their events",
                    MOST_EVENTS,
                    extra={"event": "observers-slow"},
                )
            return
        self._events.append((function, event))
        if not self._is_told:
            self._is_told = True
            owner.tell(self._start)

    # --- on the loop -----------------------------------------------------------------------------------------------

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work(), name="dedup-observers")

    async def _work(self) -> None:
        try:
            while self._events:
                self._is_told = True
                while self._events:
                    await self._observe(*self._events.popleft())
                # An event that comes from here on tells the loop, or is seen by the next look.
                self._is_told = self._is_full = False
        finally:
            self._is_told = False

    async def _observe(self, function: _OnLoop, event: object) -> None:
        try:
            await function(event)
        except Exception:
            if self._owner is not None:
                self._owner.counters.observer_errors += 1
            logger.exception(
                "an observer failed at %s; going on", type(event).__name__, extra={"event": "observer-failed"}
            )

    async def end(self, deadline_s: float) -> None:
        """Wait until all events are worked off, or the deadline; then cancel what runs."""
        task = self._task
        if task is None or task is asyncio.current_task():
            return
        await asyncio.wait([task], timeout=deadline_s)
        if not task.done():
            task.cancel()
            logger.warning(
                "%d events of coroutine observers are left out: the consumer is closed, and waits no longer",
                len(self._events) + 1,
                extra={"event": "observer-not-ended"},
            )


class _Observer:
    def __init__(
        self, verdict_event: Callable[[Any], object], partition_event: Callable[[Any], object] | None
    ) -> None:
        self._verdict_event = verdict_event
        if partition_event is not None:
            self.partition_event = partition_event

    def __call__(self, event: Any) -> None:
        self._verdict_event(event)
