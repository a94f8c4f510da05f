from __future__ import annotations

import re

from tests.chaos.sabotage import BROKEN
from tests.chaos.table import SCENARIOS
from tests.support.pages import ROOT


def test_the_page_names_every_scenario_and_its_broken_twin() -> None:
    """The table of the page is the table of the code."""
    page = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8").split("<!-- scenarios -->")[1]
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \| `([a-z-]+)` \|$", page, re.MULTILINE)
    assert rows == [(each.name, each.summary, each.broken) for each in SCENARIOS.values()]


def test_the_page_tells_what_was_found_without_each_protection() -> None:
    """No scenario is without a twin that was played."""
    page = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8").split("## What the twins did")[1]
    rows = re.findall(
        r"^\| `([a-z-]+)`(?: \(seed \d+\))? \| (?:classic|cooperative|consumer) \| [\d,]+ \| \d.+ \|$",
        page,
        re.MULTILINE,
    )
    assert rows == list(SCENARIOS)


def test_every_protection_that_can_be_taken_away_is_explained() -> None:
    """Each way to break a worker says in one sentence what it does."""
    assert all((broken.__doc__ or "").endswith(".") for broken in BROKEN.values())
