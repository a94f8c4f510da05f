"""An ID that is to be compared, read once."""

from __future__ import annotations

from typing import Any, NamedTuple

from dedup_sdk.orders import Place
from dedup_sdk.orders.place import ONLY_ORIGIN


class Candidate(NamedTuple):
    """An ID as it came, and its place; None where the order gives it none."""

    id_bytes: bytes
    place: Place | None

    @property
    def token(self) -> Any:
        """What is equal for IDs that are the same: the place, or the ID itself where there are no places."""
        return self.id_bytes if self.place is None else token_of(self.place)


def token_of(place: Place) -> Any:
    """Return what is equal for equal places only: the rank itself where that is a number of the only origin."""
    origin, rank = place
    return rank if type(rank) is int and origin == ONLY_ORIGIN else place
