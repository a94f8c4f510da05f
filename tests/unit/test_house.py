"""How the code is built, read from its source: each rule names the lines that break it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

from dedup_sdk import Counters
from dedup_sdk._observe import PartitionCounters
from dedup_sdk.bridge import BridgeCounters
from dedup_sdk.producer._outbox import OutboxCounters

_ROOT: Final = Path(__file__).parents[2]
_PRODUCT: Final = ("dedup_sdk", "adapters/dedup_adapters", "spark_backfill")
_MOST_LINES: Final = 75
"""Lines of a function without its signature and its docstring: a screen and a half."""
_SHARED: Final = frozenset({"given"})
"""Objects that others fill in: options that were given on a command line."""
_RECORDS: Final = frozenset({"Recovering", "Retry"})
"""Classes without a method, whose fields whoever works on them may set: nobody finds one in a transition."""
_OF_LIBRARIES: Final = frozenset({"self._threads", "self._own", "environment", "tp"})
"""Objects of libraries whose attributes have names that are ours elsewhere."""
_COUNTERS: Final = frozenset(
    field.name
    for counters in (Counters, PartitionCounters, BridgeCounters, OutboxCounters)
    for field in fields(counters)
)
"""The names of all that is counted."""
_MUTATORS: Final = frozenset({
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert",
    "intersection_update", "pop",
    "popitem", "popleft", "remove", "reverse", "setdefault", "sort", "update",
})  # fmt: skip
"""Methods that change a list, deque, dictionary or set."""
_EXCEPTIONS: Final = frozenset({"ConfigurationError", "BatchFailedError", "InboxError", "RecoveryError"})
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


def _declared() -> dict[str, set[str]]:
    """Return the files of the classes that have an attribute, by its name."""
    declared: dict[str, set[str]] = defaultdict(set)
    for module, node in _classes():
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                declared[each.target.id].add(module)
        for attribute in _set_attributes(node):
            if ast.unparse(attribute.value) == "self":
                declared[attribute.attr].add(module)
    return declared


def _records() -> set[str]:
    """Return the fields of `_RECORDS`; AssertionError for one with a method, which would have transitions."""
    classes = [node for _, node in _classes() if node.name in _RECORDS]
    assert {node.name for node in classes} == _RECORDS
    parts = [each for node in classes for each in node.body]
    assert not any(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in parts)
    return {
        each.target.id
        for each in parts
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def _written_elsewhere(writes: Iterable[tuple[str, ast.Attribute]]) -> list[str]:
    """Return those writes to an attribute that do not stand in a file whose classes have it.

    Counters are there to be counted up.
    """
    declared, records = _declared(), _records()
    return [
        f"{module}:{attribute.lineno} {ast.unparse(attribute)}"
        for module, attribute in writes
        if declared.get(attribute.attr)
        and attribute.attr not in records
        and module not in declared[attribute.attr]
        and ast.unparse(attribute.value) not in {"self", "cls", *_SHARED, *_OF_LIBRARIES}
        and "counters" not in ast.unparse(attribute.value)
    ]


def _attribute_of(node: ast.expr, aliases: dict[str, ast.Attribute]) -> ast.Attribute | None:
    """Return the attribute that an expression indexes or is, also through a local name or an array over its buffer."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "np.frombuffer":
            node = node.args[0]
        elif isinstance(node, ast.Name) and node.id in aliases:
            return aliases[node.id]
        else:
            return node if isinstance(node, ast.Attribute) else None


def _aliases(function: ast.AST) -> dict[str, ast.Attribute]:
    """Return the local names that are bound to an attribute, or to an element of it."""
    aliases: dict[str, ast.Attribute] = {}
    for node in ast.walk(function):
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs += zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs.append((target, node.value))
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs.append((node.target, node.value))
        for target, value in pairs:
            attribute = _attribute_of(value, {}) if isinstance(target, ast.Name) else None
            if isinstance(target, ast.Name) and attribute is not None:
                aliases[target.id] = attribute
    return aliases


def _changes(function: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes whose containers a function changes in place."""
    aliases = _aliases(function)
    for node in ast.walk(function):
        changed: list[ast.expr] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _MUTATORS
        ):
            changed = [node.func.value]
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete | ast.For):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else [node.target]
            leaves = [
                leaf for each in targets for leaf in (each.elts if isinstance(each, ast.Tuple) else [each])
            ]
            changed = [leaf for leaf in leaves if isinstance(leaf, ast.Subscript)]
            if isinstance(node, ast.Delete):
                changed += [leaf for leaf in leaves if isinstance(leaf, ast.Attribute)]
        for each in changed:
            attribute = _attribute_of(each, aliases)
            if attribute is not None:
                yield attribute


def test_an_attribute_is_set_in_the_file_of_its_class() -> None:
    """No part is changed from outside in the middle of a transition: others call it. A record has no transitions."""
    writes = [(module, attribute) for module, tree in MODULES for attribute in _set_attributes(tree)]
    assert _written_elsewhere(writes) == []


def test_a_container_is_changed_in_the_file_of_its_class() -> None:
    """Nor does anybody change another object's list, dictionary or column in place: that object has a method for it."""
    writes = [
        (module, attribute)
        for module, tree in MODULES
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for attribute in _changes(function)
    ]
    assert sorted(set(_written_elsewhere(writes))) == []


def test_nobody_sets_attributes_of_others_by_name() -> None:
    """That would hide a write from the rules above."""
    calls = [
        f"{module}:{node.lineno} {ast.unparse(node)}"
        for module, tree in MODULES
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"setattr", "delattr"}
        and ast.unparse(node.args[0]) not in {"self", "sys", *_SHARED}
    ]
    assert calls == []


def _falls(tree: ast.Module) -> Iterator[ast.AugAssign]:
    """Yield the lines that take something off a counter, or off one of its named parts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Sub):
            target = node.target.value if isinstance(node.target, ast.Subscript) else node.target
            if isinstance(target, ast.Attribute) and target.attr in _COUNTERS:
                yield node


def test_no_counter_falls() -> None:
    """Prometheus reads a fall as a restart, and adds the whole count once more."""
    falls = [
        f"{module}:{node.lineno} {ast.unparse(node)}" for module, tree in MODULES for node in _falls(tree)
    ]
    assert falls == []
    assert (
        len(list(_falls(ast.parse("a.counters.delivered -= 1\nb._own.verdicts[kind] -= 1\nc.open -= 1"))))
        == 2
    )


def test_the_rule_sees_every_kind_of_change() -> None:
    """One line each, of a function that changes others; changes of itself and of its own lists are its business."""
    changing = """
def change(self, other, rows):
    other.a[rows] = 1
    other.b.append(rows)
    del other.c[rows]
    other.d[rows] += 1
    np.frombuffer(other.e, np.uint8)[rows] = 1
    queue = other.f[rows]
    queue.popleft()
    first, second = other.g, rows
    first.clear()
    del other.h
    other.part.i[0].update(rows)
    self.own.append(rows)
    rows.append(1)
    seen = other.read[rows]
"""
    assert sorted(each.attr for each in _changes(ast.parse(changing))) == [*"abcdefghi", "own"]


_SHOWS: Final = frozenset({"__repr__", "__str__", "request_digest"})
"""Functions that print a value as it is: of a class whose values `shown` prints, and for a digest."""


def _raw_values(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what prints a value as it is: ``{value!r}``, ``repr(value)``, and a text for ``%`` with ``%r``."""
    if isinstance(node, ast.FunctionDef) and node.name in _SHOWS:
        return
    if (
        (isinstance(node, ast.FormattedValue) and node.conversion == ord("r"))
        or (isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "repr")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"%r\b", node.value))
    ):
        yield node
    for each in ast.iter_child_nodes(node):
        yield from _raw_values(each)


def test_one_function_shows_values() -> None:
    """`shown`, which masks passwords: a value that was refused may be one, or a URL with one in it."""
    raw = [
        f"{module}:{node.lineno} {ast.unparse(node)[:80]}"
        for module, tree in MODULES
        if module != "dedup_sdk/_masking.py"
        for node in _raw_values(tree)
    ]
    assert raw == []


def test_the_rule_sees_every_way_to_print_a_value() -> None:
    """Also one that reaches the text by `%`, or by another module's `repr`."""
    seen = _raw_values(ast.parse('f"{a!r}"; repr(a); reprlib.repr(a); log("no %r", a); f"{a}"; "%rate"'))
    assert [type(each).__name__ for each in seen] == ["FormattedValue", "Call", "Call", "Constant"]


_REPLACED: Final = frozenset({"Consumer", "Producer"})


def _from_package(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Yield the imports of the client's package of a name that automatic instrumentation replaces there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "confluent_kafka":
            yield from [node] if any(each.name in _REPLACED for each in node.names) else []


def test_clients_are_the_c_classes_themselves() -> None:
    """The package's name may be another class by then, which makes a span of each batch, or changes headers."""
    found = [f"{module}:{node.lineno}" for module, tree in MODULES for node in _from_package(tree)]
    assert found == []


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


_OURS: Final = frozenset({"dedup_sdk", "dedup_adapters", "spark_backfill", "benchmarks", "examples", "tests"})
_PRIVATE: Final = re.compile(r"(?<!\w)_[^\W_]\w*")
_OF_TUPLES: Final = frozenset(dir(NamedTuple("_", [])))
_OF_OTHERS: Final = frozenset({"_jdf"})
"""Private names of libraries, on objects whose class no import tells: PySpark's data frame in Java."""
_BY_NAME: Final = frozenset({
    "setattr", "delattr", "getattr", "hasattr", "attrgetter", "methodcaller", "patch", "object",
})  # fmt: skip
"""Calls that take the name of an attribute: of the language, of `pytest.MonkeyPatch`, of ``unittest.mock``."""
_MODULE_NAMES: Final = frozenset(
    ".".join(Path(module.removeprefix("adapters/")).with_suffix("").parts[:end])
    for module, _ in MODULES
    for end in range(1, 8)
)
"""The dotted names of all packages and modules of the product."""
_INSIDE: Final = "tests/support/inside.py"
"""The functions by which tests reach into a consumer."""
_BROKEN_TWINS: Final = {
    "tests/chaos/sabotage.py": "breaks a rule in a process, so that a scenario must fail",
    "tests/model/test_broken_code.py": "breaks a function of the code, which the model must notice",
    "tests/model/test_worlds.py": "breaks a function of the code, which a world must notice",
    "tests/property/test_shared_lives_broken.py": "breaks the shared memory, which the truth of its lives must notice",
    "tests/property/test_units.py": "breaks the unit gate, which its oracle must notice",
    "tests/support/outbox_worker.py": "breaks the order of the outbox in a process, which the kills must notice",
    "tests/support/set_back_member.py": "breaks a rule of set-backs in a process, which the list must notice",
}
"""Files that put a broken function in the place of one of ours, and why."""


def _is_private(name: str) -> bool:
    return _PRIVATE.fullmatch(name) is not None and name not in _OF_TUPLES | _OF_OTHERS


def _has_private_part(dotted: str) -> bool:
    """Whether a dotted name has a private part that is neither a package nor a module: those are named as they like."""
    parts = dotted.split(".")
    return any(
        _is_private(part) and ".".join(parts[:end]) not in _MODULE_NAMES for end, part in enumerate(parts, 1)
    )


def _own_names(tree: ast.AST) -> set[str]:
    """Return the names of the attributes and methods of a file's own classes."""
    own = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    own.add(each.name)
                elif isinstance(each, ast.AnnAssign | ast.Assign):
                    targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                    own |= {target.id for target in targets if isinstance(target, ast.Name)}
            own |= {each.attr for each in _set_attributes(node) if _is_self(each.value)}
    return own


def _is_self(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id in {"self", "cls"}


def _is_ours(module: str | None) -> bool:
    return (module or "").split(".")[0] in _OURS


def _foreign_names(tree: ast.AST) -> set[str]:
    """Return the names that a file imports from others: their attributes are not ours."""
    foreign = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            foreign |= {
                (each.asname or each.name).split(".")[0] for each in node.names if not _is_ours(each.name)
            }
        elif isinstance(node, ast.ImportFrom) and not _is_ours(node.module):
            foreign |= {each.asname or each.name for each in node.names}
    return foreign


def _root(node: ast.expr) -> str:
    """Return the name at which a chain of attributes, calls and elements begins; "" where it begins with no name."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names_given(call: ast.Call, foreign: set[str]) -> Iterator[str]:
    """Yield the names of attributes that a call is given as texts.

    ``setattr(session, "name")``, ``patch("dedup_sdk.name")``.
    """
    called = call.func.attr if isinstance(call.func, ast.Attribute) else _root(call.func)
    if called in _BY_NAME and call.args and _root(call.args[0]) not in foreign:
        for each in call.args[:2]:
            if isinstance(each, ast.Constant) and isinstance(each.value, str):
                yield each.value


def _reaches(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each place where a file reaches into private parts of ours."""
    own, foreign = _own_names(tree), _foreign_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            # Texts are slow: first the name.
            reached = _is_private(node.attr) and node.attr not in own and _root(node) not in foreign
            if reached and not _is_self(node.value) and _has_private_part(ast.unparse(node)):
                yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            names = (f"{node.module}.{each.name}" for each in node.names)
            yield from ((node.lineno, f"import {name}") for name in names if _has_private_part(name))
        elif isinstance(node, ast.Call):
            names = (name for name in _names_given(node, foreign) if name not in own)
            yield from ((node.lineno, ast.unparse(node)) for name in names if _has_private_part(name))


def test_tests_speak_through_public_names() -> None:
    """A test that reads or patches private parts breaks with each change inside, and says little to who reads it."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted((_ROOT / "tests").rglob("*.py")):
        place = str(path.relative_to(_ROOT))
        for line, text in _reaches(ast.parse(path.read_text(encoding="utf-8"))):
            found[place].append(f"{place}:{line} {text}")
    exempt = {_INSIDE, *_BROKEN_TWINS}
    assert [each for place, places in found.items() if place not in exempt for each in places] == []
    assert exempt <= found.keys(), "a file in the table needs its place there no more"


def test_the_rule_sees_every_way_inside() -> None:
    """One line each; names that a file defines itself, and those of a library, are its business."""
    reaching = """
from confluent_kafka import KafkaError
import os
from dedup_sdk._core.lookup import _first
from tests.support.marks import _second, IDENTITY
from dedup_sdk._kafka.recover import session, recovery as steps

def test(consumer, monkeypatch, row):
    consumer._third.assigned.clear()
    session._fourth = 1
    assert steps.start(consumer)[0]._fifth
    monkeypatch.setattr("dedup_sdk._kafka.recover.session._sixth", 1)
    monkeypatch.setattr(session, "_seventh", 1)
    getattr(consumer, "_eighth")
    monkeypatch.delattr(consumer.part, "_ninth")
    consumer._own_method()
    os._exit(KafkaError._TIMED_OUT)
    row._replace(offset=1)
    monkeypatch.setattr(os, "_exit", row)
    monkeypatch.setattr("dedup_sdk._kafka.recover.session.SLICE_S", 1)
    print("_eleventh")

class Fake(session.Session):
    def _own_method(self):
        self._inherited()
        super()._inherited()
        self.part()._tenth()
"""
    texts = [text for _, text in sorted(_reaches(ast.parse(reaching)))]
    modules = {"_core", "_kafka"}
    seen = [word for text in texts for word in _PRIVATE.findall(text) if word not in modules]
    names = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
    assert seen == [f"_{name}" for name in names]


def _waits_for_equality(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and re.search("wait|until", ast.unparse(call.func))):
            continue
        for condition in (each for each in call.args if isinstance(each, ast.Lambda)):
            for compared in ast.walk(condition):
                if (
                    isinstance(compared, ast.Compare)
                    and isinstance(compared.ops[0], ast.Eq)
                    and ".counters." in ast.unparse(compared.left)
                    and ast.unparse(compared.comparators[0]) != "0"
                ):
                    yield compared.lineno, ast.unparse(compared)


def test_no_test_waits_for_a_counter_to_be_equal() -> None:
    """On a busy machine a counter passes the number between two looks: wait for ``>=``, and assert what it is then."""
    found = [
        f"{path.relative_to(_ROOT)}:{line}: {text}"
        for path in sorted((_ROOT / "tests").rglob("*.py"))
        for line, text in _waits_for_equality(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []
    seen = "wait_for(consumer, lambda: consumer.counters.verdicts['duplicate'] == 2 and done, 'both')"
    assert [text for _, text in _waits_for_equality(ast.parse(seen))] == [
        "consumer.counters.verdicts['duplicate'] == 2"
    ]


_BINARY: Final = ("docs/*.png", "tests/golden/*.sst", "tests/golden/*.filter")
"""Files that may be no text: images of pages, and stores of earlier versions."""


def test_the_repository_has_no_binary_files() -> None:
    """A wheel, an archive, a store or a compiled file is made when it is wanted; no clone should carry it."""
    if not (_ROOT / ".git").exists():
        # No clone: nothing tells which files belong to the repository.
        return
    listing = ["git", "ls-files", "-z"]
    names = subprocess.run(listing, cwd=_ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    assert [name for name in names if name and _is_binary(_ROOT / name) and not _may_be_binary(name)] == []


def _may_be_binary(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in _BINARY)


def _is_binary(path: Path) -> bool:
    """Whether a file is no text; a link, and a file that was just deleted, is none."""
    if path.is_symlink() or not path.is_file():
        return False
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError:
        return True
    return b"\0" in content
