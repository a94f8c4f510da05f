from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Dedup


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["dump", "--store", "s"],
        ["dump", "--store", "s", "--topic", "t", "--partition", "-1"],
        ["dump", "--store", "s", "--topic", "t", "--partition", "many"],
        ["demo", "--records", "999"],
        ["stats", "--no-such-option"],
        ["lookup", "--store", "s", "order-1"],
    ],
)
def test_wrong_usage_is_status_2_and_one_line(dedup: Dedup, arguments: list[str]) -> None:
    """Wrong usage ends with status 2, nothing on stdout, and one line that names the way to the help."""
    done = dedup(*arguments)
    assert done.status == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("dedup: ")
    assert line.endswith("--help")


@pytest.mark.parametrize(
    "arguments",
    [
        ["dump", "--topic", "t", "--partition", "0"],
        ["lookup", "--topic", "t", "order-1"],
        ["stats"],
    ],
)
def test_a_folder_without_a_store_is_one_line(dedup: Dedup, tmp_path: Path, arguments: list[str]) -> None:
    """Whoever gives the wrong folder is told which one, with status 1 and without a traceback."""
    done = dedup(arguments[0], "--store", str(tmp_path), *arguments[1:])
    assert (done.status, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert f"{tmp_path} holds no key store" in line


def test_without_arguments_the_help_is_shown(dedup: Dedup) -> None:
    """A bare ``dedup`` shows its help, which begins with examples, and counts as wrong usage."""
    done = dedup()
    assert done.status == 2
    assert done.stderr == ""
    assert done.stdout.index("dedup demo --records") < done.stdout.index("Commands")


def test_without_the_extra_one_line_says_what_to_install() -> None:
    """Where typer is missing, the command is one line and status 1, not a traceback."""
    code = "import sys; sys.modules['typer'] = None; from dedup_sdk._cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.strip() == "dedup: typer is not installed: pip install 'dedup-sdk[cli]'"


def test_an_interrupt_is_status_130(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends a command with status 130 and one word."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dedup_sdk._cli.options.list_partitions", interrupted)
    done = dedup("stats", "--store", "s")
    assert (done.status, done.stderr.strip()) == (130, "dedup: interrupted")


def test_an_error_of_the_system_is_one_line(dedup: Dedup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of the operating system is one line with the file's name."""

    def refused(_: object) -> None:
        raise PermissionError(13, "Permission denied", "/secret")

    monkeypatch.setattr("dedup_sdk._cli.options.list_partitions", refused)
    done = dedup("stats", "--store", "s")
    assert (done.status, done.stderr.strip()) == (1, "dedup: /secret: Permission denied")
