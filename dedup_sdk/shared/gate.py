"""The gate of a partition to a memory that it shares with others: a record is held back until its ID is claimed there.

owned
    an ID that this consumer has claimed, or handles without a claim because the store did not answer (token 0), until it is completed,
    or its partition goes
waiting
    an admitted record of which it is not known whether it may be handed out
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup_sdk.core.flight import INDIVIDUAL, OFFERED, PARKED, Chunk, RecordRef
from dedup_sdk.engine.gates import Gate
from dedup_sdk.marks import Marks
from dedup_sdk.observe import Hindrance

if TYPE_CHECKING:
    from dedup_sdk.engine.partition import Partition
    from dedup_sdk.shared.claims import Claims

RETRY_S: Final = 0.1
"""Seconds until an ID that is in flight elsewhere is asked for again; twice as long each time, up to a second."""
_LONGEST_RETRY_S: Final = 1.0
_FARTHEST_MS: Final = 2**52


class OwnedClaim(NamedTuple):
    """What is known of an ID in hand: what it is called in the shared store, the claim's token (0: none), and the record that claimed it."""

    key: bytes
    token: int
    offset: int
    lost: bool = False
    """Whether the lease was over, and another consumer has it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A record that waits; ``kind`` and ``reason`` are what was said of it here."""

    gate: ClaimGate
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

    @property
    def is_held_back(self) -> bool:
        """Whether the application is not to have it now."""
        return self.chunk.states[self.row] == PARKED

    def call(self, key: bytes) -> None:
        """Note what the shared store calls it."""
        self.key = key

    def have_wait_for(self, left_s: float, now: float) -> None:
        """Have it wait for who has the lease, which ends in so many seconds; each time it waits twice as long."""
        self.lease_ends = now + left_s
        self.have_wait(now + min(self.pause_s, max(left_s, 0.001)))
        self.pause_s = min(2 * self.pause_s, _LONGEST_RETRY_S)

    def judge(self, kind: int, reason: str | None, *, seen: tuple[int, int] | None = None) -> None:
        """Give it its verdict."""
        self.chunk.judge(self.row, kind, reason or "", seen=seen)

    def have_wait(self, retry_at: float) -> None:
        """Hold it back, and ask again at this time (monotonic seconds)."""
        self.retry_at = retry_at
        if not self.is_held_back:
            self.chunk.hold(self.row, "in-flight")
            self.gate.wait(self)


class ClaimGate(Gate):
    """What a partition has claimed (``owned``, by digest), and what waits, ascending by offset; ``left``: it claims nothing any more.

    ``unclaimed``: chunks that have been judged here, and must be claimed before they count.
    """

    def __init__(self, claims: Claims, scope: bytes, window_ms: int) -> None:
        self.scope = scope
        self.window_ms = window_ms
        self.owned: dict[bytes, OwnedClaim] = {}
        self.waiting: list[Waiting] = []
        self.left = False
        self._claims = claims
        self._unclaimed: list[Chunk] = []
        self._entered: Partition | None = None

    @property
    def partition(self) -> Partition:
        """The partition, once it has been opened."""
        if self._entered is None:
            raise AssertionError("a gate was used before its partition was opened")
        return self._entered

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """See `Gate`."""
        del all_partitions
        self._entered = partition

    # --- records ---------------------------------------------------------------------------------------------

    def takes(self, chunk: Chunk) -> bool:
        """See `Gate`."""
        self._unclaimed.append(chunk)
        return True

    def take_unclaimed(self) -> list[Waiting]:
        """Return the records that are to be claimed; none of a partition that keeps all back behind what waits."""
        wanted = [
            self.waiting_for(RecordRef(chunk, row))
            for chunk in self._unclaimed
            for row in _offered(chunk)
            if row not in chunk.unmarked
        ]
        if not self.stands_still:
            return wanted
        for each in wanted:
            each.chunk.hold(each.row, "in-flight")
        self.waiting += wanted
        return []

    def count_claimed(self) -> None:
        """Count the records that were claimed, or wait to be."""
        claimed, self._unclaimed = self._unclaimed, []
        for chunk in claimed:
            self.partition.verdicts.count(chunk)

    def before_offer(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Keep back the records whose turn has come, which are claimed next; return the others."""
        ready = []
        for place in offered:
            if place.chunk.digests[place.row] is None:
                ready.append(place)
            else:
                self.hold_back(place)
        return ready

    def hold_back(self, place: RecordRef) -> None:
        """Have a record wait to be claimed."""
        waiting = self.waiting_for(place)
        place.chunk.hold(place.row, "in-flight")
        insort(self.waiting, waiting, key=attrgetter("offset"))

    def wait(self, each: Waiting) -> None:
        """Have a record wait behind all others."""
        self.waiting.append(each)

    def own(self, digest: bytes, claim: OwnedClaim) -> None:
        """Note that an ID is claimed."""
        self.owned[digest] = claim

    def note_lost(self, digest: bytes) -> None:
        """Note that the lease of a claim was over, and another consumer may have the ID."""
        self.owned[digest] = self.owned[digest]._replace(lost=True)

    def disown(self, digest: bytes) -> None:
        """Note that an ID is not claimed any more."""
        del self.owned[digest]

    def waiting_for(self, place: RecordRef) -> Waiting:
        """Return a record as one that may have to wait."""
        chunk, row = place
        return Waiting(self, chunk, row, chunk.kinds[row], chunk.reasons.get(row))

    def drop_claimed(self) -> None:
        """Forget the records that wait no more."""
        self.waiting = [each for each in self.waiting if each.is_held_back]

    def before_persist(self, marks: Marks) -> None:
        """Tell the shared store of completed records, before that is written here.

        Before: once it is written here, this group calls the record redelivered and tells nobody any more. A crash in
        between leaves a duplicate that the shared store knows.
        """
        if self.owned:
            self._claims.complete(self, marks)

    def settle(self, place: RecordRef) -> None:
        """Count a record that waited and has its verdict; it is due, where it is to be delivered."""
        self.partition.settle(place, due=place.chunk.states[place.row] == INDIVIDUAL)

    def has_claimed(self, digest: bytes) -> bool:
        """Whether an ID is held by a claim, be it lost by now."""
        owned = self.owned.get(digest)
        return owned is not None and owned.token > 0

    def leave(self) -> None:
        """Let others have all that is in flight here."""
        self.left, self.waiting = True, []
        self._claims.leave(self)

    # --- what its owner asks -----------------------------------------------------------------------------------

    @property
    def stands_still(self) -> bool:
        """See `Gate`."""
        return bool(self.waiting) and (self._claims.in_order or self._claims.pauses)

    def hindrances(self) -> Iterable[Hindrance]:
        """See `Gate`."""
        if self.waiting:
            yield "elsewhere"
        if self._claims.is_out:
            yield "outage"


def near(timestamp_ms: int) -> int:
    """Return a timestamp as stores take it: what is farther off is as far as they reach."""
    return max(-_FARTHEST_MS, min(timestamp_ms, _FARTHEST_MS))


def _offered(chunk: Chunk) -> Iterator[int]:
    at = chunk.states.find(OFFERED)
    while at >= 0:
        yield at
        at = chunk.states.find(OFFERED, at + 1)
