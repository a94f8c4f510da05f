"""The sort key of an ID in its order, and the comparison of two sort keys."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from enum import Enum
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeAlias, cast

Rank: TypeAlias = int | bytes | tuple[int, ...]

ONLY_ORIGIN = b""
"""The origin of orders with a single origin."""


class SortKey(NamedTuple):
    """The position of an ID in its order.

    ``origin``: the server, partition or other counter that assigned the ID; sort keys of different origins
    cannot be compared. ``rank``: the position in that count. Within one order all ranks have one type, and
    are totally ordered by ``<``.
    """

    origin: Hashable
    rank: Rank


# A constructor in C: a NamedTuple's own takes one and a half times as long, and one is made for each record.
_sort_key = cast("Callable[[tuple[Hashable, Rank]], SortKey]", partial(tuple.__new__, SortKey))


def sort_keys_of(origin: Hashable, ranks: Iterable[Rank]) -> list[SortKey]:
    """Return the sort keys with this origin and these ranks."""
    return list(map(_sort_key, zip(repeat(origin), ranks)))


class Comparison(Enum):
    """The result of comparing a *new* ID with the last one of its source."""

    OLDER = "older"
    SAME = "same"
    NEWER = "newer"
    UNCOMPARABLE = "uncomparable"


def compare_sort_keys(last: SortKey | None, new: SortKey | None) -> Comparison:
    """Compare the new sort key with the last one; None, and sort keys of two origins, are uncomparable."""
    if last is None or new is None or last.origin != new.origin:
        return Comparison.UNCOMPARABLE
    if last.rank == new.rank:
        return Comparison.SAME
    return Comparison.NEWER if last.rank < new.rank else Comparison.OLDER  # type: ignore[operator]
