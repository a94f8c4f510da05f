"""The count window where several IDs are accepted at one offset: those of a unit, at its end, in their order.

Units end in another order than they begin. A number is given when everything that is judged before is over, which may be above the
watermark, because a record of a later end lies there. So numbers run ahead of ``accepted``, which is the last one below the watermark:
what is above it comes again after a crash, and is numbered again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from dedup_sdk.core.count_window import CountWindow


class UnitCountWindow(CountWindow):
    """A count window in which a unit's IDs take a number each. How many of the unit come after an ID is kept until it has its number."""

    def __init__(self, size: int, accepted: int = 0, floor: int = 0) -> None:
        super().__init__(size, accepted, floor)
        self._passed = accepted
        self._ahead: deque[tuple[int, int]] = deque()
        self._behind: dict[tuple[bytes, int], int] = {}

    @property
    def accepted(self) -> int:
        """As `CountWindow.accepted`: the last number below the watermark."""
        return self._passed

    def consider_unit(self, end: int, count: int) -> None:
        """Note a unit of so many IDs that may take numbers."""
        at = bisect_right(self._pending, end, self._first)
        self._pending[at:at] = [end] * count

    def offer_unit(self, digests: Sequence[bytes], end: int) -> None:
        """Note that these IDs of a unit that was considered take numbers, in this order, if it is completed."""
        for behind, digest in enumerate(reversed(digests)):
            self.offer(digest, end)
            if behind:
                self._behind[digest, end] = behind

    def number(self, digest: bytes, offset: int) -> None:
        """Give the next number to an ID if it was accepted at this offset: everything that is judged before is over."""
        before = self.given
        super().number(digest, offset)
        if self.given > before:
            self._ahead.append((offset, self.given))

    def number_unit(self, digests: Sequence[bytes], end: int) -> None:
        """Give the next numbers to the IDs of a unit that was accepted: everything that is judged before is over."""
        if not digests or not self._drop(end, len(digests)):
            return
        for digest in digests:
            self.given += 1
            self.numbers[digest] = self.given
            self._behind.pop((digest, end), None)
            if self._unnumbered.get(digest) == end:
                del self._unnumbered[digest]
        self._ahead.append((end, self.given))

    def pass_below(self, high: int) -> None:
        """Note that the watermark has passed what lies below ``high``."""
        while self._ahead and self._ahead[0][0] < high:
            self._passed = self._ahead.popleft()[1]

    def pass_uncounted(self, count: int) -> None:
        """As `CountWindow.pass_uncounted`."""
        super().pass_uncounted(count)
        self._passed += count
        self._ahead = deque((offset, number + count) for offset, number in self._ahead)
