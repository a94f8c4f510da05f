"""How an ID stands to what a lane remembers."""

from __future__ import annotations

from enum import IntEnum


class Standing(IntEnum):
    """The answers of `dedup_sdk.last.seen.Seen.standing`."""

    NEWER = 0
    """It comes after the last one."""
    UNSEEN = 1
    """It comes before the last one, where all that was seen is remembered, and it was not."""
    SEEN = 2
    """It is among those remembered."""
    BELOW = 3
    """It comes before the last one, and so far below that nobody remembers."""
    UNCOMPARABLE = 4
    """Nothing can be said of it and the last one."""
    MALFORMED = 5
    """The order cannot read it."""
