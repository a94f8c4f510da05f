"""The command as a process: its versions, completion in a shell, and output that another program reads."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.test_streams import started

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import WriteStore

LONG = "a-name-of-a-group-that-is-longer-than-any-terminal-is-wide-" * 3


def test_versions_are_one_line() -> None:
    """This package's version, and those of the libraries that are installed."""
    done = started("--version", COLUMNS="20")
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = done.stdout.decode().splitlines()
    name, version, *_ = line.split()
    assert (name, version[0].isdigit()) == ("dedup", True)
    for library in ("librdkafka", "confluent-kafka", "rocksdict"):
        assert f" {library} " in line


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("dedup snap", ["snapshot", "snapshots"]),
        ("dedup snapshots ver", ["verify"]),
        ("dedup window-check --max", ["--max-retry"]),
        ("dedup backfill --topic orders --unit-r", ["--unit-repeats", "--unit-records"]),
    ],
)
def test_bash_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    """The call that the script of ``--show-completion`` makes."""
    words = typed.split()
    done = started("", _DEDUP_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(words) - 1))
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split() == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    """The script names the command and the variable by which it asks."""
    done = started("", _DEDUP_COMPLETE=f"source_{shell}")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "_DEDUP_COMPLETE" in done.stdout.decode()


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["20", "80"])
def test_rows_and_errors_are_never_wrapped(write_store: WriteStore, tmp_path: Path, columns: str) -> None:
    """A row, a message and an error are one line each, however long, in a pipe of however many columns."""
    store = str(write_store("a", "b", group=LONG))
    rows = started("stats", "--store", store, COLUMNS=columns).stdout.decode().splitlines()
    assert len(rows) == 2
    assert LONG in rows[1]
    snapshot = tmp_path / LONG
    made = started("snapshot", "--store", store, "--output", str(snapshot), COLUMNS=columns)
    (line,) = made.stderr.decode().splitlines()
    assert str(snapshot) in line
    assert LONG in line
    listed = started("snapshots", "list", str(snapshot), COLUMNS=columns).stdout.decode().splitlines()
    assert len(listed) == 2
    assert str(snapshot) in listed[1]
    failed = started("stats", "--store", str(snapshot), COLUMNS=columns)
    (line,) = failed.stderr.decode().splitlines()
    assert str(snapshot) in line


RESULT = """
from dedup_sdk._cli.demo import print_result
from dedup_sdk._demo.narrator import DemoResult
counts = dict.fromkeys(DemoResult.__dataclass_fields__, 336_776)
print_result(DemoResult(**{**counts, "stores_equal": True, "failures": ()}), json_output=False, quiet=False)
"""
LONG_CELL = """
from rich.table import Table
from dedup_sdk._cli.console import print_table
table = Table("cut", box=None)
table.add_row("0:1 " * 5_000)
print_table(table)
"""


@pytest.mark.parametrize(("program", "lines"), [(RESULT, 13), (LONG_CELL, 2)])
def test_a_table_is_never_wrapped(program: str, lines: int) -> None:
    """The result of the demo, and a cell of 20,000 characters, in a pipe of 20 columns."""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, env={**os.environ, "COLUMNS": "20"}, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == lines
