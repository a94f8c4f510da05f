"""The steps of a list that are left when all that is not needed for a failure is taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.support.walking.walk import Step


def shrink(steps: Sequence[Step], fails: Callable[[Sequence[Step]], bool]) -> list[Step]:
    """Return a part of the steps that still fails, and of which no single one can go; all of them together fail."""
    left = list(steps)
    size = max(1, len(left) // 2)
    while True:
        at, shorter = 0, False
        while at < len(left):
            without = left[:at] + left[at + size :]
            if fails(without):
                left, shorter = without, True
            else:
                at += size
        if size == 1 and not shorter:
            return left
        size = max(1, size // 2)
