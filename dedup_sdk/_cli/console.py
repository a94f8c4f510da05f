"""Standard streams that are safe to write to, and text that is safe for a terminal."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

_ANY_WIDTH_CHARACTERS: Final = 1_000_000


def printable(text: str) -> str:
    """Return the text with an escape for each character that controls a terminal, or that UTF-8 cannot encode."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def ready_streams() -> None:
    r"""Open the null device for each standard stream that was closed at the start (``>&-``).

    Without it the next opened file would get the descriptor of a closed stream, and the program's output.
    Characters that the encoding lacks are written as ``\xNN``.
    """
    # In the order of their numbers: an opened file gets the lowest free one.
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY), encoding="utf-8")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_WRONLY)
            setattr(sys, name, os.fdopen(null, "w", encoding="utf-8", errors="backslashreplace"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def print_table(table: Table, *, on_stderr: bool = False) -> None:
    """Print a table, each row as one line, however narrow the terminal is: for grep, and for copying."""
    from rich.console import Console

    # Names are untrusted: they must not be read as markup.
    console = Console(
        markup=False, emoji=False, highlight=False, width=_ANY_WIDTH_CHARACTERS, stderr=on_stderr
    )
    console.print(table, crop=False)


def tell(line: str) -> None:
    """Print a message on stderr, as one line."""
    import typer

    typer.echo(f"dedup: {printable(line)}", err=True)
