"""The surroundings of a history: clocks that stand still, and no lines in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from dedup_sdk._kafka.recover import attempt, recovery, replay, scheduler, session, store, upkeep
from dedup_sdk._kafka.recover.backoff import Backoff
from tests.model.worlds.world import WALL_CLOCK_MS, World


class Clock:
    """In the place of the module ``time``: each look at it takes more than half a slice of recovery."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Go on, and return the seconds by now."""
        self.now_s += 0.6 * scheduler.SLICE_S
        return self.now_s

    def time(self) -> float:
        """Return the wall clock's seconds, which stand still."""
        return WALL_CLOCK_MS / 1000


@contextmanager
def quiet(world: World) -> Iterator[None]:
    """One step of recovery a poll, a wall clock that stands still, and no lines in the log."""
    logger = logging.getLogger("dedup_sdk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "disabled", True)
        clock = Clock()
        for module in (attempt, recovery, replay, scheduler, session, store, upkeep):
            patch.setattr(module, "time", clock)
        # A step that looks at the clock often takes long by it: who rests after that has to go by the same one.
        patch.setattr(session, "Backoff", partial(Backoff, clock=lambda: clock.now_s))
        if world.parking is not None:
            patch.setattr(upkeep, "MOST_WAITING", world.parking)
        patch.setattr(time, "time", lambda: WALL_CLOCK_MS / 1000)
        yield
