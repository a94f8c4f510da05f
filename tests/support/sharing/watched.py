"""The invariants of a consumer that shares a memory, and which faults excuse a breach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dedup_sdk._core.flight import HELD
from dedup_sdk.shared._gate import ClaimGate
from tests.support.broken_promise import BrokenPromiseError
from tests.support.sharing.line import LOST

if TYPE_CHECKING:
    from dedup_sdk._engine.deduplicator import Deduplicator
    from dedup_sdk._engine.partition import Partition
    from dedup_sdk.shared._claims import ClaimGatekeeper
    from tests.support.sharing.line import Line
    from tests.support.sharing.truth import Entry, Ident
    from tests.support.sharing.world import World

SILENCE_S = 300.0
"""Seconds after which the group gives up who does not ask for messages."""

Where = tuple[str, int]


@dataclass
class Given:
    """A message that the application has. ``excused``: it may be handled elsewhere too."""

    message: Any
    entry: Entry
    ident: Ident | None
    excused: bool = False


class Watched:
    """The half of a consumer that is looked at.

    ``has``: messages in the application's hand. ``untold``: handled ones that the server was not told of;
    ``excused``: those of them that may be handled elsewhere. ``rows``: records that were judged, and whose partitions
    did not go while they were parked; once more for each time that a message was taken back.
    """

    world: World
    name: str
    line: Line
    engine: Deduplicator
    claims: ClaimGatekeeper
    stopped: bool
    resumed_at: float
    polled_at: float
    has: dict[tuple[str, int, int], Given]
    untold: dict[bytes, tuple[Where, Ident]]
    excused: set[bytes]
    rows: int

    def note_told(self) -> None:
        """Take note of the calls that reached the server."""
        for key_ in self.line.told:
            self.untold.pop(key_, None)
        self.line.told.clear()
        for key_, at_s in self.line.touched.items():
            self.world.truth.touch(self.world.idents[key_], at_s)
        self.line.touched.clear()

    def note_forgotten(self, keys: set[bytes]) -> None:
        """Take note of claims that the server forgot: others may have them."""
        self.line.forgotten |= keys
        for given in self.has.values():
            given.excused |= given.ident is not None and self.world.key(given.ident) in keys
        for key_ in keys & self.untold.keys() - self.excused:
            self.excused.add(key_)
            self.world.truth.excuse(
                self.untold[key_][1], "its claim was forgotten before its completion was told"
            )

    def note_lapses(self) -> None:
        """Excuse messages that the application has, or was not told of, whose lease is over."""
        now_s = self.world.now_s
        for given in self.has.values():
            if given.ident is not None and not given.excused and self._lapsed(given.ident):
                given.excused = True
                self.world.truth.fault(given.ident, "its lease is over while it is in hand")
        for key_, (_, ident) in self.untold.items():
            if key_ not in self.excused and self.line.lease_ends.get(key_, LOST) <= now_s:
                self.excused.add(key_)
                self.world.truth.excuse(ident, "its lease is over before its completion is told")

    def _lapsed(self, ident: Ident) -> bool:
        ends = self.line.lease_ends.get(self.world.key(ident), LOST)
        if ends > self.world.now_s:
            return False
        begun = ends - self.world.shared.lease
        silent = self.world.now_s - self.polled_at >= SILENCE_S
        if not (self.stopped or silent or max(self.line.failed_at, self.resumed_at) >= begun):
            raise BrokenPromiseError("lease", f"{ident} is lost at {ends}, and {self.name} did nothing wrong")
        return True

    @staticmethod
    def _parked(held: Partition) -> int:
        return sum(chunk.states.count(HELD) for chunk in held.flight.chunks)

    def check(self) -> None:
        """See that the counters agree at every moment."""
        counters = self.engine.counters
        assert not counters.observer_errors
        totals = {**counters.verdicts, **counters.reasons, **counters.shared}
        if any(total < 0 for total in totals.values()):
            raise BrokenPromiseError("counters", f"below zero: {totals}")
        parked = sum(map(self._parked, self.engine.partitions.values()))
        if sum(counters.verdicts.values()) + parked != self.rows:
            raise BrokenPromiseError(
                "counters", f"{counters.verdicts} and {parked} parked are not {self.rows}"
            )
        for kind, total in counters.verdicts.items():
            split = sum(count for name, count in counters.reasons.items() if name.startswith(f"{kind}."))
            if split > total:
                raise BrokenPromiseError("counters", f"{counters.reasons} of {counters.verdicts}")

    def check_idle(self) -> None:
        """See that nothing is left where everything is over."""
        for at, held in self.engine.partitions.items():
            own = held.gate(ClaimGate)
            assert own is not None
            if own.owned or own.waiting:
                raise BrokenPromiseError("left", f"{self.name} {at} holds {own.owned}, {own.waiting}")
        if self.claims.owned_keys or self.claims.acks.pending or self.untold:
            raise BrokenPromiseError(
                "left",
                f"{self.name}: {self.claims.owned_keys}, {self.claims.acks.pending}, untold {self.untold}",
            )

    def sure(self) -> set[bytes]:
        """The claims with leases that are not over, and that the server did not forget."""
        held = (each for own in self.claims.leases.gates for each in own.owned.values())
        return {
            each.key
            for each in held
            if each.token > 0
            and self.line.lease_ends.get(each.key, LOST) > self.world.now_s
            and each.key not in self.line.forgotten
        }

    def books(self) -> set[bytes]:
        """The keys that it knows to be claimed for it, or to be told."""
        held = (each.key for own in self.claims.leases.gates for each in own.owned.values())
        return {*held, *self.claims.acks.pending}
