"""Three turns play all cases, each of them once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.turns import TURN, in_turns

CASES = [("a", 1), pytest.param("b", 2, marks=pytest.mark.slow), ("c", 3), ("d", 4)]
CONFTEST = """
from tests.support.turns import Turns
def pytest_configure(config):
    config.addinivalue_line("markers", "in_turns: x")
    config.addinivalue_line("markers", "slow: x")
    config.pluginmanager.register(Turns())
"""
TEST = """
from tests.unit.testing.test_turns import CASES, in_turns
@in_turns(("name", "number"), CASES)
def test_it(name, number): pass
def test_another(): pass
"""


def played() -> list[Any]:
    """The values of the cases whose turn it is."""
    return [case.values for case in in_turns(("name", "number"), CASES).args[1]]


def test_three_turns_play_each_case_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the first one is; without a turn all are played at once, in their order."""
    monkeypatch.delenv(TURN, raising=False)
    whole = played()
    assert whole == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    for first in ("1", "007", "366"):
        turns: list[Any] = []
        for number in range(int(first), int(first) + 3):
            monkeypatch.setenv(TURN, str(number))
            assert played()
            turns += played()
        assert sorted(turns) == whole


@pytest.mark.parametrize(
    ("turn", "asked", "told"),
    [
        ("", (), "cases that take turns (all): test_it[a-1], test_it[b-2], test_it[c-3], test_it[d-4]"),
        ("3", (), "cases that take turns (a third, DEDUP_TEST_TURN=3): test_it[a-1], test_it[d-4]"),
        ("4", ("-m", "slow"), "cases that take turns (a third, DEDUP_TEST_TURN=4): test_it[b-2]"),
    ],
)
def test_a_run_tells_what_it_played(
    turn: str, asked: tuple[str, ...], told: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is skipped: what has no turn is not there."""
    monkeypatch.setenv(TURN, turn)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TEST)
    ended = pytester.runpytest_inprocess("-p", "no:cacheprovider", *asked)
    assert told in ended.outlines
    assert "skipped" not in ended.parseoutcomes()
