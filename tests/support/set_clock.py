"""A clock that stands where a test sets it."""

from __future__ import annotations


class SetClock:
    """In the place of the module `time`."""

    now_s = 1_000.0

    def monotonic(self) -> float:
        """Return the time, in seconds."""
        return self.now_s
