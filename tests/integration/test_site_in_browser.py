"""The site of `make docs`, opened from the disk."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.browser import Browser

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SEARCH = """
const field = document.querySelector("[data-md-component=search-query]");
field.focus();
field.value = arguments[0];
field.dispatchEvent(new Event("input", {bubbles: true}));
field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
"""
FOUND = """
return [...document.querySelectorAll(".md-search-result__link")].map(each => each.href.split("/").pop());
"""
CUT_BLOCKS = """
return [...document.querySelectorAll("pre > code")].filter(each => each.scrollWidth > each.clientWidth)
  .map(each => each.textContent.slice(0, 40));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that has just been built."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, timeout=300)
    return folder


@pytest.mark.parametrize("page", ["index.html", "api/consumer.html"])
def test_the_search_works_from_the_disk(chromium: Browser, site: Path, page: str) -> None:
    """A word is found on its page, though a browser gives pages from the disk no worker."""
    chromium.open(site / page, width=1280)
    chromium.run(SEARCH, "redrive")
    deadline = time.monotonic() + 60
    while not (found := chromium.run(FOUND)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "handlers.html#redrive" in found
    assert chromium.said() == []


@pytest.mark.parametrize("dark", [False, True])
def test_the_start_page_shows_its_picture_and_whole_lines(
    chromium: Browser, site: Path, *, dark: bool
) -> None:
    """The drawing is there, and no line of a block of code is cut off on a laptop's screen."""
    chromium.open(site / "index.html", width=1280, dark=dark)
    assert chromium.run("return document.querySelector('article img').naturalWidth") > 0
    assert chromium.run(CUT_BLOCKS) == []
    assert chromium.said() == []
