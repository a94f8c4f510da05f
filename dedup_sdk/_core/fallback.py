"""The marks of a fallback lookup: where each of its IDs was last completed, beside the sources of a partition.

A completed record that bears such an ID leaves a mark like any that is looked up, when the watermark passes it.

in_flight
    ID -> offsets of the records above the watermark that bear it, ascending
"""

from __future__ import annotations

import numpy as np

from dedup_sdk._decision import Mark
from dedup_sdk._marks import Marks, cut_digests


class FallbackIds:
    """The IDs in memory: those in flight, and ``recent``, which are in the journal and in no sorted file."""

    def __init__(self) -> None:
        self.recent: dict[bytes, Mark] = {}
        self.in_flight: dict[bytes, list[int]] = {}
        self._new: dict[bytes, Mark] = {}

    def begin(self, digest: bytes | None, offset: int) -> None:
        """Note a record above the watermark."""
        if digest is not None:
            self.in_flight.setdefault(digest, []).append(offset)

    def complete(self, digest: bytes, mark: Mark) -> None:
        """Note that the watermark passes a completed record."""
        offsets = self.in_flight.get(digest, [])
        # A record of a replay was never in flight here.
        if mark.offset in offsets:
            offsets.remove(mark.offset)
        if not offsets:
            self.in_flight.pop(digest, None)
        if digest not in self.recent or self.recent[digest].offset < mark.offset:
            self.recent[digest] = self._new[digest] = mark

    def last(self, digest: bytes, stored: Mark | None) -> Mark | None:
        """Return the last mark below the watermark; ``stored`` is the one that the store has."""
        recent = self.recent.get(digest)
        if recent is None or (stored is not None and stored.offset > recent.offset):
            return stored
        return recent

    def restore(self, marks: Marks) -> None:
        """Take marks back that are in the journal, or that nobody could store; higher ones stay."""
        rows = zip(cut_digests(marks.digests), marks.offsets.tolist(), marks.timestamps.tolist(), strict=True)
        for digest, offset, timestamp_ms in rows:
            known = self.recent.get(digest)
            if known is None or known.offset < offset:
                self.recent[digest] = Mark(offset, timestamp_ms)

    def take_step(self) -> Marks:
        """Return the marks that are new since the last call."""
        new, self._new = self._new, {}
        return _as_columns(new)

    def take_recent(self, waited_for: set[bytes]) -> Marks:
        """Return the marks in the journal, for a flush; forget them, except those that records held back wait for."""
        marks = _as_columns(self.recent)
        self.recent = {digest: mark for digest, mark in self.recent.items() if digest in waited_for}
        return marks


def _as_columns(marks: dict[bytes, Mark]) -> Marks:
    return Marks(
        b"".join(marks),
        np.asarray([mark.offset for mark in marks.values()], np.int64),
        np.asarray([mark.timestamp_ms for mark in marks.values()], np.int64),
    )
