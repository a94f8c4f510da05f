"""A group's history moves as the table in ``lows.md`` says, and the page on recovery shows rows of that table."""

from __future__ import annotations

import re

import pytest

from tests.model.lows import WAYS, Way, row_of
from tests.model.worlds.quiet import quiet
from tests.model.worlds.world import World
from tests.support.pages import ROOT

_COMMIT_TEXT = 1
"""The table's column that the page leaves out."""


def rows(text: str) -> list[str]:
    """Return the rows of the first table, without its head."""
    return re.findall(r"^\|.+\|$", text, re.MULTILINE)[2:]


_PAGE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
_ON_PAGE = rows(_PAGE.split("<!-- lows -->")[1].split("\n\n")[0])
_ROWS = rows((ROOT / "tests" / "model" / "lows.md").read_text(encoding="utf-8"))


def on_page(row: str) -> str:
    """Return a row of the table as the page has it."""
    cells = row.split(" | ")
    return " | ".join(cells[:_COMMIT_TEXT] + cells[_COMMIT_TEXT + 1 :])


def test_the_table_has_a_row_for_every_way() -> None:
    """None is missing on either side, and the order is the same."""
    assert [row.split(" | ")[0].removeprefix("| ") for row in _ROWS] == [way.name for way in WAYS]


def test_the_page_has_rows_of_the_table() -> None:
    """Each row of the page is one of the table, in its order, and none is there twice."""
    assert len(_ON_PAGE) > 15
    assert [row for row in map(on_page, _ROWS) if row in set(_ON_PAGE)] == _ON_PAGE


@pytest.mark.parametrize(("way", "row"), [*zip(WAYS, _ROWS, strict=False)], ids=[way.name for way in WAYS])
def test_a_way_ends_as_the_table_says(way: Way, row: str) -> None:
    """Where the history begins, the records that come again, the marks known, and the text.

    And nothing is lost or hidden wrongly.
    """
    with quiet(World()):
        assert row_of(way) == row
