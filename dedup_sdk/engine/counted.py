"""A partition's verdicts as they are counted and told, and what a shared memory says of its records."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from dedup_sdk.engine.claiming import PartitionClaims
from dedup_sdk.engine.durable import Durable
from dedup_sdk.lane.chunk import APART, KINDS, PARKED, PARKED_KIND, Chunk, Place
from dedup_sdk.observe import Counters, Observer, VerdictEvent
from dedup_sdk.record import VerdictKind
from dedup_sdk.store.protocol import PartitionStore
from dedup_sdk.strategy import Keys
from dedup_sdk.window import Window

logger = logging.getLogger("dedup_sdk")


class Counted(Durable):
    """The half of a partition whose verdicts are seen.

    ``judged`` are the parked records that got their verdict in the last completion, duplicates included. ``due`` are those that
    got it because a unit became whole or failed, or a shared memory says so, until they are taken. ``unclaimed``: chunks that have been judged here,
    and are to be claimed there before they count.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        store: PartitionStore,
        window: Window,
        keys: Keys,
        *,
        counters: Counters,
        observers: Sequence[Observer],
        claims: PartitionClaims | None,
        bears_full_disk: bool,
    ) -> None:
        super().__init__(
            store, window, counters, where=f"{topic}[{partition}]", bears_full_disk=bears_full_disk
        )
        self.topic = topic
        self.keys = keys
        self.partition = partition
        self.claims = claims
        self.judged: list[Place] = []
        self.due: list[Place] = []
        self.unclaimed: list[Chunk] = []
        self._observers = observers

    # --- what a shared memory says ---------------------------------------------------------------------------------

    def count_claimed(self) -> None:
        """Count the records that were claimed, or wait to be."""
        claimed, self.unclaimed = self.unclaimed, []
        for chunk in claimed:
            self._count(chunk)

    def settle_claimed(self, place: Place) -> None:
        """Count a record that waited and has its verdict; it is due, where it is to be delivered."""
        self.lane.settled.append(place)
        self._settled([])
        if place.chunk.states[place.row] == APART:
            self.due.append(place)

    def uncount(self, place: Place) -> None:
        """Count a record no more that was claimed, and is to be claimed again."""
        name = KINDS[place.chunk.kinds[place.row]].value
        self._counters.verdicts[name] -= 1
        if place.row in place.chunk.reasons:
            self._counters.reasons[f"{name}.{place.chunk.reasons[place.row]}"] -= 1

    def complete_claimed(self, chunk: Chunk, rows: list[int]) -> None:
        """Complete records that were completed elsewhere."""
        self._settled(self.lane.complete(chunk, rows))

    # --- observation ---------------------------------------------------------------------------------------------

    def _count(self, chunk: Chunk) -> None:
        totals = np.bincount(np.frombuffer(chunk.kinds, np.uint8), minlength=len(KINDS)).tolist()
        for kind, total in zip(KINDS, totals, strict=True):
            if total and kind is not VerdictKind.PARKED:
                self._counters.verdicts[kind.value] += total
        for index, reason in chunk.reasons.items():
            if chunk.kinds[index] != PARKED_KIND:
                name = f"{KINDS[chunk.kinds[index]].value}.{reason}"
                self._counters.reasons[name] = self._counters.reasons.get(name, 0) + 1
        if self._observers:
            for index, code in enumerate(chunk.kinds):
                if code != PARKED_KIND:
                    self._tell(chunk, index)

    def _settled(self, offered: list[Place]) -> list[Place]:
        self.judged, self.lane.settled = self.lane.settled, []
        if self.claims is not None and offered:
            offered = self.claims.claim_promoted(self, offered)
            # What is claimed first is counted, and told of, when that is through.
            self.judged = [place for place in self.judged if place.chunk.states[place.row] != PARKED]
        for chunk, index in self.judged:
            kind = KINDS[chunk.kinds[index]].value
            self._counters.verdicts[kind] += 1
            if index in chunk.reasons:
                name = f"{kind}.{chunk.reasons[index]}"
                self._counters.reasons[name] = self._counters.reasons.get(name, 0) + 1
            if self._observers:
                self._tell(chunk, index)
        return offered

    def _tell(self, chunk: Chunk, index: int) -> None:
        event = VerdictEvent(self.topic, self.partition, chunk.offsets[index], chunk.verdict(index))
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                self._counters.observer_errors += 1
                logger.exception(
                    "an observer failed at %s[%d]@%d; going on", self.topic, self.partition, event.offset
                )
