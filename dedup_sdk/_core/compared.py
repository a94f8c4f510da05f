"""The IDs of a run of records, read once, as they are compared."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import le
from typing import Any, cast

import numpy as np

from dedup_sdk._core.seen import Candidate, token_of
from dedup_sdk.orders import Order, SortKey
from dedup_sdk.orders._sort_key import ONLY_ORIGIN


class Compared:
    """The IDs of ``n`` records, None for those that have none to compare.

    ``numbers`` are their ranks where the order says at once that all are numbers of its only origin, else None: then
    ``places`` are made.
    """

    __slots__ = ("ids", "numbers", "places")

    def __init__(self, order: Order, ids: list[bytes | None]) -> None:
        self.ids = ids
        self.numbers = order.numbers(ids)
        self.places: list[SortKey | None] = [] if self.numbers is not None else order.sort_keys(ids)

    def candidate(self, row: int) -> Candidate:
        """Return the ID of a record that has one."""
        place = self.places[row] if self.numbers is None else SortKey(ONLY_ORIGIN, self.numbers[row])
        return Candidate(cast("bytes", self.ids[row]), place)

    def tokens(self) -> list[Any]:
        """Return the token of each ID: equal IDs have equal tokens (`Candidate.token`)."""
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
        origins, ranks = zip(*cast("list[SortKey]", self.places), strict=True)
        return list(ranks) if origins.count(origin) == len(origins) else None


def late_rows(ranks: Sequence[Any], last: Any) -> tuple[list[int], list[Any]]:
    """Return the rows whose rank is not above ``last`` and all ranks before, and the highest of these ranks."""
    if isinstance(last, int):
        try:
            column = np.fromiter(ranks, np.int64, len(ranks))
            newest = np.maximum.accumulate(np.concatenate((np.asarray([last], np.int64), column)))[:-1]
        # Numbers may have any size: Python compares numbers above 64 bits.
        except OverflowError:
            pass
        else:
            late = np.flatnonzero(column <= newest)
            return late.tolist(), newest[late].tolist()
    highest = list(accumulate(ranks[:-1], max, initial=last))
    rows = [row for row, is_late in enumerate(map(le, ranks, highest)) if is_late]
    return rows, [highest[row] for row in rows]
