"""Which timestamp an offset had, for the offsets that recent marks point to.

Recent marks keep only an offset each (a Python integer that exists anyway); their timestamps stay in the columns they
came in. That is a third of the memory that a pair per mark would take, and nothing is built per record.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from dedup_sdk.marks import Int64s


class Timeline:
    """Segments of (offset, timestamp in ms), each ascending by offset, later segments above earlier ones."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._segments: list[tuple[list[int], Int64s]] = []
        self._strays: dict[int, int] = {}

    def extend(self, offsets: list[int], timestamps: Int64s) -> None:
        """Add a segment above all others; ``offsets`` ascending, both of one length."""
        if offsets:
            self._firsts.append(offsets[0])
            self._segments.append((offsets, timestamps))

    def keep(self, offset: int, timestamp_ms: int) -> None:
        """Remember one offset apart from the segments."""
        self._strays[offset] = timestamp_ms

    def at(self, offset: int) -> int:
        """Return the timestamp of an offset that was added; KeyError if it was not."""
        if offset in self._strays:
            return self._strays[offset]
        place = bisect_right(self._firsts, offset) - 1
        if place >= 0:
            offsets, timestamps = self._segments[place]
            index = bisect_left(offsets, offset)
            if index < len(offsets) and offsets[index] == offset:
                return int(timestamps[index])
        raise KeyError(offset)

    def at_all(self, offsets: Int64s) -> Int64s:
        """Return the timestamps of many offsets, shape as given; KeyError if one was never added."""
        if not offsets.size:
            return np.empty(0, np.int64)
        parts = [np.asarray(offsets_, np.int64) for offsets_, _ in self._segments]
        strays = sorted(self._strays)
        known = np.concatenate([*parts, np.asarray(strays, np.int64)])
        times = np.concatenate(
            [*(times for _, times in self._segments), np.asarray([self._strays[o] for o in strays], np.int64)]
        )
        if strays:
            order = np.argsort(known, kind="stable")
            known, times = known[order], times[order]
        places = np.searchsorted(known, offsets)
        missing = np.flatnonzero(known[np.minimum(places, len(known) - 1)] != offsets) if known.size else [0]
        if len(missing):
            raise KeyError(int(offsets[missing[0]]))
        found: Int64s = times[places]
        return found

    def clear(self) -> None:
        """Forget everything."""
        self._firsts.clear()
        self._segments.clear()
        self._strays.clear()
