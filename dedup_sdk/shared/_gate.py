"""The gate between a partition and a shared store: it holds a record back until its ID is claimed there.

owned
    an ID that this consumer has claimed, or handles without a claim (token 0) because the store did not answer. It
    stays owned until it is completed or released, or its partition is revoked.
waiting
    an admitted record that is held back because its claim is not decided yet.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from dedup_sdk._core.flight import HELD, OFFERED, SINGLE, Chunk, RecordRef
from dedup_sdk._engine.gates import Gate
from dedup_sdk._engine.partition import Partition
from dedup_sdk._marks import Marks, cut_digests
from dedup_sdk._metrics import Hindrance

if TYPE_CHECKING:
    from dedup_sdk.shared._claims import ClaimGatekeeper

RETRY_S: Final = 0.1
"""Seconds until an ID that is in flight elsewhere is claimed again; doubled each time, up to one second."""
_MAX_RETRY_S: Final = 1.0
_MOST_TAKEN_OVER: Final = 10_000
"""As many as ten transactions of 1,000 messages complete: of earlier ones the owner before has told the store."""
# Stores may count in doubles, as Redis's scripts do: these are exact up to 2**53.
_MAX_TIMESTAMP_MS: Final = 2**52


class OwnedClaim(NamedTuple):
    """An owned ID: its key in the shared store, the claim's token (0: none), the offset of the claiming record."""

    key: bytes
    token: int
    offset: int
    lost: bool = False
    """Whether the lease ended and another consumer claimed the ID."""


@dataclass(slots=True, eq=False)
class WaitingRecord:
    """A record that waits for its claim; ``kind`` and ``reason`` are its local verdict."""

    gate: ClaimGate
    chunk: Chunk
    row: int
    kind: int
    reason: str | None
    key: bytes = b""
    retry_at: float = 0.0
    pause_s: float = RETRY_S
    lease_ends: float = 0.0
    """When (monotonic seconds) the other owner's lease ends, by the store's last answer."""

    @property
    def offset(self) -> int:
        """The record's offset."""
        return self.chunk.offsets[self.row]

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp, limited to the range that stores accept."""
        return clamp_timestamp(int(self.chunk.timestamps[self.row]))

    @property
    def is_held_back(self) -> bool:
        """Whether the record is held back from the application."""
        return self.chunk.states[self.row] == HELD

    def set_key(self, key: bytes) -> None:
        """Set its key in the shared store."""
        self.key = key

    def wait_for_lease(self, left_s: float, now: float) -> None:
        """Wait for the other owner, at most until its lease ends in ``left_s`` seconds; the delay doubles."""
        self.lease_ends = now + left_s
        self.wait_until(now + min(self.pause_s, max(left_s, 0.001)))
        self.pause_s = min(2 * self.pause_s, _MAX_RETRY_S)

    def set_verdict(self, kind: int, reason: str | None, *, seen: tuple[int, int] | None = None) -> None:
        """Set its verdict; ``seen``: offset and timestamp (ms) of the earlier record."""
        self.chunk.judge(self.row, kind, reason or "", seen=seen)

    def wait_until(self, retry_at: float) -> None:
        """Hold it back, and claim it again at ``retry_at`` (monotonic seconds)."""
        self.retry_at = retry_at
        if not self.is_held_back:
            self.chunk.hold(self.row, "in-flight")
            self.gate.wait(self)


class ClaimGate(Gate):
    """The claims of one partition.

    ``owned``: owned IDs, by digest. ``waiting``: waiting records, ascending by offset. ``left``: the
    partition is gone, and nothing is claimed for it any more.
    """

    def __init__(self, claims: ClaimGatekeeper, scope: bytes, window_ms: int) -> None:
        self.scope = scope
        self.window_ms = window_ms
        self.owned: dict[bytes, OwnedClaim] = {}
        self.waiting: list[WaitingRecord] = []
        self.left = False
        self._claims = claims
        self._unclaimed: list[Chunk] = []
        self._taken_over: deque[tuple[bytes, int]] = deque(maxlen=_MOST_TAKEN_OVER)
        self._entered: Partition | None = None

    @property
    def partition(self) -> Partition:
        """The partition, once it is open."""
        if self._entered is None:
            raise AssertionError("a gate was used before its partition was opened")
        return self._entered

    def enter(self, partition: Partition, all_partitions: Callable[[], Iterable[Partition]]) -> None:
        """See `Gate`."""
        del all_partitions
        self._entered = partition
        self._taken_over.clear()

    # --- records ---------------------------------------------------------------------------------------------

    def takes(self, chunk: Chunk) -> bool:
        """See `Gate`."""
        self._unclaimed.append(chunk)
        return True

    def take_unclaimed(self) -> list[WaitingRecord]:
        """Return the records to claim now; none while the partition stops behind a waiting record."""
        wanted = [
            self.waiting_record(RecordRef(chunk, row))
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
        """Count the verdicts of the batches that were claimed, or wait to be."""
        claimed, self._unclaimed = self._unclaimed, []
        for chunk in claimed:
            self.partition.verdicts.count(chunk)

    def before_offer(self, offered: list[RecordRef]) -> list[RecordRef]:
        """Hold back the records that have an ID, to be claimed next; return the others."""
        ready = []
        for place in offered:
            if place.chunk.digests[place.row] is None:
                ready.append(place)
            else:
                self.hold_back(place)
        return ready

    def hold_back(self, place: RecordRef) -> None:
        """Make a record wait for its claim."""
        waiting = self.waiting_record(place)
        place.chunk.hold(place.row, "in-flight")
        insort(self.waiting, waiting, key=attrgetter("offset"))

    def wait(self, each: WaitingRecord) -> None:
        """Add a record behind all that wait."""
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

    def waiting_record(self, place: RecordRef) -> WaitingRecord:
        """Return a record as one that may have to wait."""
        chunk, row = place
        return WaitingRecord(self, chunk, row, chunk.verdicts[row], chunk.reasons.get(row))

    def drop_decided(self) -> None:
        """Remove records from `waiting` that wait no more."""
        self.waiting = [each for each in self.waiting if each.is_held_back]

    def before_persist(self, marks: Marks) -> None:
        """Complete the IDs in the shared store before their marks are written locally.

        The order matters: once a mark is written locally, this group calls the record redelivered and does
        not report it to the shared store again. A crash in between leaves a duplicate that the shared store
        knows.
        """
        if self._taken_over:
            self._claims.tell(self, self._taken_over)
            self._taken_over.clear()
        if self.owned:
            self._claims.complete(self, marks)

    def take_over(self, marks: Marks) -> None:
        """See `Gate`: their owner may have died before it told the shared store."""
        self._taken_over.extend(zip(cut_digests(marks.digests), marks.timestamps.tolist(), strict=True))

    def settle(self, place: RecordRef) -> None:
        """Count a record that waited and now has its verdict; queue it if it is to be delivered."""
        self.partition.settle(place, due=place.chunk.states[place.row] == SINGLE)

    def has_claimed(self, digest: bytes) -> bool:
        """Whether this consumer claimed an ID, even if the claim is lost by now."""
        owned = self.owned.get(digest)
        return owned is not None and owned.token > 0

    def leave(self) -> None:
        """Release all claims of the partition."""
        self.left, self.waiting = True, []
        self._claims.leave(self)

    # --- status ------------------------------------------------------------------------------------------------

    @property
    def stands_still(self) -> bool:
        """See `Gate`."""
        return bool(self.waiting) and (self._claims.in_order or self._claims.pauses)

    def hindrances(self) -> Iterable[Hindrance]:
        """See `Gate`."""
        if self.waiting:
            yield "elsewhere"
        if self._claims.is_down:
            yield "outage"


def clamp_timestamp(timestamp_ms: int) -> int:
    """Return a timestamp limited to the range that stores accept."""
    return max(-_MAX_TIMESTAMP_MS, min(timestamp_ms, _MAX_TIMESTAMP_MS))


def _offered(chunk: Chunk) -> Iterator[int]:
    at = chunk.states.find(OFFERED)
    while at >= 0:
        yield at
        at = chunk.states.find(OFFERED, at + 1)
