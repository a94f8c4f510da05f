"""What a partition has in a memory that it shares with others.

held
    an ID that this consumer has claimed, or handles without a claim because the store did not answer (token 0), until it is completed,
    or its partition goes.
waiting
    an admitted record of which it is not known whether it may be handed out. For its lane it is in flight, so that its twins wait behind it.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup_sdk.lane.chunk import PARKED, PARKED_KIND, Chunk, Place
from dedup_sdk.marks import Marks

if TYPE_CHECKING:
    from dedup_sdk.engine.claims import Claims
    from dedup_sdk.engine.counted import Counted

RETRY_S: Final = 0.1
"""Seconds until an ID that is in flight elsewhere is asked for again; twice as long each time, up to a second."""
_FARTHEST_MS: Final = 2**52


class Held(NamedTuple):
    """What is known of an ID in hand: what it is called in the shared store, the claim's token (0: none), and the record that claimed it."""

    key: bytes
    token: int
    offset: int
    lost: bool = False
    """Whether the lease was over, and another consumer has it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A record that waits; ``kind`` and ``reason`` are what its lane said of it."""

    held: Counted
    own: PartitionClaims
    chunk: Chunk
    row: int
    kind: int
    reason: str | None
    key: bytes = b""
    retry_at: float = 0.0
    pause_s: float = RETRY_S
    lease_ends: float = 0.0
    """When (monotonic seconds) the lease of who has it ends, by what the store said last."""

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.chunk.offsets[self.row]

    @property
    def timestamp_ms(self) -> int:
        """The message's timestamp, as far as stores take it."""
        return near(int(self.chunk.timestamps[self.row]))

    def park(self) -> None:
        """Keep it from the application."""
        self.chunk.states[self.row] = PARKED
        self.chunk.kinds[self.row] = PARKED_KIND
        self.chunk.reasons[self.row] = "in-flight"

    def judge(self, kind: int, reason: str | None) -> None:
        """Give it its verdict."""
        self.chunk.kinds[self.row] = kind
        if reason is None:
            self.chunk.reasons.pop(self.row, None)
        else:
            self.chunk.reasons[self.row] = reason


@dataclass(slots=True, eq=False)
class PartitionClaims:
    """What a partition has claimed (by digest), and what waits, ascending by offset; ``left``: it claims nothing any more."""

    claims: Claims
    scope: bytes
    window_ms: int
    held: dict[bytes, Held] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)
    left: bool = False

    @property
    def is_out(self) -> bool:
        """Whether the shared store did not answer last."""
        return self.claims.is_out

    @property
    def stands_still(self) -> bool:
        """Whether nothing behind what waits may be handed out."""
        return bool(self.waiting) and (self.claims.in_order or self.claims.pauses)

    def has_claimed(self, digest: bytes) -> bool:
        """Whether an ID is held by a claim, be it lost by now."""
        held = self.held.get(digest)
        return held is not None and held.token > 0

    def complete(self, marks: Marks) -> None:
        """Tell the shared store of completed records, before that is written here."""
        if self.held:
            self.claims.complete(self, marks)

    def claim_promoted(self, held: Counted, offered: list[Place]) -> list[Place]:
        """Keep back the parked records whose turn came, which are claimed next; return the others."""
        ready = []
        for place in offered:
            if place.chunk.digests[place.row] is None:
                ready.append(place)
                continue
            waiting = waiting_for(held, self, place.chunk, place.row)
            waiting.park()
            insort(self.waiting, waiting, key=attrgetter("offset"))
        return ready

    def leave(self) -> None:
        """Let others have all that is in flight here."""
        self.left, self.waiting = True, []
        self.claims.leave(self)


def waiting_for(held: Counted, own: PartitionClaims, chunk: Chunk, row: int) -> Waiting:
    """Return a record of a lane as one that may have to wait."""
    return Waiting(held, own, chunk, row, chunk.kinds[row], chunk.reasons.get(row))


def near(timestamp_ms: int) -> int:
    """Return a timestamp as stores take it: what is farther off is as far as they reach."""
    return max(-_FARTHEST_MS, min(timestamp_ms, _FARTHEST_MS))
