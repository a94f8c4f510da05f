"""The IDs of a run of records, read once, as they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import le
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from dedup_sdk.last.candidate import Candidate, token_of
from dedup_sdk.last.rows import Uint64s, split_ranks
from dedup_sdk.marks import Int64s
from dedup_sdk.orders import Order, Place
from dedup_sdk.orders.place import ONLY_ORIGIN


class Split(NamedTuple):
    """Ranks of ``n`` records as `dedup_sdk.last.rows` has them; ``numbered`` says which of them have one (None: all), any number stands for the others."""

    high: Int64s
    low: Uint64s
    numbered: NDArray[np.bool_] | None = None


class Compared:
    """The IDs of ``n`` records, None for those that have none to compare.

    ``numbers`` are their ranks where the order says at once that all are numbers of its only origin, else None: then ``places`` are made.
    """

    __slots__ = ("ids", "numbers", "places")

    def __init__(self, order: Order, ids: list[bytes | None]) -> None:
        self.ids = ids
        self.numbers = order.numbers(ids)
        self.places: list[Place | None] = [] if self.numbers is not None else order.places(ids)

    def candidate(self, row: int) -> Candidate:
        """Return the ID of a record that has one."""
        place = self.places[row] if self.numbers is None else Place(ONLY_ORIGIN, self.numbers[row])
        return Candidate(cast("bytes", self.ids[row]), place)

    def split(self) -> Split | None:
        """Return the ranks as columns, None where none of them is a whole number, or one that no columns have."""
        if self.numbers is not None:
            columns = split_ranks(self.numbers)
            return None if columns is None else Split(*columns)
        numbered = [
            place is not None and type(place.rank) is int and place.origin == ONLY_ORIGIN
            for place in self.places
        ]
        if not any(numbered):
            return None
        ranks = [
            place.rank if is_one and place else 0 for place, is_one in zip(self.places, numbered, strict=True)
        ]
        columns = split_ranks(ranks)
        return None if columns is None else Split(*columns, np.asarray(numbered, np.bool_))

    def tokens(self) -> list[Any]:
        """Return what is equal for IDs that are the same (`Candidate.token`)."""
        if self.numbers is not None:
            return self.numbers
        return [
            each if place is None else token_of(place)
            for each, place in zip(self.ids, self.places, strict=True)
        ]

    def ranks(self, origin: Any) -> list[Any] | None:
        """Return the ranks of all IDs where all are of this origin, else None."""
        if self.numbers is not None:
            return self.numbers if origin == ONLY_ORIGIN else None
        if None in self.places:
            return None
        origins, ranks = zip(*cast("list[Place]", self.places), strict=True)
        return list(ranks) if origins.count(origin) == len(origins) else None


def late_rows(ranks: Sequence[Any], last: Any) -> tuple[list[int], list[Any]]:
    """Return the rows whose rank is not above ``last`` and all ranks before, and what was the highest of these."""
    if isinstance(last, int):
        try:
            column = np.fromiter(ranks, np.int64, len(ranks))
            newest = np.maximum.accumulate(np.concatenate((np.asarray([last], np.int64), column)))[:-1]
        except OverflowError:
            pass
        else:
            late = np.flatnonzero(column <= newest)
            return late.tolist(), newest[late].tolist()
    highest = list(accumulate(ranks[:-1], max, initial=last))
    rows = [row for row, is_late in enumerate(map(le, ranks, highest)) if is_late]
    return rows, [highest[row] for row in rows]
