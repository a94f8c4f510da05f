from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import PAGES, ROOT, page_id

_LINK = re.compile(r"\[[^\]\n]+\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?:dedup_sdk|spark_backfill|adapters|benchmarks|docs|examples|tests)/[\w./-]*")
ALL_PAGES = [*PAGES, ROOT / "CHANGELOG.md"]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there, and a heading in it."""
    for link in _LINK.findall(_CODE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", ALL_PAGES, ids=page_id)
def test_paths_in_the_text_exist(page: Path) -> None:
    """A path of this repository that is named as code is there."""
    for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", page.read_text(encoding="utf-8")):
        if _PATH.fullmatch(code):
            assert (ROOT / code).exists() or (ROOT / "dedup_sdk" / code).exists(), code


def test_every_page_is_reached_from_the_readme() -> None:
    """No page of docs/ is one that only a directory listing would show: the README or the index links to it."""
    pages = [ROOT / "README.md", ROOT / "docs" / "README.md"]
    linked = {Path(link).name for page in pages for link in _LINK.findall(page.read_text(encoding="utf-8"))}
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= linked
