"""The surroundings of a history: clocks that stand still, and no lines in the log."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from dedup_sdk.kafka import recovery_loop, session
from tests.model.worlds.world import WALL_CLOCK_MS, World


@contextmanager
def quiet(world: World) -> Iterator[None]:
    """One step of recovery a poll, a wall clock that stands still, and no lines in the log."""
    logger = logging.getLogger("dedup_sdk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "disabled", True)
        ticks = itertools.count()
        clock = SimpleNamespace(monotonic=lambda: 0.6 * recovery_loop.SLICE_S * next(ticks))
        patch.setattr(session, "time", clock)
        patch.setattr(recovery_loop, "time", clock)
        if world.parking is not None:
            patch.setattr(session, "MOST_WAITING", world.parking)
        patch.setattr(time, "time", lambda: WALL_CLOCK_MS / 1000)
        yield
