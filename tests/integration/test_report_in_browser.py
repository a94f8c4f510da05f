"""The report as a browser shows it.

Look at the screenshots of a failing run first: they lie in pytest's folder.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pytest
from PIL import Image

from spark_backfill.report_page.page import write_page
from tests.support.sample_report import sample_document, sample_findings

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = pytest.mark.browser

SCREENS = [(1280, "light"), (1280, "dark"), (390, "dark"), (320, "light")]
OVERFLOWING = """
const wide = document.documentElement.clientWidth;
return [...document.querySelectorAll("body *")]
  .filter(each => !each.closest(".scroll") && !each.closest("svg"))
  .filter(each => each.getBoundingClientRect().right > wide + 0.5 \
|| each.scrollWidth > each.clientWidth + 1 && each.clientWidth)
  .map(each => each.tagName + " " + each.textContent.slice(0, 40));
"""
OUTSIDE_FIGURE = """
return [...document.querySelectorAll("svg")].flatMap(svg => {
  const box = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(text => {
    const own = text.getBoundingClientRect();
    return own.left < box.left - 2 || own.right > box.right + 2 || own.top < box.top - 2 || own.bottom > box.bottom + 2;
  }).map(text => text.textContent);
});
"""
COVERING = """
return [...document.querySelectorAll("svg")].flatMap(svg => {
  const boxes = [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], place) => boxes.slice(place + 1)
    .filter(([other, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
                         && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
    .map(([other, b]) => one + " / " + other));
});
"""
SMALLEST_TEXT = """
return Math.min(...[...document.querySelectorAll("svg text")].map(text =>
  parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a));
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with all of its sections."""
    return write_page(sample_document(sample_findings()), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_nothing_overflows_on_any_screen(
    chromium: Browser, page: Path, tmp_path: Path, width: int, scheme: str
) -> None:
    """From a desk to a small telephone, in light and dark.

    No text runs out of its place or over another, wide tables scroll.
    """
    chromium.open(page, width=width, dark=scheme == "dark")
    chromium.driver.save_screenshot(str(tmp_path / "page.png"))
    assert chromium.run("return document.documentElement.scrollWidth") == width
    assert chromium.run(OVERFLOWING) == []
    assert chromium.run(OUTSIDE_FIGURE) == []
    assert chromium.run(COVERING) == []
    assert chromium.run(SMALLEST_TEXT) >= 7
    assert chromium.said() == []


def test_the_page_fetches_nothing(chromium: Browser, page: Path) -> None:
    """Opened from a file, the page asks for nothing else and says nothing to the console."""
    chromium.open(page, width=1000)
    assert chromium.run("return performance.getEntriesByType('resource').map(each => each.name)") == []
    assert chromium.said() == []


def test_the_figures_are_drawn(chromium: Browser, page: Path) -> None:
    """Each figure is as wide as its column and shows its curve or area in the page's main colour, light and dark."""
    for dark, colour in ((False, (0x17, 0x66, 0xB8)), (True, (0x6D, 0xB1, 0xF2))):
        chromium.open(page, width=1280, dark=dark)
        figures = chromium.driver.find_elements("css selector", "figure svg")
        assert len(figures) == 4
        for figure in figures:
            assert figure.size["width"] > 400
            shown = Image.open(io.BytesIO(figure.screenshot_as_png)).convert("RGB")
            near = [
                count
                for count, seen in shown.getcolors(shown.width * shown.height) or []
                if isinstance(seen, tuple) and sum(abs(a - b) for a, b in zip(seen, colour, strict=True)) < 60
            ]
            assert sum(near) > 100, figure.accessible_name


def test_the_figures_of_the_findings_are_seen(chromium: Browser, page: Path) -> None:
    """The visible page has the number of records and duplicates, the advised window and the table of windows."""
    findings = sample_findings()
    chromium.open(page, width=390)
    seen = chromium.run("return document.body.innerText")
    assert f"{findings.total.records:,}" in seen
    assert f"{findings.total.duplicates:,}" in seen
    rows = chromium.run(
        "return [...document.querySelectorAll('#adviser tr')].map(row => [...row.cells].map(cell => cell.innerText))"
    )
    assert rows[0][0] == "window"
    assert len(rows) > 8
    assert chromium.run("return document.querySelector('#adviser tr.mark td').innerText") in chromium.run(
        "return document.getElementById('advised').innerText"
    )


def test_dark_is_dark(chromium: Browser, page: Path) -> None:
    """Where the reader asks for it the paper is dark, also that of figures, and text on it is light."""
    chromium.open(page, width=800, dark=True)
    brightness = """
      const sum = text => text.match(/[0-9]+/g).slice(0, 3).reduce((all, each) => all + Number(each), 0);
      return [sum(getComputedStyle(document.body).backgroundColor), \
sum(getComputedStyle(document.querySelector("h1")).color)];
    """
    paper, text = chromium.run(brightness)
    assert paper < 150
    assert text > 350
    for figure in chromium.driver.find_elements("css selector", "figure svg"):
        shown = np.asarray(Image.open(io.BytesIO(figure.screenshot_as_png)).convert("L"))
        assert shown[1, 1] < 50
        assert shown.max() > 200


def test_a_history_without_anything_is_readable_too(chromium: Browser, tmp_path: Path) -> None:
    """An empty report neither overflows nor complains."""
    from spark_backfill.findings.findings import Findings

    chromium.open(write_page(sample_document(Findings()), tmp_path), width=320)
    assert chromium.run(OVERFLOWING) == []
    assert chromium.said() == []
