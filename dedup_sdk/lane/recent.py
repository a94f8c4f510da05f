"""The marks that are not in sorted files yet, and the IDs in flight: one dictionary for both.

One entry an ID: the offset of its newest record. Whether that record is completed (then the entry is a mark) or in
flight is told by the lane's watermark, so that completing a record changes nothing here, and one dictionary operation
per record answers three questions: is it a twin in this batch, is it in flight, was it seen lately.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.lane.timeline import Timeline
from dedup_sdk.marks import Int64s, Marks

Bools = np.ndarray[Any, np.dtype[np.bool_]]


class RecentMarks:
    """Digest -> offset of the newest record with that ID, completed or in flight.

    ``behind`` keeps the completed mark that an ID in flight stands in front of: it has to outlive a crash before the record
    is completed, so that a flush writes it, and it wins if it lies above the record. ``beneath`` has the offsets (ascending) of an
    ID's other records in flight, below its newest: only where duplicates are shown (observe mode), so that nothing is parked and a
    completed duplicate may lie below one in flight.
    """

    def __init__(self) -> None:
        self.offsets: dict[bytes, int] = {}
        self.behind: dict[bytes, Mark] = {}
        self.beneath: dict[bytes, list[int]] = {}
        self.timeline = Timeline()

    def __len__(self) -> int:
        return len(self.offsets)

    def mark(self, digest: bytes) -> Mark | None:
        """Return the entry of an ID as a mark; the caller knows that its record is completed."""
        offset = self.offsets.get(digest)
        if offset is None:
            return None
        return Mark(offset, self.timeline.at(offset))

    def fly(self, digest: bytes, offset: int) -> None:
        """Put an ID in flight in front of the mark that it has."""
        if self.offsets.get(digest, offset) != offset:
            self.behind[digest] = Mark(self.offsets[digest], self.timeline.at(self.offsets[digest]))
        self.offsets[digest] = offset

    def land(self, digest: bytes, offset: int) -> None:
        """Make the ID in flight at ``offset`` a mark, unless the mark behind it lies higher."""
        behind = self.behind.pop(digest, None)
        if behind is not None and behind.offset > offset:
            self.restore(digest, behind)

    def cover(self, digest: bytes, offset: int) -> None:
        """Put a twin in front of an ID that is in flight, and in flight stays."""
        self.beneath.setdefault(digest, []).append(self.offsets[digest])
        self.offsets[digest] = offset

    def land_beneath(self, digest: bytes, is_open: Callable[[int], bool]) -> None:
        """Put the newest completed of an ID's covered records behind the one that covers them, unless a higher mark is there."""
        covered = self.beneath[digest]
        ended = [offset for offset in covered if not is_open(offset)]
        still = [offset for offset in covered if offset not in ended]
        if still:
            self.beneath[digest] = still
        else:
            del self.beneath[digest]
        behind = self.behind.get(digest)
        if ended and (behind is None or behind.offset < ended[-1]):
            self.behind[digest] = Mark(ended[-1], self.timeline.at(ended[-1]))

    def drop(self, digest: bytes, offset: int) -> None:
        """Forget an ID that a unit stood in line for at ``offset``, which leaves no mark of it."""
        if self.offsets.get(digest) == offset:
            del self.offsets[digest]

    def restore(self, digest: bytes, mark: Mark) -> None:
        """Set an ID's mark from outside the log that passes by."""
        self.offsets[digest] = mark.offset
        self.timeline.keep(mark.offset, mark.timestamp_ms)

    def fold(self, digests: list[bytes], offsets: list[int], timestamps: Int64s) -> None:
        """Take completed records over in offset order; an entry of a higher offset stays."""
        if not offsets:
            return
        self.timeline.extend(np.fromiter(offsets, np.int64, len(offsets)), timestamps)
        known = self.offsets
        if all(known[digest] < offsets[0] for digest in known.keys() & set(digests)):
            known.update(zip(digests, offsets, strict=True))
            return
        for digest, offset in zip(digests, offsets, strict=True):
            if known.get(digest, -1) < offset:
                known[digest] = offset

    def keep_from(self, offset: int) -> None:
        """Forget the IDs whose entry lies below ``offset``, and every timestamp."""
        self.offsets = {digest: at for digest, at in self.offsets.items() if at >= offset}
        self.timeline.clear()

    def take(self, completed: Callable[[Int64s], Bools]) -> Marks:
        """Remove and return every mark; IDs in flight stay, and so does what stands behind them.

        ``completed`` tells for an array of offsets, shape ``(n,)``, which of them are completed.
        """
        digests = list(self.offsets)
        offsets = np.fromiter(self.offsets.values(), np.int64, len(digests))
        mask = completed(offsets)
        flying = np.flatnonzero(~mask).tolist()
        kept = {digests[index]: int(offsets[index]) for index in flying}
        if flying:
            digests = [digests[index] for index in np.flatnonzero(mask).tolist()]
            offsets = offsets[mask]
        times = self.timeline.at_all(offsets)
        if self.behind:
            digests = [*digests, *self.behind]
            columns = np.asarray(list(self.behind.values()), np.int64)
            offsets, times = np.concatenate((offsets, columns[:, 0])), np.concatenate((times, columns[:, 1]))
        self.offsets = kept
        # What a mark covers is older than it, whatever becomes of it.
        self.beneath = {digest: under for digest, under in self.beneath.items() if digest in kept}
        self.timeline.clear()
        return Marks(b"".join(digests), offsets, times)
