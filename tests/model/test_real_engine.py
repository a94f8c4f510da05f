"""The engine lives through the histories that the design survives, under the same oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.model.engine_host import EngineHost
from tests.model.history import History
from tests.model.host import Assignment


@pytest.mark.parametrize("recent_marks", [1, 10, 100_000])
def test_the_engine_neither_loses_nor_leaks(recent_marks: int) -> None:
    """Crashes, takeovers, lost disks, rewinds, jumps, retries and dead letters cost the engine no record and no twin."""
    outcomes = Counter(History(seed, lambda: EngineHost(recent_marks)).run() for seed in range(150))
    assert outcomes == {"ok": 150}


def test_disorder_loses_nothing() -> None:
    """Timestamps that run back by more than a window cost no record."""
    outcomes = Counter(History(seed, lambda: EngineHost(5), disorder_ms=90).run() for seed in range(150))
    assert outcomes == {"ok": 150}


class IgnoresDeadLetters(EngineHost):
    """Folds dead-lettered records as if they had been handled."""

    def assign(self, assignment: Assignment) -> None:
        """See `Host`."""
        super().assign(replace(assignment, dead=frozenset()))


class SkipsTheTail(EngineHost):
    """Takes the stretch that another member completed for known."""

    def _fold(self, begin: int, end: int, dead: frozenset[int]) -> None:
        super()._fold(begin, begin, dead)
        self._held.fold([], np.empty(0, np.int64), [], end)


class ClaimsEverything(EngineHost):
    """Takes for granted that the group has processed the log from its beginning."""

    def assign(self, assignment: Assignment) -> None:
        """See `Host`."""
        super().assign(replace(assignment, commit=assignment.commit._replace(low=0, complete=True)))


@pytest.mark.parametrize("host", [IgnoresDeadLetters, SkipsTheTail, ClaimsEverything])
def test_a_careless_start_is_caught(host: Callable[[int], EngineHost]) -> None:
    """The same histories see what an engine does wrong that is brought up to date carelessly."""
    assert any(History(seed, lambda: host(10)).run() != "ok" for seed in range(150))
