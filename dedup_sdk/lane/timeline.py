"""Which timestamp an offset had, for the offsets that recent marks point to.

Recent marks keep only an offset each (a Python integer that exists anyway); their timestamps stay in columns. That is a
third of the memory that a pair per mark would take, nothing is built per record, and many are looked up in one call.
"""

from __future__ import annotations

import numpy as np

from dedup_sdk.marks import Int64s

_FEWEST = 1_024


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
