from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command

from dedup_sdk._cli.app import app
from dedup_sdk._cli.reference import reference_page

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = sorted(get_command(app).commands)  # type: ignore[attr-defined]  # a group, because it has commands


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented_with_examples(name: str) -> None:
    """Each command has a section of docs/cli.md that begins with examples of itself."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## `dedup {name}`\n")[2].partition("\n## ")[0]
    assert f"    dedup {name}" in section.partition("**Usage**")[0]
    assert "**Options**" in section


def test_the_page_is_what_the_commands_say() -> None:
    """docs/cli.md is generated; after a change: python -m dedup_sdk._cli.reference > docs/cli.md."""
    # How argparse breaks lines is a matter of Python's version.
    assert PAGE.read_text(encoding="utf-8").split() == reference_page().split()
