"""How far a replay is, and whether it has taken too long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("dedup_sdk")

TELL_EVERY_S = 5.0
"""Seconds between two lines in the log."""


class ReplayWatch:
    """Follows one partition's replay of offsets ``[start, end)``; ``until`` (seconds of ``clock``) is when it has to be over.

    ``tell`` gets what the lines say, with the offset that is reached.
    """

    def __init__(
        self,
        what: str,
        start: int,
        end: int,
        until: float | None,
        tell: Callable[[int, str], object] = lambda _offset, _line: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._start, self._end, self._until, self._clock = what, start, end, until, clock
        self._tell = tell
        self._began = self._told = clock()

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return self._until is not None and self._clock() >= self._until

    def note(self, offset: int) -> None:
        """Write a line now and then, and tell it: how far it is, at which rate, and for how long still."""
        now = self._clock()
        if now - self._told < TELL_EVERY_S:
            return
        self._told = now
        rate = (offset - self._start) / (now - self._began)
        left = f"{(self._end - offset) / rate:.0f} s to go" if rate > 0 else "nothing has come yet"
        line = f"replayed up to offset {offset} of {self._end}, {rate:.0f} offsets a second, {left}"
        logger.info("%s: %s", self._what, line)
        self._tell(offset, line)
