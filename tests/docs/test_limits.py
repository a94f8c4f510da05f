"""How long pages and lines may be, and that the map of the code names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, page_id

REFERENCE = {"api.md", "cli.md", "formats.md", "log-lines.md", "monitoring.md", "reference.md"}
"""Pages that are looked up, not read: they do not count."""
MOST_WORDS_OF_README = 700
MOST_WORDS_OF_PAGES = 29_700
MOST_WHAT_IN_1000_WORDS = 3
LONGEST_LINE = 120
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
MARKDOWN = [*PAGES, *sorted((ROOT / "benchmarks").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
TEMPLATE = ROOT / "spark_backfill" / "report_page" / "page.html.jinja"


def words(page: Path) -> list[str]:
    """The words of a page that are read: no code blocks, targets of links, rules and borders of tables."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)\s]+\)", "]", text)
    text = re.sub(r"^\|[-|: ]+\|$", "", text, flags=re.MULTILINE)
    return text.replace("|", " ").split()


def is_free(line: str) -> bool:
    """Whether a line may be long: a row of a table, or one that ends in an address, which cannot be broken."""
    return line.startswith("|") or bool(re.search(r"https?://\S+$", line))


def test_the_readme_is_short() -> None:
    """The README can be read in a few minutes."""
    assert len(words(ROOT / "README.md")) <= MOST_WORDS_OF_README


def test_the_pages_are_few_words() -> None:
    """All pages of docs/, the reference left out, can be read in an afternoon."""
    counts = {page.name: len(words(page)) for page in PAGES if page.parent == ROOT / "docs"}
    assert set(counts) >= REFERENCE
    assert sum(count for name, count in counts.items() if name not in REFERENCE) <= MOST_WORDS_OF_PAGES


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=page_id)
def test_a_page_names_things(page: Path) -> None:
    """A page says the noun instead of "what"."""
    found = re.findall(r"\bwhat\b", page.read_text(encoding="utf-8"), re.IGNORECASE)
    assert len(found) * 1_000 <= MOST_WHAT_IN_1000_WORDS * len(words(page))


@pytest.mark.parametrize("file", [*MARKDOWN, TEMPLATE], ids=page_id)
def test_no_line_is_long(file: Path) -> None:
    """A line has at most 120 characters, in blocks of code, too."""
    lines = enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
    assert [number for number, line in lines if len(line) > LONGEST_LINE and not is_free(line)] == []


def test_the_map_names_files_that_are_there() -> None:
    """Each path in ARCHITECTURE.md is one of this repository or of the package; a bare name is that of a module."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paths = {path for path in re.findall(r"`([\w./-]+)`", text) if "/" in path or path.endswith(".py")}
    modules = {path.name for path in (ROOT / "dedup_sdk").rglob("*.py")}
    missing = {
        path
        for path in paths
        if not (ROOT / path).exists() and not (ROOT / "dedup_sdk" / path).exists() and path not in modules
    }
    assert missing == set()
    assert len(paths) > 20


def test_the_bytes_of_an_id_are_those_of_the_benchmark() -> None:
    """The page on operations says the figure of benchmarks/README.md, rounded; README that of a consumer's store.

    A consumer's store has small files, too.
    """
    figure = re.search(
        r"^\| bytes an ID on disk \| [\d.]+ \| ([\d.]+) \|", text_of("benchmarks"), re.MULTILINE
    )
    assert figure
    size = f"{round(float(figure[1]))} bytes"
    of_consumer = re.search(r"(\d+) bytes of disk an ID", text_of("."))
    assert of_consumer
    assert 0 <= int(of_consumer[1]) - float(figure[1]) < 3
    assert text_of("docs", "operations.md").count(size) == 2


def text_of(folder: str, name: str = "README.md") -> str:
    """The text of a page, without breaks of lines in it."""
    return (ROOT / folder / name).read_text(encoding="utf-8")
