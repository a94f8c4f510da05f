"""Text of others, as a terminal may get it."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with an escape for every character that a terminal would obey, or UTF-8 cannot write."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )
