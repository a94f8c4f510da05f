from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos import command
from tests.chaos.crew import ROOT
from tests.chaos.history import History
from tests.chaos.oracle import judge
from tests.chaos.report import Report
from tests.chaos.sabotage import BROKEN, sabotage
from tests.chaos.stage import Choice
from tests.chaos.table import SCENARIOS


def test_every_scenario_has_a_broken_twin() -> None:
    """Each scenario names a protection that a worker knows how to take away, and each of these is used."""
    used = Counter(scenario.broken for scenario in SCENARIOS.values())
    assert set(used) == set(BROKEN)


def test_every_protection_is_there_to_be_taken_away() -> None:
    """No broken twin is left that breaks nothing, because what it replaced has another name by now."""
    program = "from tests.chaos.sabotage import BROKEN, sabotage\nfor name in BROKEN: sabotage(name)"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_unknown_protection_is_an_error() -> None:
    """A worker that cannot break what it was told to break does not run as if nothing were broken."""
    with pytest.raises(KeyError, match="no-such-thing"):
        sabotage("no-such-thing")


def test_a_report_says_whether_promises_were_kept() -> None:
    """The printed object has the counts, and its last word follows from them."""
    good = History(log=[], calls=[], window_ms=1)
    report = Report(
        scenario="kill", choice=Choice(seed=7, seconds=1), judgement=judge(good), faults={"kill": 2}, resent=0,
        rebalances=1, seconds=1.0, stuck=(),
    )  # fmt: skip
    printed = json.loads(json.dumps(report.as_dict()))
    assert printed["promises_kept"]
    assert (printed["seed"], printed["faults"], printed["lost"]) == (7, {"kill": 2}, 0)
    total = command.summary([report, report], 7)
    assert (total["faults"], total["promises_kept"]) == ({"kill": 4}, True)


@pytest.mark.parametrize(
    ("found", "stuck", "doubt"),
    [
        ({}, (), False),
        ({"unexplained": 1}, (), True),
        ({"regressed": 2}, (), True),
        ({}, ("a worker hangs",), True),
        ({"lost": 1}, (), False),
        ({"lost": 1, "unexplained": 3}, (), False),
        ({"premature": 1, "unexplained": 1}, (), False),
    ],
)
def test_only_what_a_busy_machine_may_have_made_is_in_doubt(
    found: dict[str, Any], stuck: tuple[str, ...], *, doubt: bool
) -> None:
    """A lost message, or one that was committed too early, is never played again until it goes well."""
    fine = judge(History(log=[], calls=[], window_ms=1))
    report = Report(
        scenario="kill", choice=Choice(seed=7, seconds=1), judgement=replace(fine, **found), faults={}, resent=0,
        rebalances=1, seconds=1.0, stuck=stuck,
    )  # fmt: skip
    assert command.in_doubt(report) is doubt
    assert command.in_doubt(None)


def test_help_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's help tells what each scenario does."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SCENARIOS)
