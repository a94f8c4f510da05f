"""One lane of IDs that are compared, while some of its records are in flight.

base
    what the lane remembers below the watermark.
ahead
    what it will remember once everything that was judged is completed, in offset order.
flying
    token of an ID (`Candidate.token`) -> offset of the newest record above the watermark that bears it, in flight or completed out of order.
pending
    how many of its records lie above the watermark and take part in the fold.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final, NamedTuple

from dedup_sdk.last.rule import LaneMark, LastRule


class Saved(NamedTuple):
    """What a store keeps of a lane: the bytes of its memory, offset and timestamp (ms) of its last completed record."""

    payload: bytes
    offset: int
    timestamp_ms: int


NONE_FLYING: Final = MappingProxyType[Any, int]({})
"""What all lanes share that have nothing in flight: nearly all of many, and a dictionary of each would be the larger part of it."""


class Track:
    """The state of one lane.

    ``landed``: nothing is pending, and ``ahead`` is the base. Else the base is kept as bytes, which nearly nobody reads: what a batch
    leaves behind is written anyway, so that nothing is copied for it. ``ahead`` is the fold of everything judged, in offset
    order, so that it becomes the base as it is. ``mixed``: ``ahead`` has begun anew with a record in flight, so that
    it does not hold all that is flying. ``covered``: the base knew all that could matter when it took off, and nothing in flight began the
    lane anew.
    """

    __slots__ = (
        "_base", "_offset", "_payload", "_timestamp_ms", "ahead", "covered", "digest", "flying", "landed", "mixed", "pending",
    )  # fmt: skip

    def __init__(self, digest: bytes, mark: LaneMark | None) -> None:
        self.digest = digest
        self.ahead = mark
        self._base: LaneMark | None = None
        self._payload: bytes | None = None
        self._offset = self._timestamp_ms = 0
        self.landed = True
        self.covered = mark is None or mark.covered
        self.mixed = False
        self.flying: dict[Any, int] | MappingProxyType[Any, int] = NONE_FLYING
        self.pending = 0

    def saved(self) -> tuple[bytes | None, int, int]:
        """Return the base as a store keeps it (`Saved`), but with no payload where nothing is remembered."""
        if self._payload is None:
            base = self.ahead if self.landed else self._base
            if base is not None:
                self._payload = base.seen.encode()
                self._offset, self._timestamp_ms = base.offset, base.timestamp_ms
        return self._payload, self._offset, self._timestamp_ms

    def base(self, rule: LastRule) -> LaneMark | None:
        """Return the base, to be read only."""
        if self.landed:
            return self.ahead
        if self._base is None and self._payload is not None:
            self._base = rule.restore(self._payload, self._offset, self._timestamp_ms)
        return self._base

    def take_off(self) -> None:
        """Let ``ahead`` go its own way from the base."""
        if self.landed:
            if self._payload is None and self.ahead is not None:
                self.saved()
            self._base = None
            self.landed = False
            self.covered = self.ahead is None or self.ahead.covered

    def fly(self, token: Any, offset: int) -> None:
        """Note that the newest record above the watermark that bears an ID is this one."""
        self.in_flight()[token] = offset

    def in_flight(self) -> dict[Any, int]:
        """Return ``flying``, to be written to."""
        if not isinstance(self.flying, dict):
            self.flying = {}
        return self.flying

    def let_go(self, token: Any, offset: int) -> None:
        """Note that this record is no longer the newest above the watermark that bears its ID, if it was."""
        if self.flying.get(token) == offset:
            del self.in_flight()[token]

    def move_base(self, base: LaneMark | None) -> None:
        """Set what is remembered below the watermark, while something above it is pending."""
        self._base, self._payload = base, None

    def doubt(self) -> None:
        """Note that records of the lane may have been passed that nobody folded; not while some are in flight: then it is in memory as it is."""
        if self.landed and self.ahead is not None:
            self.ahead.seen.doubt()
            self._payload = None

    def land(self) -> None:
        """Note that nothing is pending, and what lies ahead is the base now."""
        self.landed = True
        self._base = self._payload = None
        self.mixed = False
        self.pending = 0
        self.flying = NONE_FLYING
