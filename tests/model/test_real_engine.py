"""The engine lives through the histories that the design survives, under the same oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest

from dedup_sdk._commit_text import CommitMetadata
from tests.model.engine_host import EngineHost
from tests.model.history import History
from tests.model.host import WINDOW_MS, Assignment

_RECENT_MARKS = (1, 10, 100_000)
"""How many marks are kept in memory, in turn: most are looked up in the store, some, or none."""


@pytest.mark.slow
def test_the_engine_neither_loses_nor_leaks() -> None:
    """Crashes, takeovers, lost disks, rewinds, jumps, retries and dead letters cost the engine no record, no twin."""
    outcomes = Counter(
        History(seed, lambda kept=kept: EngineHost(kept), restores=False).run()  # type: ignore[misc]
        for seed, kept in zip(range(150), cycle(_RECENT_MARKS), strict=False)
    )
    assert outcomes == {"ok": 150}


def test_disorder_loses_nothing() -> None:
    """Timestamps that run back by more than a window cost no record."""
    outcomes = Counter(
        History(seed, lambda: EngineHost(5), disorder_ms=90, restores=False).run() for seed in range(60)
    )
    assert outcomes == {"ok": 60}


def test_clocks_that_are_ahead_cost_nothing() -> None:
    """Nor do timestamps that lie up to three windows ahead of the clock, wherever the engine begins."""
    outcomes = Counter(
        History(seed, lambda kept=kept: EngineHost(kept), ahead_ms=3 * WINDOW_MS, restores=False).run()  # type: ignore[misc]
        for seed, kept in zip(range(60), cycle([1, 3, 100_000]), strict=False)
    )
    assert outcomes == {"ok": 60}


class SkipsTheTail(EngineHost):
    """Takes the stretch that another member completed for known."""

    def _fold(self, begin: int, end: int) -> None:
        super()._fold(begin, begin)
        self._held.fold([], np.empty(0, np.int64), [], end)


class ClaimsEverything(EngineHost):
    """Takes for granted that the group has processed the log from its beginning."""

    def _believed(self, assignment: Assignment) -> CommitMetadata:
        found = super()._believed(assignment) or CommitMetadata(low=0)
        return replace(found, low=0, complete=True)


@pytest.mark.parametrize("host", [SkipsTheTail, ClaimsEverything])
def test_a_careless_start_is_caught(host: Callable[[int], EngineHost]) -> None:
    """The same histories see the faults of an engine that is brought up to date carelessly.

    See `test_broken_code` for other ways.
    """
    assert any(History(seed, lambda: host(10), restores=False).run() != "ok" for seed in range(150))
