"""The marks that are not in sorted files yet, and the IDs in flight: one dictionary for both.

One entry an ID: the offset of its newest record. Whether that record is completed (then the entry is a mark) or in
flight is told by the watermark, so that completing a record changes nothing here, and one dictionary operation
per record answers three questions: is it a twin in this batch, is it in flight, was it seen lately.

An entry keeps only an offset (a Python integer that exists anyway); the timestamps of offsets stay in columns (`Timeline`). That is a third
of the memory that a pair per mark would take, nothing is built per record, and many are looked up in one call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from dedup_sdk.decision import Mark
from dedup_sdk.marks import Int64s, Marks

Bools = np.ndarray[Any, np.dtype[np.bool_]]


_FEWEST: Final = 1_024


class Timeline:
    """Offsets, ascending, and their timestamps in ms; ``strays`` are offsets that came from outside the log that passes by."""

    def __init__(self) -> None:
        self._count = 0
        self._offsets = np.empty(_FEWEST, np.int64)
        self._timestamps = np.empty(_FEWEST, np.int64)
        self._strays: dict[int, int] = {}

    def extend(self, offsets: Int64s, timestamps: Int64s) -> None:
        """Add offsets not below the others, ascending, an offset perhaps twice; both of one length."""
        start, end = self._count, self._count + len(offsets)
        if end > len(self._offsets):
            room = max(end, 2 * len(self._offsets))
            self._offsets = np.resize(self._offsets[:start], room) if start else np.empty(room, np.int64)
            self._timestamps = (
                np.resize(self._timestamps[:start], room) if start else np.empty(room, np.int64)
            )
        self._offsets[start:end] = offsets
        self._timestamps[start:end] = timestamps
        self._count = end

    def __len__(self) -> int:
        return self._count

    def keep_only(self, offsets: Int64s) -> None:
        """Forget all but these offsets, in any order; those kept apart stay."""
        known = self._offsets[: self._count]
        wanted = np.isin(known, offsets)
        self.replace(known[wanted], self._timestamps[: self._count][wanted])

    def replace(self, offsets: Int64s, timestamps: Int64s) -> None:
        """Set the offsets anew, ascending; those kept apart stay."""
        self._count = 0
        self.extend(offsets, timestamps)

    def keep(self, offset: int, timestamp_ms: int) -> None:
        """Remember one offset apart from the others."""
        self._strays[offset] = timestamp_ms

    def at(self, offset: int) -> int:
        """Return the timestamp of an offset that was added; KeyError if it was not."""
        if offset in self._strays:
            return self._strays[offset]
        place = int(self._offsets[: self._count].searchsorted(offset))
        if place == self._count or self._offsets[place] != offset:
            raise KeyError(offset)
        return int(self._timestamps[place])

    def at_all(self, offsets: Int64s) -> Int64s:
        """Return the timestamps of many offsets, shape as given; KeyError if one was never added."""
        known = self._offsets[: self._count]
        if self._count and int(known[-1]) - int(known[0]) == self._count - 1:
            # A log without holes, as most are: where an offset lies needs no search. (A journal may hold an offset twice,
            # which looks the same when it has as many holes: what is not found where it should lie is searched below.)
            places = (offsets - known[0]).clip(0, self._count - 1)
        else:
            places = known.searchsorted(offsets)
        if self._count:
            np.minimum(places, self._count - 1, out=places)
            found: Int64s = self._timestamps[places]
            wrong = np.flatnonzero(
                (known[places] != offsets) | (bool(self._strays) and np.isin(offsets, list(self._strays)))
            )
        else:
            found, wrong = np.empty(len(offsets), np.int64), np.arange(len(offsets))
        for index in wrong.tolist():
            found[index] = self.at(int(offsets[index]))
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._count = 0
        self._strays.clear()


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

    def begin(self, digest: bytes, offset: int) -> None:
        """Put an ID in flight in front of the mark that it has."""
        if self.offsets.get(digest, offset) != offset:
            self.behind[digest] = Mark(self.offsets[digest], self.timeline.at(self.offsets[digest]))
        self.offsets[digest] = offset

    def complete(self, digest: bytes, offset: int) -> None:
        """Make the ID in flight at ``offset`` a mark, unless the mark behind it lies higher."""
        behind = self.behind.pop(digest, None)
        if behind is not None and behind.offset > offset:
            self.restore(digest, behind)

    def cover(self, digest: bytes, offset: int) -> None:
        """Put a twin in front of an ID that is in flight, and in flight stays."""
        self.beneath.setdefault(digest, []).append(self.offsets[digest])
        self.offsets[digest] = offset

    def complete_beneath(self, digest: bytes, is_open: Callable[[int], bool]) -> None:
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

    def take(self, are_open: Callable[[Int64s], Bools]) -> Marks:
        """Remove and return every mark; IDs in flight stay, and so does what stands behind them.

        ``are_open`` tells for an array of offsets, shape ``(n,)``, which of them are not completed.
        """
        digests = list(self.offsets)
        offsets = np.fromiter(self.offsets.values(), np.int64, len(digests))
        mask = ~are_open(offsets)
        in_flight = np.flatnonzero(~mask).tolist()
        kept = {digests[index]: int(offsets[index]) for index in in_flight}
        if in_flight:
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
