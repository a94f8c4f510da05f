"""Where an ID stands: in which order of its own, and at which point of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import partial
from itertools import repeat
from typing import NamedTuple, TypeAlias, cast

Rank: TypeAlias = int | bytes | tuple[int, ...]

ONLY_ORIGIN = b""
"""The origin of orders that have one only."""


class Place(NamedTuple):
    """The place of an ID in its order.

    ``origin``: whose count this is (a server, a topic's partition); places of different origins cannot be compared.
    ``rank``: where in that count. Within one order all ranks are of one type, and totally ordered by ``<``.
    """

    origin: Hashable
    rank: Rank


# A constructor in C: a NamedTuple's own costs half as much again, and there is one for each record.
_place = cast("Callable[[tuple[Hashable, Rank]], Place]", partial(tuple.__new__, Place))


def places_of(origin: Hashable, ranks: Iterable[Rank]) -> list[Place]:
    """Return the places that ranks of one origin are."""
    return list(map(_place, zip(repeat(origin), ranks)))
