"""What an inbox has said so far."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class InboxCounts:
    """Totals since the inbox was made, of what was said, whatever became of the transactions.

    ``first`` and ``duplicate`` are messages with an ID, ``behind`` those that the offset in the database showed to be handled, ``unkeyed``
    those without an ID (first, too), ``reasons`` why they have none.
    """

    first: int = 0
    duplicate: int = 0
    behind: int = 0
    unkeyed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    _lock: Lock = field(default_factory=Lock, repr=False, compare=False)

    def add(self, *, first: int, duplicate: int, behind: int, reasons: Counter[str]) -> None:
        """Add what was said of some messages; from any thread."""
        with self._lock:
            self.first += first
            self.duplicate += duplicate
            self.behind += behind
            self.unkeyed += reasons.total()
            self.reasons.update(reasons)
