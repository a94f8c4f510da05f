"""How the code is built, read from its source: each rule names what breaks it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_PRODUCT: Final = ("dedup_sdk", "adapters/dedup_adapters", "spark_backfill")
_MOST_LINES: Final = 75
"""Lines of a function without its signature and its docstring: a screen and a half."""
_SHARED: Final = frozenset({"chunk", "given"})
"""What others fill in: records of columns (`dedup_sdk.core.flight.Chunk`), options that were given on a command line."""
_OF_LIBRARIES: Final = frozenset({"self._threads", "self._own", "environment"})
"""Objects of libraries whose attributes have names that are ours elsewhere."""
_EXCEPTIONS: Final = frozenset({"ConfigurationError", "BatchFailedError", "InboxError"})
"""Errors that are raised themselves, and have one kind of their own."""


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for folder in _PRODUCT:
        for path in sorted((_ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(_ROOT)), ast.parse(path.read_text())


MODULES: Final = list(_modules())


def _classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for module, tree in MODULES:
        yield from ((module, node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _set_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        else:
            continue
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                    yield each


def test_an_attribute_is_set_in_the_file_of_its_class() -> None:
    """A part owns its state: others call it. Counters are there to be counted up."""
    declared: dict[str, set[str]] = defaultdict(set)
    for module, node in _classes():
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                declared[each.target.id].add(module)
        for attribute in _set_attributes(node):
            if ast.unparse(attribute.value) == "self":
                declared[attribute.attr].add(module)
    elsewhere = [
        f"{module}:{attribute.lineno} {ast.unparse(attribute)}"
        for module, tree in MODULES
        for attribute in _set_attributes(tree)
        if declared.get(attribute.attr)
        and module not in declared[attribute.attr]
        and ast.unparse(attribute.value) not in {"self", "cls", *_SHARED, *_OF_LIBRARIES}
        and "counters" not in ast.unparse(attribute.value)
    ]
    assert elsewhere == []


def test_no_class_has_a_single_subclass() -> None:
    """A class with exactly one subclass is one thing cut in two."""
    where = {node.name: module for module, node in _classes()}
    subclasses: dict[str, set[str]] = defaultdict(set)
    protocols = set()
    for _, node in _classes():
        for base in node.bases:
            name = ast.unparse(base).split("[")[0].split(".")[-1]
            subclasses[name].add(node.name)
            if name == "Protocol":
                protocols.add(node.name)
    single = {
        f"{where[name]} {name} <- {next(iter(below))}"
        for name, below in subclasses.items()
        if name in where and len(below) == 1 and name not in protocols | _EXCEPTIONS
    }
    assert single == set()


def test_a_function_fits_on_a_screen_and_a_half() -> None:
    """Signature and docstring are not counted."""
    long = []
    for module, tree in MODULES:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                lines = (node.end_lineno or 0) - first.lineno + 1
                if lines > _MOST_LINES:
                    long.append(f"{module} {node.name}: {lines} lines")
    assert long == []
