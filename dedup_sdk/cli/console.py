"""Standard streams that can be written to, and text that a terminal may get."""

from __future__ import annotations

import io
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

_WIDE_CHARACTERS: Final = 400


def printable(text: str) -> str:
    """Return the text with an escape for every character that a terminal would obey, or UTF-8 cannot write."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def ready_streams() -> None:
    r"""Open the null device for a stream that was closed at the start (``>&-``); write characters that an encoding lacks as ``\xNN``.

    Without it the next opened file would get the descriptor of a closed stream, and the program's output.
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


def utc_time(timestamp_ms: int) -> datetime | None:
    """Return a moment in UTC; None for one beyond the calendar: producers write any number."""
    try:
        return datetime.fromtimestamp(timestamp_ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def print_table(table: Table) -> None:
    """Print a table on stdout; one line each in a file or pipe, which have no width, for grep."""
    from rich.console import Console

    # Names come from others: none of them is markup.
    console = Console(markup=False, emoji=False)
    console.print(table, crop=False, width=None if console.is_terminal else _WIDE_CHARACTERS)
