from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.main import get_command

from dedup_sdk._cli.app import app
from dedup_sdk._cli.backfill import own_options
from dedup_sdk._window import Window
from spark_backfill.options import parse_options
from tests.chaos.command import parser as chaos_parser
from tests.support.naive_fold import Row, digest_of
from tests.support.pages import PAGES, ROOT, page_id, shell_commands
from tests.support.rebuilding import rebuild

if TYPE_CHECKING:
    from collections.abc import Callable

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z]+):.*## ", MAKEFILE, re.MULTILINE))
EXTRAS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
SPARK_OPTIONS = {
    "--archives", "--conf", "--deploy-mode", "--driver-memory", "--executor-cores", "--executor-memory", "--master",
    "--name",
    "--num-executors", "--packages", "--py-files",
}  # fmt: skip
COMMANDS = [(page, words) for page in PAGES if page.name != "cli.md" for words in shell_commands(page)]


def check_make(words: list[str]) -> None:
    """Every target is one of the Makefile's; ARGS go to a command that is checked elsewhere."""
    targets = [word for word in words if "=" not in word]
    assert set(targets) <= TARGETS
    assert {word.partition("=")[0] for word in words if "=" in word} <= {"ARGS", "PYTHON"}


def check_dedup(words: list[str]) -> None:
    """The real parser takes the arguments; a snapshot to add to is there."""
    name, *arguments = words
    if name == "backfill":
        if "--base" in arguments:
            place = Path(arguments[arguments.index("--base") + 1])
            rebuild([Row(0, 0, 1, digest_of("a"))], Window(days=1), place, high=1)
        _, of_job = own_options().parse_known_args(arguments)
        parse_options(of_job, pytest.fail)
        return
    commands = get_command(app).commands  # type: ignore[attr-defined]  # a group, because it has commands
    assert name in commands
    commands[name].make_context(name, list(arguments))


def check_pip(words: list[str]) -> None:
    """The requirement is this package, with extras that it has."""
    verb, *target, requirement = words
    assert verb == "install"
    assert target in ([], ["--target", "environment"])
    named = re.fullmatch(r"dedup-sdk(?:\[([a-z0-9,]+)\])?", requirement)
    assert named
    assert set((named[1] or "cli").split(",")) <= EXTRAS


def check_spark_submit(words: list[str]) -> None:
    """Spark's options are known, the script is there, and the job's parser takes the rest."""
    while words[0].startswith("--"):
        option, value, *words = words
        assert option in SPARK_OPTIONS
        assert option != "--conf" or "=" in value
    script, *arguments = words
    assert (ROOT / script).is_file() or script.startswith("local:///")
    parse_options(arguments, pytest.fail)


def check_python(words: list[str]) -> None:
    """A line of Python is one, and an example is there: `test_examples` runs them all."""
    if words[0] != "-c":
        [script] = words
        assert (ROOT / script).is_file()
        assert Path(script).parent.name == "examples"
        return
    _, source = words
    ast.parse(source)


def check_script(words: list[str]) -> None:
    """The script is there, and names every option in its help; a module of the tests parses them itself."""
    script, *arguments = words
    if script == "-m":
        module, *options_and_values = arguments
        assert module == "tests.chaos"
        chaos_parser().parse_args(options_and_values)
        return
    assert {word for word in arguments if word.startswith("--")} <= options_of(script)


@cache
def options_of(script: str) -> set[str]:
    """The options in the help of a script, which is asked once for all commands of the pages."""
    done = subprocess.run(
        [sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True, timeout=60
    )
    return set(re.findall(r"--[a-z-]+", done.stdout))


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "make": check_make,
    "dedup": check_dedup,
    "pip": check_pip,
    "python3": check_python,
    "spark-submit": check_spark_submit,
    ".venv/bin/python": check_script,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page_id(page)}: {' '.join(words)}"[:90] for page, words in COMMANDS]
)
def test_a_documented_command_exists(
    page: Path, words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each command of a page is one that the Makefile, parsers or scripts of this version accept as it stands."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_PASSWORD", "x")
    Path("client.properties").write_text("bootstrap.servers=localhost:9092\n", encoding="ascii")
    program, *arguments = words
    assert program in CHECKS, f"{page.name}: nobody checks {program!r}"
    CHECKS[program](arguments)


def test_commands_are_found() -> None:
    """The README's two commands and the backfill are among the checked ones, so that the check cannot run dry."""
    readme = [words for page, words in COMMANDS if page == ROOT / "README.md"]
    start = [words for page, words in COMMANDS if page == ROOT / "docs" / "start.md"]
    assert ["make", "demo"] in readme
    assert ["make", "test"] in readme
    assert any(words[:2] == ["dedup", "backfill"] for words in start)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_in_the_text_exist(page: Path) -> None:
    """An option that is named in the text is one of the command, the job, or a script."""
    known = set(re.findall(r"--[a-z][a-z-]+", (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")))
    for script in [*(ROOT / "benchmarks").glob("*.py"), ROOT / "tests" / "chaos" / "command.py"]:
        known |= set(re.findall(r"\"(--[a-z][a-z-]+)\"", script.read_text(encoding="utf-8")))
    text = page.read_text(encoding="utf-8")
    named = {
        option
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for option in re.findall(r"(?<!\S)--[a-z][a-z-]+", code)
    }
    assert named - SPARK_OPTIONS <= known
