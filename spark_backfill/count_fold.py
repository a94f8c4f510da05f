"""The fold of a count window: one record after the other, as the live consumer judged them.

The circular cache of Apache ActiveMQ Artemis and HornetQ: the last ``n`` accepted IDs. An accepted record takes
the next number, its rank among the accepted ones; a duplicate moves the mark's offset and timestamp, but neither
takes a number nor refreshes one. With a time window as well an ID is remembered while both hold.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from dedup_sdk._decision import Mark
from dedup_sdk._marks import DIGEST_BYTES, Int64s, Marks, cut_digests, join_marks
from dedup_sdk._store.pages import newest_per_digest
from dedup_sdk._window import Window
from spark_backfill.time_fold import Folded, leave_out


class CountFold:
    """Takes the rows of one partition in offset order; holds at most ``window.count`` marks.

    Numbers are counted from the first row on, so that the first row has to be where the offset range of history
    begins. Or where an earlier fold ended: ``accepted`` is then how many that one had accepted, and `resume` takes
    its marks.
    """

    def __init__(self, window: Window, keep_from_ms: int | None, *, accepted: int = 0) -> None:
        if window.count is None:
            raise ValueError(f"window {window} counts nothing; fold it with TimeFold")
        self._window = window
        self._size = window.count
        self._keep_from_ms = keep_from_ms
        self._accepted = accepted
        self._resumed: list[Marks] = []
        self._forgotten_ms: int | None = None
        self._forgotten_number: int | None = None
        # In order of their numbers: an ID accepted again goes to the end.
        self._marks: OrderedDict[bytes, Mark] = OrderedDict()

    def add(self, digests: bytes, offsets: Int64s, timestamps: Int64s) -> None:
        """Take ``n`` rows above all earlier ones: ``16 * n`` bytes, offsets and timestamps (ms) of shape ``(n,)``."""
        self._begin()
        marks = self._marks
        cut = [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
        for digest, offset, timestamp_ms in zip(cut, offsets.tolist(), timestamps.tolist(), strict=True):
            mark = marks.get(digest)
            if mark is not None and self._window.holds(
                timestamp_ms - mark.timestamp_ms, self._accepted - mark.number
            ):
                marks[digest] = Mark(offset, timestamp_ms, mark.number)
                continue
            self._accepted += 1
            marks[digest] = Mark(offset, timestamp_ms, self._accepted)
            marks.move_to_end(digest)
            if self._oldest_number() <= self._accepted - self._size:
                self._evict()

    def resume(self, marks: Marks) -> None:
        """Take marks, with their numbers, of the fold that is continued, in any order; before any row."""
        if self._marks:
            raise ValueError(
                "marks of the base came behind rows; the shuffle has lost their order, run the job again"
            )
        self._resumed.append(marks)

    def finish(self) -> Folded:
        """Return the marks that are live at the cut, with their numbers."""
        self._begin()
        columns = np.asarray(list(self._marks.values()), np.int64).reshape(-1, 3)
        marks = newest_per_digest(Marks(b"".join(self._marks), columns[:, 0], columns[:, 1], columns[:, 2]))
        folded = Folded(marks, None) if self._keep_from_ms is None else leave_out(marks, self._keep_from_ms)
        return Folded(
            folded.marks,
            later(self._forgotten_ms, folded.forgotten_ms),
            later(self._forgotten_number, folded.forgotten_number),
            self._accepted,
        )

    def _begin(self) -> None:
        if not self._resumed:
            return
        marks, self._resumed = join_marks(self._resumed), []
        digests, order = cut_digests(marks.digests), np.argsort(numbers_of(marks))
        columns = zip(
            marks.offsets.tolist(), marks.timestamps.tolist(), numbers_of(marks).tolist(), strict=True
        )
        every = list(map(Mark._make, columns))
        self._marks = OrderedDict((digests[at], every[at]) for at in order.tolist())
        while self._marks and self._oldest_number() <= self._accepted - self._size:
            self._evict()

    def _oldest_number(self) -> int:
        return next(iter(self._marks.values())).number

    def _evict(self) -> None:
        _, mark = self._marks.popitem(last=False)
        self._forgotten_ms = later(self._forgotten_ms, mark.timestamp_ms)
        self._forgotten_number = later(self._forgotten_number, mark.number)


def numbers_of(marks: Marks) -> Int64s:
    """Return the acceptance numbers of marks of a count window."""
    if marks.numbers is None:
        raise ValueError(f"{marks.count} marks without acceptance numbers; a count window needs them")
    return marks.numbers


def later(one: int | None, other: int | None) -> int | None:
    """Return the larger of two values, of which None is none."""
    return other if one is None else one if other is None else max(one, other)
