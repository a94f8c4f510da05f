"""The fold of a partition that takes marks of others, too: of each ID the last sighting, here or elsewhere."""

from __future__ import annotations

import numpy as np

from dedup_sdk._marks import Int64s, Marks, join_marks, select_marks
from dedup_sdk._store.pages import last_given_per_digest, newest_per_digest
from spark_backfill.time_fold import Folded, TimeFold, leave_out


class ReshardFold:
    """Takes rows in any order; an offset below zero says that the record lies in another partition.

    Sightings of one partition are ordered by their offsets, those of several by their timestamps. So the last one
    here is found first, then the latest elsewhere; of these two the later one stays, and the one here where they
    are of the same time.
    """

    def __init__(self, keep_from_ms: int | None) -> None:
        self._keep_from_ms = keep_from_ms
        self._here = TimeFold(None)
        self._elsewhere = TimeFold(None)

    def add(self, digests: bytes, offsets: Int64s, timestamps: Int64s) -> None:
        """Take ``n`` rows: ``16 * n`` bytes of digests, offsets and timestamps (ms) of shape ``(n,)``."""
        marks = Marks(digests, offsets, timestamps)
        away = offsets < 0
        if away.any():
            there = _turned(select_marks(marks, np.flatnonzero(away)))
            self._elsewhere.add(there.digests, there.offsets, there.timestamps)
            marks = select_marks(marks, np.flatnonzero(~away))
        self._here.add(marks.digests, marks.offsets, marks.timestamps)

    def finish(self) -> Folded:
        """Return the marks whose timestamp is at or after the horizon."""
        here = _turned(self._here.finish().marks)
        # Of equal ones the last that is given stays.
        marks = _turned(last_given_per_digest(join_marks([self._elsewhere.finish().marks, here])))
        if self._keep_from_ms is None or not marks.count:
            return Folded(marks, None)
        return leave_out(marks, self._keep_from_ms)


def latest_per_digest(marks: Marks) -> Marks:
    """Return ``marks`` ascending by digest, of each digest only the one with the latest timestamp."""
    return _turned(newest_per_digest(_turned(marks)))


def _turned(marks: Marks) -> Marks:
    """Marks whose order is that of their timestamps."""
    return Marks(marks.digests, marks.timestamps, marks.offsets)
