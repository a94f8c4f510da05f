"""Handing back what waits: another consumer has its ID in flight for too long, and it is to be judged where it comes again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dedup_sdk.engine.claiming import Waiting
from dedup_sdk.engine.leasing import Leasing
from dedup_sdk.lane.chunk import Place

if TYPE_CHECKING:
    from dedup_sdk.engine.partition import Partition


class Returning(Leasing):
    """The half of a consumer's hold on a shared memory that lets records go without a verdict."""

    def take_overdue(self, partitions: Iterable[Partition], most: int) -> list[Waiting]:
        """Return what is to be handed back, at most so many, each once: until it is to `wait_on`, or its copy arrived (`hand_back`).

        It is asked for as ever meanwhile: nothing hangs on whether a copy can be sent.
        """
        with self.lock:
            if self.is_out:
                # It would be judged without the memory, which knows by now that another consumer has it.
                return []
            now, patience_s = self._clock(), self._shared.hand_back_after
            claimed = [held.claims for held in partitions if held.claims is not None]
            overdue = [each for own in claimed for each in own.overdue(now, patience_s)][:most]
            for each in overdue:
                each.is_leaving = True
            return overdue

    def wait_on(self, waiting: Waiting, pause_s: float) -> None:
        """Note that no copy arrived; that is tried again so many seconds later, at the earliest."""
        waiting.is_leaving, waiting.since = False, self._clock() + pause_s

    def hand_back(self, waiting: Waiting) -> bool:
        """End a record whose copy arrived where it is judged again; False where it waits no more: it was claimed, or went with its partition."""
        with self.lock:
            if waiting.own.left or waiting not in waiting.own.waiting:
                return False
            waiting.own.waiting.remove(waiting)
            self._tell("handed_back")
            waiting.held.end_waiting(Place(waiting.chunk, waiting.row))
            return True
