"""One lane of IDs that are compared, while some of its records are in flight.

base
    what the lane remembers below the watermark.
ahead
    what it will remember once everything that was judged is completed, in offset order.
flying
    ID -> offset of the newest record above the watermark that bears it, in flight or completed out of order.
pending
    how many of its records lie above the watermark and take part in the fold.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from dedup_sdk.last.rule import LaneMark, LastRule


class Saved(NamedTuple):
    """What a store keeps of a lane: the bytes of its memory, offset and timestamp (ms) of its last completed record."""

    payload: bytes
    offset: int
    timestamp_ms: int


class Track:
    """The state of one lane.

    ``landed``: nothing is pending, and ``ahead`` is the base. Else the base is kept as bytes, which nearly nobody reads: what a batch
    leaves behind is written anyway, so that nothing is copied for it. ``exact``: ``ahead`` is the fold of everything judged, in offset
    order, so that it becomes the base as it is. ``mixed``: records in flight are of several origins. ``covered``: the base knew all that could matter
    when it took off, and nothing in flight began the lane anew. What lies ahead may know as much by records that are given up yet.
    """

    __slots__ = (
        "_base",
        "_saved",
        "ahead",
        "covered",
        "digest",
        "exact",
        "flying",
        "landed",
        "mixed",
        "pending",
    )

    def __init__(self, digest: bytes, mark: LaneMark | None) -> None:
        self.digest = digest
        self.ahead = mark
        self._base: LaneMark | None = None
        self._saved: Saved | None = None
        self.landed = self.exact = True
        self.covered = mark is None or mark.covered
        self.mixed = False
        self.flying: dict[Any, int] = {}
        self.pending = 0

    def saved(self) -> Saved | None:
        """Return the base as a store keeps it, None where nothing is remembered."""
        if self._saved is None:
            base = self.ahead if self.landed else self._base
            self._saved = None if base is None else Saved(base.seen.encode(), base.offset, base.timestamp_ms)
        return self._saved

    def base(self, rule: LastRule) -> LaneMark | None:
        """Return the base, to be read only."""
        if self.landed:
            return self.ahead
        if self._base is None and self._saved is not None:
            self._base = rule.restore(*self._saved)
        return self._base

    def take_off(self) -> None:
        """Let ``ahead`` go its own way from the base."""
        if self.landed:
            self.saved()
            self._base = None
            self.landed = False
            self.covered = self.ahead is None or self.ahead.covered

    def move_base(self, base: LaneMark | None) -> None:
        """Set what is remembered below the watermark, while something above it is pending."""
        self._base, self._saved = base, None

    def doubt(self) -> None:
        """Note that records of the lane may have been passed that nobody folded; not while some are in flight: then it is in memory as it is."""
        if self.landed and self.ahead is not None:
            self.ahead.seen.doubt()
            self._saved = None

    def land(self, rule: LastRule) -> None:
        """Note that nothing is pending: what lies ahead is the base now, or the base is all there is."""
        if not self.exact:
            self.ahead = self.base(rule)
        self.landed = self.exact = True
        self._base = self._saved = None
        self.mixed = False
        self.flying.clear()
