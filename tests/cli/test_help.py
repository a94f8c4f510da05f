"""The help of every command where stdout is no terminal: whole names, one line an option."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.main import get_command

from dedup_sdk._cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Dedup


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group below this one, and itself, with the words that call it."""
    yield names, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, *names, name)


COMMANDS = dict(commands(get_command(app)))


@pytest.mark.parametrize("columns", [None, "40"])
@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_option_of_a_piped_help_is_one_line_with_its_whole_name(
    dedup: Dedup, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], columns: str | None
) -> None:
    """However narrow the terminal is said to be: no box, nothing is cut off, and the summary is one line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    command = COMMANDS[names]
    done = dedup(*names, "--help")
    assert (done.status, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(('dedup', *names))} [OPTIONS]")
    assert lines[2] == command.help.split("\n")[0]
    assert "Examples:" in lines
    assert not {"…", "╭", "│"} & set(done.stdout)
    context = typer.Context(command, info_name="dedup")
    for parameter in command.get_params(context):
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("-"):
                own = [line for line in lines if line.startswith("  -") and option in words(line)]
                assert len(own) == 1, option


def words(line: str) -> list[str]:
    """The names at the beginning of an option's line, without its help."""
    return line.strip().partition("  ")[0].replace(",", " ").split()


def test_a_pipe_gets_each_option_once() -> None:
    """A search for an option in the help of a real pipe finds the line that explains it."""
    done = subprocess.run(
        [sys.executable, "-m", "dedup_sdk._cli", "bridge", "--help"],
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert sum("--from-client-config " in line for line in done.stdout.splitlines()) == 1


def test_a_terminal_gets_panels(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the options are typer's own panels."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert {"╭", "│"} <= set(dedup("stats", "--help").stdout)
