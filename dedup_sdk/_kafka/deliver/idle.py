"""How long a loop has had no message."""

from __future__ import annotations

import time
from typing import Protocol

JOINING_S = 60.0
"""Seconds that a group may take for its first assignment before `IdleClock` counts them as silence."""


class Waits(Protocol):
    """Tells whether a message can come at all."""

    @property
    def recovering(self) -> bool:
        """Whether a partition recovers."""

    @property
    def has_assignment(self) -> bool:
        """Whether the group has assigned anything."""


class IdleClock:
    """Counts how long a loop has had no message; the limit is ``limit_s`` seconds (None: no limit).

    Only time in which a message could have come counts: not before the first assignment, and not while partitions
    recover. A group that assigns nothing for `JOINING_S` counts as silent, so that a loop ends if no broker answers.
    """

    def __init__(self, waits: Waits, limit_s: float | None) -> None:
        self.limit_s = limit_s
        self._waits = waits
        self._began_s = self._heard_s = time.monotonic()

    def heard(self) -> None:
        """Start again: a message came, or is being handled."""
        self._heard_s = time.monotonic()

    @property
    def is_up(self) -> bool:
        """Whether the limit is reached; ask after every call that brought no message."""
        if self.limit_s is None:
            return False
        now_s = time.monotonic()
        waits = self._waits
        if waits.recovering or (not waits.has_assignment and now_s < self._began_s + JOINING_S):
            self._heard_s = now_s
        return now_s > self._heard_s + self.limit_s
