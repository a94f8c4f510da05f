from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import PAGES, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_PER_1000 = 3
"""So many "what" in 1,000 words: the word mostly stands for a noun that the sentence hides."""
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_WHAT = re.compile(r"\bwhat\b", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_][\w'\u2019-]*")


def rate(texts: list[str]) -> float:
    """How often the word comes in 1,000 words of all texts."""
    words = sum(len(_WORD.findall(text)) for text in texts)
    return 1000 * sum(len(_WHAT.findall(text)) for text in texts) / words


def docstrings(module: Path) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and constants."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield text


def test_a_hidden_noun_is_counted() -> None:
    """The word counts, in any case, but not inside another word."""
    assert rate(["What is read is what counts, whatever."]) == pytest.approx(2000 / 7)


def test_pages_say_the_noun() -> None:
    """The Markdown pages together stay below the limit; code blocks do not count."""
    pages = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    assert rate([_CODE.sub("", page.read_text(encoding="utf-8")) for page in {*pages}]) <= MOST_PER_1000


@pytest.mark.parametrize(
    "package", ["dedup_sdk", "adapters", "spark_backfill", "examples", "benchmarks", "tests"]
)
def test_docstrings_say_the_noun(package: str) -> None:
    """The docstrings of a package together stay below the limit."""
    texts = [text for module in (ROOT / package).rglob("*.py") for text in docstrings(module)]
    assert texts
    assert rate(texts) <= MOST_PER_1000
