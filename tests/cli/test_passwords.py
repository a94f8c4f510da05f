"""A URL with a password as the value of any option: no command tells the password, or makes a folder of that name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer

from dedup_sdk._cli.app import app, run

SECRET: Final = "hunter2"
URLS: Final = (
    f"redis://app:{SECRET}/{SECRET}@127.0.0.1:9/0",
    f"postgresql://app:a {SECRET}@127.0.0.1:9/work",
)
SLOW: Final = frozenset({"demo", "backfill"})
"""One runs; the other starts another program (`tests/spark/test_options.py`)."""


def _commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
    for name, each in (below or {}).items():
        yield from _commands(each, (*path, name))


def _cases() -> list[Any]:
    return [
        pytest.param(path, command, each, id=f"{' '.join(path)} {each.name}")
        for path, command in _commands(typer.main.get_command(app))
        if path[0] not in SLOW
        for each in command.params
        if not getattr(each, "is_flag", False) and each.name not in {"help", "bootstrap"}
    ]


def _arguments(command: Any, given: Any, url: str) -> Iterator[str]:
    for each in command.params:
        if each.required or each is given:
            values = [url] * max(1, each.nargs)
            yield from values if each.param_type_name == "argument" else (each.opts[0], *values)


@pytest.mark.parametrize("url", URLS, ids=["slash", "blank"])
@pytest.mark.parametrize(("path", "command", "given"), _cases())
def test_no_command_tells_a_password(
    path: tuple[str, ...],
    command: Any,
    given: Any,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither the one that the option has, nor one that libraries repeat."""
    monkeypatch.chdir(tmp_path)
    run([*path, *_arguments(command, given, url)])
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    assert os.listdir() == []  # noqa: PTH208 (of the current folder)
