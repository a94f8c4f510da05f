"""The rule for IDs that are compared with the last one: their verdicts, and how completed records change their source.

A pure function of plain values, as `dedup_sdk._decision`: no Kafka, no RocksDB, no clock.

source
    the records whose IDs are compared with each other: a partition, or one source inside it
mark
    the state of a source: its memory (`dedup_sdk._core.seen`), offset and timestamp of its last completed record
window
    how long a source is remembered after its newest record; the next record after that begins it anew. A record without
    a timestamp (below zero) is neither older nor newer than the source: neither such a record nor one that goes back in
    time makes the source forget anything.
covered
    whether the store knows everything that the window of this record could hold

The verdict of a record that this group has not completed before; the rows are read from the top:

================================================================  ==================================  =================
the record                                                        verdict                             delivered?
================================================================  ==================================  =================
The order cannot read its ID.                                     unverified                          yes
Its ID is remembered, or was completed above the watermark at a   duplicate                           no
smaller offset.
It cannot be compared with the last ID of its source.             unverified; its completion begins   yes
                                                                  the source anew
It is below the floor of its source.                              unverified; duplicate with          yes; no with
                                                                  ``below_floor="discard"``           ``"discard"``
The marks do not cover its window, or too little is known of its  unverified                          yes
source (``known``).
Else; also the first of a source of which nothing is remembered.  fresh                               yes
================================================================  ==================================  =================

A source of which everything is known delivers a record that comes later than the depth as unverified. One that began
anew may call a series of old IDs fresh, once it has taken enough IDs. Neither loses a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dedup_sdk._core.seen import Candidate, IdStatus, Seen, begin, restore
from dedup_sdk._decision import BelowFloor
from dedup_sdk._record import VerdictKind
from dedup_sdk._window import Window
from dedup_sdk.orders import Comparison, Order

NO_TIME_MS: Final = -1
"""The timestamp of a record that has none.

To a source, a record from the future has none either: the source would be remembered for ever, by that record alone.
"""


@dataclass(slots=True)
class SourceState:
    """The state of a source: its memory, the offset of its last completed record, the newest timestamp (ms).

    It changes in place.
    """

    seen: Seen
    offset: int
    timestamp_ms: int

    @property
    def covered(self) -> bool:
        """Whether all that was completed of the source, and could matter, is known."""
        return self.seen.known is None

    def pass_by(self, offset: int, timestamp_ms: int) -> None:
        """Note the last completed record."""
        self.offset = offset
        self.timestamp_ms = max(self.timestamp_ms, timestamp_ms)

    def copy(self) -> SourceState:
        """Return another one that remembers the same."""
        return SourceState(self.seen.copy(), self.offset, self.timestamp_ms)


class Judgement(NamedTuple):
    """A verdict, and why, where it is in doubt."""

    kind: VerdictKind
    reason: str = ""


_DOUBT = {
    IdStatus.BELOW: Judgement(VerdictKind.UNVERIFIED, "below-floor"),
    IdStatus.UNCOMPARABLE: Judgement(VerdictKind.UNVERIFIED, "uncomparable"),
    IdStatus.MALFORMED: Judgement(VerdictKind.UNVERIFIED, "malformed"),
}
_FRESH = Judgement(VerdictKind.FRESH)
_UNCOVERED = Judgement(VerdictKind.UNVERIFIED, "uncovered")
_DUPLICATE = Judgement(VerdictKind.DUPLICATE)


@dataclass(frozen=True, slots=True)
class LastRule:
    """The rule of one strategy; ``depth`` and ``below_floor`` as in `dedup_sdk.LastId`."""

    order: Order
    depth: int
    below_floor: BelowFloor
    window: Window

    def alive(self, mark: SourceState | None, timestamp_ms: int) -> SourceState | None:
        """Return the mark if its source is still remembered at this timestamp."""
        if mark is None or timestamp_ms < 0 or mark.timestamp_ms < 0:
            return mark
        return mark if self.window.holds(timestamp_ms - mark.timestamp_ms, 0) else None

    def status(self, mark: SourceState | None, candidate: Candidate, timestamp_ms: int) -> IdStatus:
        """Return the status of an ID in the memory of its source; in a new source every ID is newer."""
        known = self.alive(mark, timestamp_ms)
        if known is None:
            return IdStatus.MALFORMED if self.malformed(candidate) else IdStatus.NEWER
        return known.seen.status(candidate)

    def malformed(self, candidate: Candidate) -> bool:
        """Whether this is no ID that the order can read."""
        if candidate.place is not None:
            return False
        id_bytes = candidate.id_bytes
        return self.order.has_sort_keys or self.order.compare(id_bytes, id_bytes) is not Comparison.SAME

    def judge(self, status: IdStatus, *, covered: bool) -> Judgement:
        """Return the verdict of an ID with this status; ``covered``: its source is (`SourceState.covered`)."""
        if status is IdStatus.SEEN or (status is IdStatus.BELOW and self.below_floor == "discard"):
            return _DUPLICATE
        if status in (IdStatus.NEWER, IdStatus.UNSEEN):
            return _FRESH if covered else _UNCOVERED
        return _DOUBT[status]

    def completed(
        self,
        mark: SourceState | None,
        candidate: Candidate,
        *,
        offset: int,
        timestamp_ms: int,
        covered: bool,
    ) -> SourceState | None:
        """Return the state of a source once this record of it is completed; ``mark`` may change in place.

        Records are folded in offset order. One that cannot be compared begins the source anew; one that cannot be
        read changes nothing, because one broken ID must not cost a source its memory.

        The result does not depend on verdicts: a record changes its source in the same way, whichever verdict it
        got. So a verdict may use the records in flight, and a rebuilt source still equals the lived one.
        """
        if self.malformed(candidate):
            return mark
        known = self.alive(mark, timestamp_ms)
        if known is None:
            return SourceState(self.begin(candidate, knows_all=covered), offset, timestamp_ms)
        if known.seen.take(candidate) is IdStatus.UNCOMPARABLE:
            # Records of this origin may have come before those of the other one.
            known.seen = self.begin(candidate, knows_all=False)
        known.pass_by(offset, timestamp_ms)
        return known

    def begin(self, candidate: Candidate, *, knows_all: bool) -> Seen:
        """Return the memory of a source whose first ID this is; ``knows_all``: nothing of the source came before."""
        return begin(self.order, self.depth, candidate, knows_all=knows_all)

    def restore(self, record: bytes, offset: int, timestamp_ms: int) -> SourceState:
        """Return the mark whose memory has these bytes; raises `StoreCorruptError`."""
        return SourceState(restore(self.order, self.depth, record), offset, timestamp_ms)
