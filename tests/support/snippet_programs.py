"""The pages' examples and those of `examples/` as programs for type checkers, and the same with a misspelt name."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import symtable
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.pages import OUTPUT, PAGES, ROOT, page_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

NAMES = """\
from confluent_kafka import Message
from dedup_sdk import DedupConsumer, Lookup

def charge(message: Message) -> None: ...
def ship(message: Message) -> None: ...
def page_somebody(text: str) -> None: ...
def made() -> DedupConsumer:
    raise NotImplementedError
consumer = made()
"""
"""What examples use without making it, as a module."""

AIRFLOW = {
    "airflow/sdk.py": """\
from typing import Any, Self

class DAG:
    def __init__(self, dag_id: str, **settings: Any) -> None: ...
    def __enter__(self) -> Self:
        raise NotImplementedError
    def __exit__(self, *_: object) -> None: ...
""",
    "airflow/providers/apache/spark/operators/spark_submit.py": """\
from typing import Any

class SparkSubmitOperator:
    def __init__(self, *, task_id: str, application: str, **settings: Any) -> None: ...
""",
}
"""The names of Airflow, which is not installed, that the page's DAG uses."""

SUBJECTS = {"again", "consumer", "engine", "message", "producer", "record"}
"""The variables whose attributes are misspelt: what a loop handles, and what it takes it from."""

_MYPY = f"""\
[mypy]
python_version = 3.11
mypy_path = {ROOT}:{ROOT / "adapters"}
explicit_package_bases = true
check_untyped_defs = true
follow_imports = silent
ignore_missing_imports = true

[mypy-confluent_kafka.*]
implicit_reexport = false
"""
"""As a program of its own sees the package, without the exceptions that this project makes for its dependencies."""

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_BLOCK = re.compile(r"# (\S+\.py)\n")


@dataclass(frozen=True, slots=True)
class Found:
    """What a checker says: of which file, and what."""

    file: str
    text: str


def programs() -> dict[str, str]:
    """Every example by file name: each block of each page, `examples/`, and the programs of `tests/typing`.

    A block that begins with ``# folder/file.py`` is that file. Another one is a module that imports what it uses and
    does not make: from the blocks above it, else from `NAMES`.
    """
    files = {"names.py": NAMES, "shop/__init__.py": "", "shop/billing.py": NAMES, **AIRFLOW}
    for page in PAGES:
        files |= _blocks(page)
    for path in sorted((ROOT / "examples").glob("*.py")):
        files[f"examples/{path.name}"] = path.read_text(encoding="utf-8")
    files["typing_programs.py"] = (ROOT / "tests" / "typing" / "programs.py").read_text(encoding="utf-8")
    return files


def mutants(text: str) -> Iterator[tuple[str, str]]:
    """Yield the program with one name misspelt, and that name: each attribute of each subject, one at a time.

    In a program without subjects it is the first name that the program imports, or else its first attribute.
    """
    tree = ast.parse(text)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    of_subjects = [
        each for each in attributes if isinstance(each.value, ast.Name) and each.value.id in SUBJECTS
    ]
    for node in of_subjects or ([] if _imported(tree) else attributes[:1]):
        right = node.attr
        node.attr = f"{right}x"
        yield ast.unparse(tree), node.attr
        node.attr = right
    if not of_subjects and (alias := _imported(tree)):
        alias.name, alias.asname = f"{alias.name}x", alias.asname or alias.name
        yield ast.unparse(tree), alias.name


def mypy(folder: Path) -> list[Found]:
    """What mypy finds in all programs of a folder."""
    (folder / "mypy.ini").write_text(_MYPY, encoding="utf-8")
    cache = str(ROOT / ".cache" / "mypy-snippets")
    said = _run([sys.executable, "-m", "mypy", "--cache-dir", cache, "--output", "json", "."], folder)
    found = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    return [Found(each["file"], each["message"]) for each in found if each["severity"] == "error"]


def pyright(folder: Path) -> list[Found]:
    """What pyright finds in all programs of a folder."""
    settings = {
        "typeCheckingMode": "standard",
        "extraPaths": [str(ROOT), str(ROOT / "adapters")],
        "enableTypeIgnoreComments": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checker = shutil.which("basedpyright", path=Path(sys.executable).parent) or "basedpyright"
    said = _run([checker, "--outputjson", "--level", "error", "--pythonpath", sys.executable], folder)
    found = json.loads(said)["generalDiagnostics"]
    return [Found(Path(each["file"]).relative_to(folder).as_posix(), each["message"]) for each in found]


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write programs below a folder."""
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def _run(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=150)
    assert done.returncode in {0, 1}, done.stdout + done.stderr
    return done.stdout


def _blocks(page: Path) -> dict[str, str]:
    """The examples of a page, by the name of a file."""
    text = page.read_text(encoding="utf-8")
    package = re.sub(r"\W", "_", page_id(page).removesuffix(".md"))
    files: dict[str, str] = {}
    made = dict.fromkeys(_bound(NAMES), "names")
    for block in _BLOCK.finditer(text):
        source = block[1]
        if file := _FILE_BLOCK.match(source):
            files[file[1]] = source
            continue
        shown = OUTPUT.match(text, block.end())
        if shown and re.search(r"^[\w.]+Error: ", shown[1], re.MULTILINE):
            # The last statement is a mistake on purpose.
            source = "\n".join(source.splitlines()[: ast.parse(source).body[-1].lineno - 1]) + "\n"
            if not source.strip():
                continue
        name = f"{package}_{text.count(chr(10), 0, block.start(1)) + 1}"
        imports = [f"from {made[each]} import {each}\n" for each in sorted(_missing(source)) if each in made]
        files[f"{name}.py"] = "".join(imports) + source
        made |= dict.fromkeys(_bound(source), name)
    return files


def _bound(source: str) -> set[str]:
    """The names that a block makes for the blocks below it."""
    symbols = symtable.symtable(source, "block", "exec").get_symbols()
    return {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}


def _missing(source: str) -> set[str]:
    """The names that a block, or a function in it, takes from outside."""
    scopes = [symtable.symtable(source, "block", "exec")]
    used = set()
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        at_top = scope.get_type() == "module"
        used |= {
            each.get_name()
            for each in scope.get_symbols()
            if each.is_referenced() and (at_top or each.is_global())
        }
    return used - _bound(source)


def _imported(tree: ast.AST) -> ast.alias | None:
    """The first name that a program takes from a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module != "__future__":
            return node.names[0]
    return None
