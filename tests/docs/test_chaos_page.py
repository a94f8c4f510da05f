from __future__ import annotations

import re

from tests.chaos.analysis import CHECKS
from tests.chaos.sabotage import BROKEN
from tests.chaos.table import SCENARIOS
from tests.support.pages import ROOT

ROWS = re.findall(
    r"^\| `([a-z-]+)` \| (.+) \| `([a-z-]+)` \| (.+) \|$",
    (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8").split("<!-- scenarios -->")[1],
    re.MULTILINE,
)


def test_the_page_names_every_scenario_and_its_broken_variant() -> None:
    """The table of the page is the table of the code."""
    assert [row[:3] for row in ROWS] == [
        (each.name, each.summary, each.broken) for each in SCENARIOS.values()
    ]


def test_the_page_says_what_the_oracle_found_without_each_protection() -> None:
    """Every broken variant was played, and the oracle counted broken promises in it."""
    kinds = "|".join(["lost|premature|unexplained|regressed|trespassed|unpersisted|unsent", *CHECKS])
    assert ROWS
    for row in ROWS:
        assert re.fullmatch(rf"\d[\d,]* ({kinds})(, \d[\d,]* ({kinds}))*( \(seed \d+\))?", row[3]), row[0]


def test_every_protection_that_can_be_taken_away_is_explained() -> None:
    """Each way to break a worker says its effect in one sentence."""
    assert all((broken.__doc__ or "").endswith(".") for broken in BROKEN.values())
