"""A short selection; ``python -m tests.chaos`` plays all of them, on all protocols, as long as you like."""

from __future__ import annotations

import pytest

from tests.chaos.bed import Bed
from tests.chaos.director import direct
from tests.chaos.options import Protocol
from tests.chaos.stage import Choice
from tests.chaos.table import SCENARIOS

_SECONDS = 5.0

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "protocol", "seed"),
    [
        ("kill", "classic", 1),
        ("zombie", "cooperative", 2),
        ("storm", "consumer", 3),
        ("network", "classic", 4),
        ("corruption", "cooperative", 5),
        ("topic-changes", "consumer", 6),
    ],
)
def test_promises_hold(bed: Bed, name: str, protocol: Protocol, seed: int) -> None:
    """Under this fault nothing is lost, what comes twice is within the bound, and commits stay behind the work."""
    report = direct(SCENARIOS[name], Choice(seed=seed, seconds=_SECONDS, protocol=protocol), bed)
    assert report.broken == {}, report.line()
    assert not report.stuck, report.line()
    assert report.faults, report.line()


@pytest.mark.parametrize(
    ("name", "protocol", "seed"),
    [
        ("kill", "consumer", 1),
        ("zombie", "classic", 2),
        ("storm", "cooperative", 3),
        ("slow-handler", "classic", 4),
        ("transactions", "cooperative", 5),
        ("hostile-ids", "consumer", 6),
        ("snapshots", "classic", 7),
    ],
)
def test_the_broken_twin_is_found_out(bed: Bed, name: str, protocol: Protocol, seed: int) -> None:
    """Without the protection that a scenario is about, the oracle finds a broken promise."""
    scenario = SCENARIOS[name]
    choice = Choice(seed=seed, seconds=_SECONDS, protocol=protocol, broken=scenario.broken)
    report = direct(scenario, choice, bed)
    assert report.broken, report.line()
