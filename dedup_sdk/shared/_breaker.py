"""Circuit breaker for a shared store: exponential backoff while it does not answer.

It is implemented here because library breakers use the wall clock, which may be set, and wrap each call in
a layer of their own.
"""

from __future__ import annotations

from typing import Final

FIRST_WAIT_S: Final = 0.5
MAX_WAIT_S: Final = 10.0


class Breaker:
    """*Closed*: call. *Open*: wait, then let one call try. Times are monotonic seconds, given by the caller."""

    def __init__(self) -> None:
        self.failures = 0
        """Consecutive failed calls."""
        self._retry_at = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the last call failed."""
        return self.failures > 0

    def allows(self, now_s: float) -> bool:
        """Whether to call now."""
        return not self.is_open or now_s >= self._retry_at

    def failed(self, now_s: float) -> None:
        """Note a failed call: the wait doubles."""
        # Bounded: after a thousand failures the power would be too large for a float.
        self._retry_at = now_s + min(MAX_WAIT_S, FIRST_WAIT_S * 2.0 ** min(self.failures, 30))
        self.failures += 1

    def answered(self) -> None:
        """Note a successful call: the breaker closes."""
        self.failures = 0
