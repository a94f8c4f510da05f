"""A short selection; ``python -m tests.chaos`` plays all of them, on all protocols, as long as you like."""

from __future__ import annotations

import pytest

from dedup_sdk.errors import DedupError
from tests.chaos.bed import Bed
from tests.chaos.director import direct
from tests.chaos.options import Protocol
from tests.chaos.stage import Choice
from tests.chaos.table import SCENARIOS
from tests.support.strictness import nothing_may_be_skipped
from tests.support.turns import in_turns

_SECONDS = 5.0
_LONG_S = 25.0
_TRIES = 8

pytestmark = pytest.mark.broker


@pytest.mark.timeout(600)
def test_promises_hold(bed: Bed) -> None:
    """Under kills nothing is lost, doubles are within the bound, and commits stay behind the work.

    ``make chaos`` runs every scenario.
    """
    report = direct(SCENARIOS["kill"], Choice(seed=1, seconds=_SECONDS, protocol="classic"), bed)
    assert report.broken == {}, report.line()
    assert not report.stuck, report.line()
    assert report.faults, report.line()


@pytest.mark.slow
@pytest.mark.timeout(900)
@in_turns(
    ("name", "protocol", "seed"),
    [
        ("kill", "consumer", 1),
        ("zombie", "classic", 2),
        ("storm", "cooperative", 3),
        ("slow-handler", "classic", 4),
        ("transactions", "cooperative", 5),
        ("hostile-ids", "consumer", 6),
        ("operator", "cooperative", 1),
        ("spec-change", "cooperative", 1),
        ("bad-disk", "consumer", 11),
        ("snapshots", "classic", 7),
        ("outbox", "cooperative", 8),
        ("bridge", "classic", 9),
        pytest.param("inbox", "classic", 9, marks=pytest.mark.container),
        ("units", "classic", 9),
        pytest.param("shared-sql", "consumer", 12, marks=pytest.mark.container),
    ],
)
def test_the_broken_twin_is_found_out(bed: Bed, name: str, protocol: Protocol, seed: int) -> None:
    """Without the protection that a scenario is about, the oracle finds a broken promise."""
    _expect_found_out(bed, name, protocol, seed, SCENARIOS[name].broken)


@pytest.mark.slow
@pytest.mark.timeout(900)
@in_turns(
    ("broken", "protocol", "seed"),
    [
        ("mark-before-the-transaction", "classic", 11),
        ("offsets-outside-the-transaction", "cooperative", 12),
        ("late-group-metadata", "classic", 13),
    ],
)
def test_each_protection_of_transactions_is_needed(
    bed: Bed, broken: str, protocol: Protocol, seed: int
) -> None:
    """Without one of them something is lost, or there twice."""
    _expect_found_out(bed, "exactly-once", protocol, seed, broken)


def _expect_found_out(bed: Bed, name: str, protocol: Protocol, seed: int, broken: str) -> None:
    lines = []
    # A missing protection does harm only when a fault comes at a bad moment, which none may do in so short a time.
    for again in range(_TRIES):
        seconds = min(_SECONDS * (1 + 2 * again), _LONG_S)
        choice = Choice(seed=seed + 100 * again, seconds=seconds, protocol=protocol, broken=broken)
        report = direct(SCENARIOS[name], choice, bed)
        # A twin that handled nothing (its workers were killed before their first message came) proves nothing.
        if report.broken and report.judgement.handled:
            return
        lines.append(report.line())
    pytest.fail("\n".join(lines))


@pytest.mark.slow
@pytest.mark.container
def test_promises_hold_on_a_broker_in_a_container() -> None:
    """Killed and paused by the container's engine, the broker that a team runs is like the one from the jars."""
    try:
        cluster = Bed(seed=2, broker="container")
    except DedupError as error:
        if nothing_may_be_skipped():
            raise
        pytest.skip(str(error))
    with cluster as bed:
        choice = Choice(seed=8, seconds=2 * _SECONDS, protocol="classic")
        report = direct(SCENARIOS["broker"], choice, bed)
    assert report.broken == {}, report.line()
    assert not report.stuck, report.line()
    assert report.faults, report.line()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_exactly_once_holds_while_coordinators_move() -> None:
    """On three brokers: the first fault kills the one that coordinates all transactions."""
    with Bed(seed=6, broker="three") as bed:
        choice = Choice(seed=6, seconds=3 * _SECONDS, protocol="cooperative")
        report = direct(SCENARIOS["exactly-once"], choice, bed)
    assert report.broken == {}, report.line()
    assert not report.stuck, report.line()
    assert report.faults["coordinator-moved"] >= 2, report.line()
