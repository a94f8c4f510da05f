"""How a new ID stands to the last one."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedup_sdk.orders.place import Place


class Comparison(Enum):
    """How a *new* ID stands to the last one of its lane."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"
    UNCOMPARABLE = "uncomparable"


def compare_places(last: Place | None, new: Place | None) -> Comparison:
    """Return how the second place stands to the first; None, which is no place, and another origin are uncomparable."""
    if last is None or new is None or last.origin != new.origin:
        return Comparison.UNCOMPARABLE
    if last.rank == new.rank:
        return Comparison.SAME
    return Comparison.NEWER if last.rank < new.rank else Comparison.OLDER  # type: ignore[operator]
