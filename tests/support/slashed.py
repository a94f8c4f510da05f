"""IDs such as ``A/17``, an origin and a number, and the ways to compare them."""

from __future__ import annotations

from typing import ClassVar

from dedup_sdk.orders import Order, PartialOrder, SortKey


class Slashed(Order):
    """Compares IDs of one origin; remembered as IDs."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "slashed"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return where an ID stands."""
        origin, _, number = dedup_id.partition(b"/")
        return SortKey(origin, int(number)) if number.isdigit() else None


class DenseSlashed(Slashed):
    """The same, remembered as bits."""

    dense: ClassVar[bool] = True


def _compare(last: bytes, new: bytes) -> int | None:
    sort_keys = [Slashed().sort_key(each) for each in (last, new)]
    if None in sort_keys or sort_keys[0].origin != sort_keys[1].origin:  # type: ignore[union-attr]
        return None
    ranks = [int(each.rank) for each in sort_keys]  # type: ignore[union-attr, arg-type]
    return (ranks[1] > ranks[0]) - (ranks[1] < ranks[0])


PARTIAL_SLASHED = PartialOrder("slashed", _compare)
"""The same by a function, remembered in the order of their coming."""
