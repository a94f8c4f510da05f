"""When a loop has been without messages for so long that it ends (``idle_timeout``).

What counts is time in which a message could have come: not while the group has given nothing yet, and not while partitions
recover. A group that gives nothing for `JOINING_S` counts as silent, so that a loop ends where no broker answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dedup_sdk.kafka.session import Session

JOINING_S = 60.0
"""Seconds that a group may take for its first assignment before the silence counts."""


class IdleClock:
    """Counts the silence of one loop; ``limit_s``: seconds, None: without end."""

    def __init__(self, session: Session, limit_s: float | None) -> None:
        self._session = session
        self._limit_s = limit_s
        self._began_s = self._heard_s = time.monotonic()

    def heard(self) -> None:
        """Start again: something came, or is being worked on."""
        self._heard_s = time.monotonic()

    @property
    def is_up(self) -> bool:
        """Whether the silence has been too long; to be asked after every call that brought nothing."""
        if self._limit_s is None:
            return False
        now_s = time.monotonic()
        session = self._session
        if session.recovering or (not session.placed and now_s < self._began_s + JOINING_S):
            self._heard_s = now_s
        return now_s > self._heard_s + self._limit_s
