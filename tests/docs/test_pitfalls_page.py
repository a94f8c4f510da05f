from __future__ import annotations

import ast
import re

import pytest

from tests.chaos.table import SCENARIOS
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "pitfalls.md").read_text(encoding="utf-8")
ROWS = {int(number): text for number, text in re.findall(r"^\| (\d+) \| (.+) \|$", PAGE, re.MULTILINE)}
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def test_every_pitfall_has_its_row() -> None:
    """The table is whole: each number once."""
    assert sorted(ROWS) == list(range(1, 50))


@pytest.mark.parametrize("number", sorted(ROWS))
def test_a_row_names_a_test_or_a_reason(number: int) -> None:
    """A row is shown by a test, or says why it does not apply."""
    assert re.search(r"`tests/[\w/]+\.py::\w+`", ROWS[number]) or "Does not apply: " in ROWS[number]


@pytest.mark.parametrize("number", sorted(ROWS))
def test_a_row_is_not_shown_by_tests_of_tests_alone(number: int) -> None:
    """An oracle's findings in made-up runs say nothing of the code: another test, or a reason, is there too."""
    files = set(re.findall(r"`(tests/[\w/]+\.py)::", ROWS[number]))
    assert "Does not apply: " in ROWS[number] or files - {
        "tests/chaos/test_oracle.py",
        "tests/chaos/test_table.py",
    }


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_named_test_exists(file: str, name: str) -> None:
    """The name on the page is a test of that file."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_named_scenarios_exist() -> None:
    """A scenario of a row can be played."""
    named = {
        name
        for part in re.findall(r"[Ss]cenarios? ((?:`[a-z-]+`(?:,| and)? ?)+)", PAGE)
        for name in re.findall(r"`([a-z-]+)`", part)
    }
    assert len(named) > 5
    assert named <= set(SCENARIOS)
