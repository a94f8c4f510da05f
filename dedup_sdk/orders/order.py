"""What every order of IDs can be asked."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, cast

from dedup_sdk.orders.comparison import Comparison, compare_places
from dedup_sdk.orders.place import ONLY_ORIGIN, Place, places_of


class Order(ABC):
    """How IDs of one kind are compared. Orders are values: frozen, hashable, equal when they compare alike.

    ``dense``: whether neighbours usually differ by one, so that the ranks seen of late fit into a bitmap; only orders
    whose ranks are integers are dense. ``has_places``: False where an order can only compare (`PartialOrder`); its
    `place` then knows none.

    Nothing here raises for any bytes, and the work that an ID may cause is bounded.
    """

    __slots__ = ()

    dense: ClassVar[bool] = False
    has_places: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """The identity of this order, parameters included: what a store keeps to know that IDs are still compared alike."""

    @abstractmethod
    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return where an ID stands, None where it is malformed."""

    def numbers(self, dedup_ids: Sequence[bytes | None], /) -> list[int] | None:
        """Return the ranks of many IDs where all of them are quickly told to be numbers of `ONLY_ORIGIN`, else None.

        Then no object has to be made for each.
        """
        del dedup_ids
        return None

    def places(self, dedup_ids: Sequence[bytes | None], /) -> list[Place | None]:
        """Return the place of each of many IDs, None also where there is no ID."""
        numbers = self.numbers(dedup_ids)
        if numbers is not None:
            return cast("list[Place | None]", places_of(ONLY_ORIGIN, numbers))
        place = self.place
        return [None if each is None else place(each) for each in dedup_ids]

    def compare(self, last: bytes, new: bytes, /) -> Comparison:
        """Return how the new ID stands to the last one; malformed ones are uncomparable, also with themselves."""
        return compare_places(self.place(last), self.place(new))

    def __str__(self) -> str:
        return self.name


def order_name(kind: str, **parameters: object) -> str:
    """Return the name of an order: its kind, and its parameters in the order given, but for switches that are off."""
    shown = [
        key if value is True else f"{key}={value}" for key, value in parameters.items() if value is not False
    ]
    return f"{kind}({', '.join(shown)})" if shown else kind
