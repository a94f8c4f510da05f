"""The engine lives through the histories that the design survives, under the same oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dedup_sdk.kafka.commit_text import CommitMetadata, parse_metadata
from tests.model.engine_host import EngineHost
from tests.model.history import History
from tests.model.host import Assignment


@pytest.mark.parametrize("recent_marks", [1, 10, 100_000])
def test_the_engine_neither_loses_nor_leaks(recent_marks: int) -> None:
    """Crashes, takeovers, lost disks, rewinds, jumps, retries and dead letters cost the engine no record and no twin."""
    outcomes = Counter(
        History(seed, lambda: EngineHost(recent_marks), restores=False).run() for seed in range(150)
    )
    assert outcomes == {"ok": 150}


def test_disorder_loses_nothing() -> None:
    """Timestamps that run back by more than a window cost no record."""
    outcomes = Counter(
        History(seed, lambda: EngineHost(5), disorder_ms=90, restores=False).run() for seed in range(150)
    )
    assert outcomes == {"ok": 150}


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


class BelievesTextsAnywhere(EngineHost):
    """Believes a text beside any offset."""

    @staticmethod
    def _parsed(text: object, offset: int) -> CommitMetadata | None:
        if not isinstance(text, str):
            return None
        at = int(text.split(" at=")[1].split()[0])
        found = parse_metadata(text, committed=at)
        return None if found is None else replace(found, low=min(found.low, offset), done=None)


class BelievesAnyRule(EngineHost):
    """Folds what the group hid by another ID spec."""

    def _believed(self, assignment: Assignment) -> CommitMetadata | None:
        found = self._parsed(assignment.commit.text, assignment.commit.offset)
        return None if found is None else replace(found, done=None)


class SaysNothingAboveTheCommit(EngineHost):
    """Lets what is completed above the commit be handled again."""

    def text(self, offset: int) -> str:
        """See `Host`."""
        return replace(self._assigned.metadata(self._held, offset), done=None).text(offset)


@pytest.mark.parametrize(
    "host",
    [SkipsTheTail, ClaimsEverything, BelievesTextsAnywhere, BelievesAnyRule, SaysNothingAboveTheCommit],
)
def test_a_careless_start_is_caught(host: Callable[[int], EngineHost]) -> None:
    """The same histories see what an engine does wrong that is brought up to date carelessly."""
    assert any(History(seed, lambda: host(10), restores=False).run() != "ok" for seed in range(150))
