"""The count window where several IDs are accepted at one offset: those of a unit, at its end, in their order.

Units end in another order than they begin. A number is given when everything that is judged before is over, which may be above the
watermark, because a record of a later end lies there. So numbers run ahead of ``accepted``, which is the last one below the watermark:
what is above it comes again after a crash, and is numbered again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Sequence

from dedup_sdk.lane.ring import Ring


class UnitRing(Ring):
    """A ring in which a unit's IDs take a number each. How many of the unit come after an ID is kept until it has its number."""

    @classmethod
    def instead_of(cls, ring: Ring) -> UnitRing:
        """Return one that has what another has, before anything is in flight."""
        result = cls(ring.size, ring.accepted, ring.floor)
        result.numbers = ring.numbers
        return result

    def __init__(self, size: int, accepted: int = 0, floor: int = 0) -> None:
        super().__init__(size, accepted, floor)
        self._given = accepted
        self._ahead: deque[tuple[int, int]] = deque()
        self._behind: dict[tuple[bytes, int], int] = {}

    def consider_unit(self, end: int, count: int) -> None:
        """Note a unit of so many IDs that may take numbers."""
        for _ in range(count):
            insort(self._pending, end)

    def offer_unit(self, digests: Sequence[bytes], end: int) -> None:
        """Note that these IDs of a unit that was considered take numbers, in this order, if it is completed."""
        for behind, digest in enumerate(reversed(digests)):
            self.offer(digest, end)
            if behind:
                self._behind[digest, end] = behind

    def forget(self, digest: bytes, offset: int) -> None:
        """Note that an ID takes no number at this offset."""
        super().forget(digest, offset)
        self._behind.pop((digest, offset), None)

    def number(self, digest: bytes, offset: int) -> None:
        """Give the next number to an ID if it was accepted at this offset: everything that is judged before is over."""
        at = bisect_left(self._pending, offset)
        if at == len(self._pending) or self._pending[at] != offset:
            return
        del self._pending[at]
        self._given += 1
        self.numbers[digest] = self._given
        self._ahead.append((offset, self._given))
        self._behind.pop((digest, offset), None)
        if self._unnumbered.get(digest) == offset:
            del self._unnumbered[digest]
            self._replaced.pop(digest, None)

    def pass_below(self, high: int) -> None:
        """Note that the watermark has passed what lies below ``high``."""
        while self._ahead and self._ahead[0][0] < high:
            self.accepted = self._ahead.popleft()[1]

    def pass_uncounted(self, count: int) -> None:
        """Note that so many may have been accepted of which nobody knows."""
        self.accepted += count
        self._given += count
        self._ahead = deque((offset, number + count) for offset, number in self._ahead)

    def accepted_after(self, digest: bytes, number: int, offset: int) -> int | None:
        """As `Ring.accepted_after`; of the unit of a mark without a number those count that come after it."""
        start = self._unnumbered.get(digest)
        before = bisect_left(self._pending, offset)
        if start is not None:
            most = before - bisect_right(self._pending, start) + self._behind.get((digest, start), 0)
            return most if most < self.size else None
        if self.floor and number <= self.floor:
            return self.size
        least = self._given - number
        most = least + before
        if most < self.size:
            return most
        return least if least >= self.size else None
