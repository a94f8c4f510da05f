"""No message shows a number of milliseconds: lengths and times have units for people."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FORMATS = {
    "dedup_sdk/_commit_text.py": "the text of a commit, which programs read",
    "dedup_sdk/_store/snapshot_check.py": "a line of dedup dump, with a timestamp in ms",
    "dedup_sdk/ids/_redrive.py": "the value of a header, which programs read",
    "dedup_sdk/_window.py": "lengths for people are made here",
    "dedup_sdk/_time_text.py": "times for people are made here",
}
"""The files that put milliseconds into texts which are no messages, and what these are."""
LOGGING = {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}


def shown_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What f-strings, `%`, `str.format` and calls of loggers show: the line, and the name of a number of ms."""
    for node in ast.walk(tree):
        shown: list[ast.expr] = []
        if isinstance(node, ast.FormattedValue):
            shown = [node.value]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and is_text(node.left):
            shown = [node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method in LOGGING or (method == "format" and is_text(node.func.value)):
                shown = [*node.args, *(named.value for named in node.keywords)]
        for each in shown:
            yield from ((each.lineno, name) for name in milliseconds(each))


def is_text(node: ast.expr) -> bool:
    """Whether this is a text, or the bytes of one."""
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def milliseconds(node: ast.expr) -> Iterator[str]:
    """The names that end in ``_ms`` inside an expression, but not inside a call, which gives them a unit."""
    if isinstance(node, ast.Call | ast.Compare | ast.JoinedStr):
        return
    text = ast.unparse(node)
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and text.rstrip("'\"]").endswith("_ms"):
        yield text
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from milliseconds(child)


@pytest.mark.parametrize("package", ["dedup_sdk", "spark_backfill"])
def test_no_message_has_a_number_of_milliseconds(package: str) -> None:
    """`length_text` makes ``7 d`` of a length, `time_text` a UTC time of a timestamp."""
    found = {
        f"{path.relative_to(ROOT)}:{line} shows {name}"
        for path in (ROOT / package).rglob("*.py")
        if str(path.relative_to(ROOT)) not in FORMATS
        for line, name in shown_in(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert found == set()


def test_the_exceptions_are_needed() -> None:
    """Each file that may show milliseconds does."""
    for name in FORMATS:
        assert list(shown_in(ast.parse((ROOT / name).read_text(encoding="utf-8")))), name


@pytest.mark.parametrize(
    "code",
    [
        "f'{window_ms} ms'", "f'{self.window_ms:,}'", "f'{now_ms - then_ms}'", "f'{row[\"seen_ms\"]}'",
        "'%d ms' % window_ms", "'%d of %s' % (lag_ms, name)", "'{}'.format(lag_ms)", "logger.info('%d', lag_ms)",
        "self.log.warning('late', lag_ms)",
    ],
)  # fmt: skip
def test_what_shows_milliseconds_is_found(code: str) -> None:
    """Each way to put a number into a text."""
    assert list(shown_in(ast.parse(code)))


def test_what_has_a_unit_is_not_found() -> None:
    """A call makes a text for people of the number."""
    code = "f'{length_text(a_ms) if b_ms > 0 else 0}'; log.info('%s' % time_text(c_ms))"
    assert not list(shown_in(ast.parse(code)))
