"""When a store that did not answer is asked again: not for every batch, and less often the longer it is away.

A state machine of its own, and not a library's: those count by the wall clock, which may be set, and wrap each call in a layer of theirs.
"""

from __future__ import annotations

from typing import Final

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 10.0


class Breaker:
    """*Closed*: ask. *Open*: do not, until the wait is over; then one call tries. Times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self.failures = 0
        """How often in a row it did not answer."""
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the last call failed."""
        return self.failures > 0

    def allows(self, now_s: float) -> bool:
        """Whether to ask now."""
        return not self.is_open or now_s >= self._retry_at

    def failed(self, now_s: float) -> None:
        """Note that a call was not answered: the wait doubles."""
        self._retry_at = now_s + min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self.failures, 30))
        self.failures += 1

    def answered(self) -> None:
        """Note that a call was answered."""
        self.failures = 0
