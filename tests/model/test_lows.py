"""What becomes of a group's history is what the page on recovery says, row by row."""

from __future__ import annotations

import re

import pytest

from tests.model.lows import WAYS, Way, row_of
from tests.model.worlds.quiet import quiet
from tests.model.worlds.world import World
from tests.support.pages import ROOT

_PAGE = (ROOT / "docs" / "recovery.md").read_text(encoding="utf-8")
_ROWS = re.findall(r"^\|.+\|$", _PAGE.split("<!-- lows -->")[1].split("\n\n")[0], re.MULTILINE)[2:]


def test_the_page_has_a_row_for_every_way() -> None:
    """None is missing on either side, and the order is the same."""
    assert [row.split(" | ")[0].removeprefix("| ") for row in _ROWS] == [way.name for way in WAYS]


@pytest.mark.parametrize(("way", "row"), [*zip(WAYS, _ROWS, strict=False)], ids=[way.name for way in WAYS])
def test_a_way_ends_as_the_page_says(way: Way, row: str) -> None:
    """Where the history begins, what comes again, what is known, and what is told; and nothing is lost or hidden wrongly."""
    with quiet(World()):
        assert row_of(way) == row
