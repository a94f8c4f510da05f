"""Offsets that must stay together: from the first record of a unit to its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import Final


class UncutRanges:
    """Ranges of offsets, each from its first record to its end; none may be cut between two of its records.

    Ranges that overlap become one.
    """

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


MOST_HELD_BACK: Final = 20_000
"""The most offsets by which the watermark stays below completed records because units overlap; then it stops in one."""
MOST_LATELY: Final = 10_000
"""The most finished units whose offsets are remembered, for a seek backward."""


class OverUnits:
    """Where units lie that are over: the watermark stops outside of them, and so does who goes back."""

    def __init__(self) -> None:
        self._ranges = UncutRanges()
        self._lately: deque[tuple[int, int]] = deque(maxlen=MOST_LATELY)

    def add(self, first: int, end: int) -> None:
        """Note that a unit is over, with its first record and its end at these offsets."""
        self._ranges.add(first, end)
        self._lately.append((end, first))

    def outside(self, high: int) -> int:
        """Return the highest offset up to ``high`` that no unit lies on both sides of; the watermark goes there.

        After a commit inside a unit another machine would read half of it. Units that overlap without a break would
        hold the watermark back for ever, so that it passes after `MOST_HELD_BACK` offsets; a fold calls a unit that was
        cut uncertain.
        """
        outside = self._ranges.outside(high)
        if high - outside > MOST_HELD_BACK:
            outside = high
            self._ranges.cut(high)
        self._ranges.drop_below(outside)
        return outside

    def before(self, offset: int) -> int:
        """Return the highest offset up to this one that no unit which was over lately has records on both sides of."""
        # From the highest end down: a step back may lead into a unit that ends lower.
        for end, first in sorted(self._lately, reverse=True):
            if first < offset <= end:
                offset = first
        return offset
