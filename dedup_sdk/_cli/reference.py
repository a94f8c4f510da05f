"""Writes the page docs/cli.md from the commands themselves: ``python -m dedup_sdk._cli.reference > docs/cli.md``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

_HEADLINE = "The command `dedup`"
_WIDTH_CHARACTERS = 100
_TIMEOUT_S = 120
_LONGEST_LINE_CHARACTERS = 120


def reference_page() -> str:
    """Return the page as Markdown: every command with its examples, arguments and options."""
    page = _output("typer", "dedup_sdk._cli.app", "utils", "docs", "--name", "dedup", "--title", _HEADLINE)
    page = "\n".join(map(_wrapped, page.splitlines()))
    return page.rstrip() + "\n"


def _wrapped(line: str) -> str:
    """Return an item of a list of options on several lines if it is too long for one."""
    if not line.startswith("* "):
        return line
    return textwrap.fill(
        line, _LONGEST_LINE_CHARACTERS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _output(module: str, *arguments: str) -> str:
    environment = {**os.environ, "COLUMNS": str(_WIDTH_CHARACTERS), "NO_COLOR": "1"}
    return subprocess.run(  # noqa: S603 (our own modules, no user's text)
        [sys.executable, "-m", module, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    ).stdout


if __name__ == "__main__":
    sys.stdout.write(reference_page())
