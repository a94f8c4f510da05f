"""The fold of a time window: of each ID the mark of its last record. Vectorised, and bounded by distinct IDs."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from dedup_sdk._marks import NO_MARKS, Int64s, Marks, join_marks, select_marks
from dedup_sdk._store.pages import newest_per_digest

PENDING_ROWS: Final = 2_000_000


class Folded(NamedTuple):
    """The marks at the cut, ascending by digest; ``forgotten_ms``: the newest timestamp left out (None: none)."""

    marks: Marks
    forgotten_ms: int | None


class TimeFold:
    """Takes rows in any order; two folds of parts would merge by the larger offset, and so do the parts in here."""

    def __init__(self, keep_from_ms: int | None) -> None:
        self._keep_from_ms = keep_from_ms
        self._folded = NO_MARKS
        self._pending: list[Marks] = []
        self._pending_rows = 0

    def add(self, digests: bytes, offsets: Int64s, timestamps: Int64s) -> None:
        """Take ``n`` rows: ``16 * n`` bytes of digests, offsets and timestamps (ms) of shape ``(n,)``."""
        self._pending.append(Marks(digests, offsets, timestamps))
        self._pending_rows += len(offsets)
        if self._pending_rows > max(PENDING_ROWS, self._folded.count):
            self._fold()

    def finish(self) -> Folded:
        """Return the marks whose timestamp is at or after the horizon."""
        self._fold()
        marks = self._folded
        if self._keep_from_ms is None or not marks.count:
            return Folded(marks, None)
        return leave_out(marks, self._keep_from_ms)

    def _fold(self) -> None:
        parts = [self._folded, *self._pending]
        self._pending, self._pending_rows = [], 0
        self._folded = newest_per_digest(join_marks(parts))


def leave_out(marks: Marks, keep_from_ms: int) -> Folded:
    """Return the marks without those older than ``keep_from_ms``."""
    kept = marks.timestamps >= keep_from_ms
    if kept.all():
        return Folded(marks, None)
    return Folded(select_marks(marks, np.flatnonzero(kept)), int(marks.timestamps[~kept].max()))
