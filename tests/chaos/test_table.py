from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import command
from tests.chaos.crew import ROOT
from tests.chaos.forgetful import ForgetfulBrokerError
from tests.chaos.history import History
from tests.chaos.oracle import judge
from tests.chaos.report import Report
from tests.chaos.sabotage import BROKEN, sabotage
from tests.chaos.scenario import Scenario
from tests.chaos.stage import Choice
from tests.chaos.table import SCENARIOS
from tests.support.repeating import FOLDER


def test_every_scenario_has_a_broken_twin() -> None:
    """Each scenario names a protection that a worker knows how to take away, and each of these is used."""
    used = Counter(name for each in SCENARIOS.values() for name in (each.broken, *each.also_broken))
    assert {*used, "forget-while-reopening"} == set(BROKEN), "the last one is for `tests.chaos.alarms`"


@pytest.mark.slow
def test_every_protection_is_there_to_be_taken_away() -> None:
    """No broken twin is left that breaks nothing, because its target has another name by now."""
    program = "from tests.chaos.sabotage import BROKEN, sabotage\nfor name in BROKEN: sabotage(name)"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_unknown_protection_is_an_error() -> None:
    """A worker that cannot break its protection does not run as if nothing were broken."""
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


def test_a_worker_that_ends_by_itself_breaks_a_promise() -> None:
    """Where none may end, one that does is a failure."""
    report = Report(
        scenario="bad-disk", choice=Choice(seed=7, seconds=1), judgement=judge(History(log=[], calls=[], window_ms=1)),
        faults={"disk-dead": 1}, resent=0, rebalances=1, seconds=1.0, ended=1,
    )  # fmt: skip
    assert report.broken == {"ended": 1}


def test_a_worker_imports_no_database_that_it_does_not_use() -> None:
    """Every scenario would import these packages for its workers, which takes longer than all the rest."""
    program = "import sys, tests.chaos.worker; print({*sys.modules} & {'sqlalchemy', 'redis', 'docker'})"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "set()\n"


ASKED = ["--scenario", "kill", "--protocol", "classic"]


def played_by(monkeypatch: pytest.MonkeyPatch, *outcomes: Report | Exception) -> list[int]:
    """Have the command get these outcomes one after the other, without a broker.

    Return a list that gets an entry for each.
    """
    played: list[int] = []

    def direct(*_: Any, **_named: Any) -> Report:
        outcome = outcomes[len(played)]
        played.append(len(played))
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(command, "direct", direct)
    monkeypatch.setattr(command, "start_bed", lambda *_: None)
    return played


def report_of(stuck: tuple[str, ...] = (), faults: int = 1, **found: Any) -> Report:
    """A report of the findings."""
    fine = judge(History(log=[], calls=[], window_ms=1))
    return Report(
        scenario="kill", choice=Choice(seed=7, seconds=1), judgement=replace(fine, **found),
        faults={"kill": faults}, resent=0,
        rebalances=1, seconds=1.0, stuck=stuck,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (report_of(), 0),
        (report_of(unexplained=1), 1),
        (report_of(regressed=2), 1),
        (report_of(lost=1), 1),
        (report_of(("a worker hangs",)), 2),
        (report_of(faults=0), 2),
        (TimeoutError("nothing was committed"), 2),
    ],
)
def test_what_goes_wrong_is_not_played_again(
    monkeypatch: pytest.MonkeyPatch, outcome: Report | Exception, status: int
) -> None:
    """A promise that is broken now and then is broken, and a worker that hangs now and then hangs."""
    played = played_by(monkeypatch, outcome)
    assert command.main(ASKED) == status
    assert len(played) == 1


def test_only_a_broker_that_forgot_is_replaced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can judge by it; another one gets one chance, and the finding is printed."""
    played = played_by(monkeypatch, ForgetfulBrokerError("{'regressed': 6}"), report_of())
    assert command.main(ASKED) == 0
    assert len(played) == 2
    assert "found: {'regressed': 6}" in capsys.readouterr().err
    played_by(monkeypatch, *[ForgetfulBrokerError("{}")] * 2)
    assert command.main(ASKED) == 2


@pytest.mark.parametrize(
    "outcome", [report_of(lost=1), report_of(("a worker hangs",)), TimeoutError("not over")]
)
def test_a_scenario_that_failed_is_handed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcome: Report | Exception
) -> None:
    """Where failures are repeated alone, the command names each scenario that failed, with its choice, and goes on."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    played_by(monkeypatch, outcome, report_of(), report_of())
    assert command.main([*ASKED[:2], "--protocol", "all", "--seed", "7", "--rate", "3000"]) == 0
    (file,) = tmp_path.iterdir()
    written = json.loads(file.read_text())
    assert written["name"] == "tests.chaos kill, classic, seed 7"
    again = command.parser().parse_args(written["command"][3:])
    assert (again.scenario, again.protocol, again.seed, again.rate) == ("kill", "classic", 7, 3_000)
    assert 60 * again.minutes == pytest.approx(SCENARIOS["kill"].short_s)


def test_shares_together_play_every_scenario_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commands beside each other play what one command plays: the same scenarios, protocols and times."""
    played: list[tuple[str, Choice]] = []

    def direct(scenario: Scenario, choice: Choice, *_: Any, **_named: Any) -> Report:
        played.append((scenario.name, choice))
        return report_of()

    monkeypatch.setattr(command, "direct", direct)
    monkeypatch.setattr(command, "start_bed", lambda *_: None)
    asked = ["--seed", "7", "--soak-minutes", "3"]
    assert command.main(asked) == 0
    whole = list(played)
    played.clear()
    for share in ("3/3", "1/3", "2/3"):
        assert command.main([*asked, "--share", share]) == 0
    assert sorted(played, key=str) == sorted(whole, key=str)
    assert {name for name, _ in whole} == set(SCENARIOS)
    for share in ("0/3", "4/3", "1", "a/b"):
        with pytest.raises(SystemExit):
            command.main(["--share", share])
        assert f"'{share}' is not K/N" in capsys.readouterr().err


def test_a_scenario_that_could_not_be_judged_leaves_its_broker_to_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been half way through a restore."""
    played = played_by(monkeypatch, TimeoutError("not over"), report_of(), report_of(), report_of())
    started: list[None] = []
    monkeypatch.setattr(command, "start_bed", lambda *_: started.append(None))
    assert command.main([*ASKED[:2], "--protocol", "all"]) == 2
    assert (len(played), len(started)) == (len(SCENARIOS["kill"].protocols), 2)


def test_help_names_every_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    """The command's help tells the fault of each scenario."""
    with pytest.raises(SystemExit) as ended:
        command.main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in SCENARIOS)
