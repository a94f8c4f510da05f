"""The count window: the last ``n`` accepted IDs, judged while some of them are still in flight.

An accepted record's number is its rank among the accepted records of its partition in offset order, given when the
watermark passes it: only then is it certain which of the records before it were accepted. A duplicate takes no
number and refreshes none. (Apache ActiveMQ Artemis and HornetQ define their cache so.)

While records are in flight the number of IDs accepted after a mark is known only within bounds. Where both bounds
give the same answer the verdict is certain; else the record waits.

So nothing above the watermark is written: its marks have no number yet. With a count window, completion out of order
becomes durable in offset order.

Several IDs may be accepted at one offset, in their order. They get their numbers when all earlier judged records are
completed, which may be above the watermark (`number_all`); such numbers are lost in a crash, and given again.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Container, Sequence
from typing import Final

_MOST_GONE: Final = 1_024


class CountWindow:
    """The numbers of accepted IDs: those given (``given`` is the last), and the undecided ones above the watermark.

    ``numbers`` are those of recent marks, by digest. IDs numbered up to ``floor`` were outside of the window when
    the partition was opened, and stay so.
    """

    def __init__(self, size: int, accepted: int = 0, floor: int = 0) -> None:
        self.size = size
        self.given = accepted
        self.floor = floor
        self.numbers: dict[bytes, int] = {}
        # Ascending. Those before the first are gone: one by one they would cost a move of all others each.
        self.pending: list[int] = []
        self._first = 0
        self.unnumbered: dict[bytes, int] = {}
        # How many IDs that were accepted at the same offset come after one that has no number yet.
        self._behind: dict[tuple[bytes, int], int] = {}
        # Numbers above the watermark: offset, and the last number given there; and the last number below.
        self._ahead: deque[tuple[int, int]] = deque()
        self._passed = accepted

    @property
    def accepted(self) -> int:
        """How many were accepted below the watermark."""
        return self._passed if self._ahead else self.given

    def consider(self, offset: int) -> None:
        """Note a record that may take a number."""
        if len(self.pending) == self._first or offset > self.pending[-1]:
            self.pending.append(offset)
        elif self.pending[bisect_left(self.pending, offset, self._first)] != offset:
            insort(self.pending, offset, self._first)

    def offer(self, digest: bytes, offset: int) -> None:
        """Note that a record takes a number if it is completed."""
        self.consider(offset)
        self.unnumbered[digest] = offset

    def consider_all(self, offset: int, count: int) -> None:
        """Note that so many IDs may take numbers at one offset."""
        at = bisect_right(self.pending, offset, self._first)
        self.pending[at:at] = [offset] * count

    def offer_all(self, digests: Sequence[bytes], offset: int) -> None:
        """Note that these considered IDs take numbers at one offset, in this order, if they are completed."""
        for behind, digest in enumerate(reversed(digests)):
            self.offer(digest, offset)
            if behind:
                self._behind[digest, offset] = behind

    def forget(self, offset: int) -> None:
        """Note that a record takes no number: it is a duplicate."""
        self._drop(offset)

    def _drop(self, offset: int, count: int = 1) -> bool:
        """Let records at an offset, so many, be undecided no more; False where none is."""
        at = bisect_left(self.pending, offset, self._first)
        if at == len(self.pending) or self.pending[at] != offset:
            return False
        if at > self._first:
            del self.pending[at : at + count]
            return True
        self._first += count
        left = len(self.pending) - self._first
        if not left or self._first > max(_MOST_GONE, left):
            del self.pending[: self._first]
            self._first = 0
        return True

    def number(self, digest: bytes, offset: int) -> None:
        """Give the next number to the record at ``offset`` if it was accepted; the watermark passes it now."""
        if self._drop(offset):
            self._give(digest, offset)

    def _give(self, digest: bytes, offset: int) -> None:
        self.given += 1
        self.numbers[digest] = self.given
        # The ID may have been accepted again meanwhile, for its age: that record still waits for its number.
        if self.unnumbered.get(digest) == offset:
            del self.unnumbered[digest]

    def accept(self, digest: bytes) -> int:
        """Give the next number to an accepted ID, while nothing is undecided; return the number."""
        self._give(digest, -1)
        return self.given

    def number_all(self, digests: Sequence[bytes], offset: int) -> None:
        """Give the next numbers to the IDs accepted at an offset: everything that is judged before has ended."""
        if not digests or not self._drop(offset, len(digests)):
            return
        if not self._ahead:
            self._passed = self.given
        for digest in digests:
            self._give(digest, offset)
            self._behind.pop((digest, offset), None)
        self._ahead.append((offset, self.given))

    def pass_below(self, high: int) -> None:
        """Note that the watermark has passed all offsets below ``high``."""
        while self._ahead and self._ahead[0][0] < high:
            self._passed = self._ahead.popleft()[1]

    def keep(self, digests: Container[bytes]) -> None:
        """Forget the numbers of other marks than these."""
        self.numbers = {digest: number for digest, number in self.numbers.items() if digest in digests}

    def know(self, digest: bytes, number: int) -> None:
        """Note the number that the store has of an ID, where no other is known."""
        self.numbers.setdefault(digest, number)

    def put_back(self, numbers: dict[bytes, int]) -> None:
        """Take back the numbers of marks that nobody could store; where there are others since, those count."""
        self.numbers = numbers | self.numbers

    def pass_uncounted(self, count: int) -> None:
        """Note that so many may have been accepted of which nobody knows."""
        self.given += count
        self._passed += count
        self._ahead = deque((offset, number + count) for offset, number in self._ahead)

    def accepted_after(self, digest: bytes, number: int, offset: int) -> int | None:
        """Return how many IDs were accepted after a mark and before ``offset``.

        None while that could matter and is open.

        ``number`` is the mark's own, 0 if unknown. The answer is exact, or on the same side of ``size`` as the exact
        one.
        """
        start = self.unnumbered.get(digest)
        before = bisect_left(self.pending, offset, self._first)
        if start is not None:
            most = before - bisect_right(self.pending, start, self._first)
            most += self._behind.get((digest, start), 0)
            # Perhaps no record in between is accepted: only that the mark lies inside can be certain.
            return most if most < self.size else None
        if self.floor and number <= self.floor:
            return self.size
        # The pending records may all turn out duplicates (least), or all be accepted (most).
        least = self.given - number
        most = least + before - self._first
        if most < self.size:
            return most
        return least if least >= self.size else None
