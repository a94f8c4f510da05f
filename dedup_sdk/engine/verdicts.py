"""The verdicts of a partition, as they are counted and told to observers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np

from dedup_sdk.core.flight import KINDS, PARKED_KIND, Chunk, Place
from dedup_sdk.observe import Counters, Observer, VerdictEvent
from dedup_sdk.record import VerdictKind

logger = logging.getLogger("dedup_sdk")


class VerdictCounter:
    """Counts the verdicts of one partition in ``counters``; each is told to the observers when it is final."""

    def __init__(self, topic: str, partition: int, counters: Counters, observers: Sequence[Observer]) -> None:
        self._topic = topic
        self._partition = partition
        self._counters = counters
        self._observers = observers

    def count(self, chunk: Chunk) -> None:
        """Count the verdicts of a chunk; records that are held back have none."""
        totals = np.bincount(np.frombuffer(chunk.kinds, np.uint8), minlength=len(KINDS)).tolist()
        for kind, total in zip(KINDS, totals, strict=True):
            if total and kind is not VerdictKind.PARKED:
                self._counters.verdicts[kind.value] += total
        for row in chunk.reasons:
            if chunk.kinds[row] != PARKED_KIND:
                self._count_reason(chunk, row)
        if self._observers:
            for row, code in enumerate(chunk.kinds):
                if code != PARKED_KIND:
                    self._tell(chunk, row)

    def count_settled(self, settled: Iterable[Place]) -> None:
        """Count records that were held back and have their verdicts."""
        for chunk, row in settled:
            self._counters.verdicts[KINDS[chunk.kinds[row]].value] += 1
            if row in chunk.reasons:
                self._count_reason(chunk, row)
            if self._observers:
                self._tell(chunk, row)

    def uncount(self, place: Place) -> None:
        """Count a record no more that is held back again."""
        chunk, row = place
        self._counters.verdicts[KINDS[chunk.kinds[row]].value] -= 1
        if row in chunk.reasons:
            self._count_reason(chunk, row, -1)

    def _count_reason(self, chunk: Chunk, row: int, count: int = 1) -> None:
        name = f"{KINDS[chunk.kinds[row]].value}.{chunk.reasons[row]}"
        self._counters.reasons[name] = self._counters.reasons.get(name, 0) + count

    def _tell(self, chunk: Chunk, row: int) -> None:
        event = VerdictEvent(self._topic, self._partition, chunk.offsets[row], chunk.verdict(row))
        for observer in self._observers:
            try:
                observer(event)
            except Exception:
                self._counters.observer_errors += 1
                logger.exception(
                    "an observer failed at %s[%d]@%d; going on", self._topic, self._partition, event.offset
                )
