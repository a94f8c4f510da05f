from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from dedup_sdk._demo.narrator import DemoResult, Narrator, failures, last_line, result_table
from dedup_sdk._demo.oracle import Judgement, StoreComparison

KEYS = [
    "broker",
    "records",
    "distinct_ids",
    "duplicates_in_topic",
    "handled",
    "lost",
    "doubled",
    "doubled_bound",
    "resent",
    "resent_handled",
    "rebuild_records_per_second",
    "marks",
    "stores_equal",
    "seconds",
]

GOOD = Judgement(records=12, distinct_ids=10, handled=11, lost=0, doubled=1, doubled_bound=1, unexplained=0)
SAME = StoreComparison(marks=10, differing=())
RESULT = DemoResult(
    broker="kafka",
    records=12,
    distinct_ids=10,
    duplicates_in_topic=2,
    handled=11,
    lost=0,
    doubled=1,
    doubled_bound=1,
    resent=1,
    resent_handled=0,
    rebuild_records_per_second=100,
    marks=10,
    stores_equal=True,
    seconds=1.5,
)


def plain(*what: object) -> str:
    """The output for these, as text without a terminal."""
    console = Console(file=io.StringIO(), width=100)
    console.print(*what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_nothing_failed_when_every_promise_held() -> None:
    """A double that the SIGKILL excuses is no failure."""
    assert failures(GOOD, SAME, 0) == ()


@pytest.mark.parametrize(
    ("judgement", "comparison", "resent_handled", "word"),
    [
        (replace(GOOD, lost=3), SAME, 0, "3 flights were lost"),
        (replace(GOOD, doubled=2), SAME, 0, "2 flights were handled twice"),
        (replace(GOOD, unexplained=1), SAME, 0, "far from the SIGKILL"),
        (GOOD, StoreComparison(marks=10, differing=(2,)), 0, r"partitions [2]"),
        (GOOD, SAME, 4, "4 resent flights were handled again"),
    ],
)
def test_each_broken_promise_is_named(
    judgement: Judgement, comparison: StoreComparison, resent_handled: int, word: str
) -> None:
    """Any single broken promise is one failure that names its figures."""
    (failure,) = failures(judgement, comparison, resent_handled)
    assert word in failure


def test_the_json_object_has_exactly_the_promised_keys() -> None:
    """The keys, their order and their types are promised to scripts."""
    content = json.loads(json.dumps(RESULT.as_json()))
    assert list(content) == KEYS
    assert content["stores_equal"] is True
    assert content["broker"] == "kafka"


def test_a_failure_is_in_the_json_object_and_in_the_last_line() -> None:
    """A failed demo says why, to a reader and to a script."""
    failed = replace(RESULT, failures=("3 flights were lost",))
    assert failed.as_json()["failures"] == ("3 flights were lost",)
    assert plain(last_line(failed)).startswith("FAILED: 3 flights were lost")
    assert plain(last_line(RESULT)).startswith("PASSED: 10 flights")


def test_the_table_marks_what_is_wrong() -> None:
    """Each figure with a bound has its own sign, so that the wrong one is found at a glance."""
    assert "NO" not in plain(result_table(RESULT))
    wrong = plain(result_table(replace(RESULT, lost=3, stores_equal=False)))
    assert [line.split()[0] for line in wrong.splitlines() if "NO" in line] == ["lost", "IDs"]


def test_a_step_is_one_line_where_nobody_watches() -> None:
    """Without a terminal there are no bars, only each finished step's line."""
    output = io.StringIO()
    with Narrator(Console(file=output, width=200)).step(2, "producer") as step:
        step.doing("sending", 10)
        step.at(5)
        step.outcome = "10 flights sent"
    (line,) = output.getvalue().splitlines()
    assert line.startswith("2/5 producer")
    assert line.endswith("10 flights sent")


def test_a_failed_step_prints_no_outcome() -> None:
    """When a step raises, its line does not appear as if it had been done."""
    output = io.StringIO()
    with pytest.raises(RuntimeError, match="broken"), Narrator(Console(file=output)).step(1, "broker"):
        raise RuntimeError("broken")
    assert output.getvalue().strip() == ""
