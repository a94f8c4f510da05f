"""Offsets that are to stay together, as stretches that do not overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Stretches:
    """Stretches of offsets, each from its first record to its end; what overlaps becomes one. None may be cut between two of its records."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._ends: list[int] = []

    def add(self, first: int, end: int) -> None:
        """Add one, with both of these offsets in it; of a single one nothing can be cut."""
        if first == end:
            return
        begin, behind = bisect_left(self._ends, first), bisect_right(self._firsts, end)
        if begin < behind:
            first, end = min(first, self._firsts[begin]), max(end, self._ends[behind - 1])
        self._firsts[begin:behind] = [first]
        self._ends[begin:behind] = [end]

    def outside(self, offset: int) -> int:
        """Return the highest offset up to this one before which all may be cut off."""
        at = bisect_left(self._firsts, offset) - 1
        return self._firsts[at] if at >= 0 and offset <= self._ends[at] else offset

    def cut(self, offset: int) -> None:
        """Let one be cut before this offset all the same."""
        at = bisect_left(self._firsts, offset) - 1
        if at >= 0 and offset <= self._ends[at]:
            self._firsts[at] = offset

    def drop_below(self, offset: int) -> None:
        """Forget those that end before this offset."""
        gone = bisect_left(self._ends, offset)
        del self._firsts[:gone], self._ends[:gone]
