"""A partition has nothing in memory of records when all of them are over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk._core.last import LastMemory
from dedup_sdk._core.lookup import LookupMemory

if TYPE_CHECKING:
    from dedup_sdk._core.state import PartitionState


def kept(state: PartitionState) -> list[int]:
    """How many are in each place."""
    flight, memory = state.flight, state.memory
    left = [len(flight.waiting), flight.in_flight, flight.unwritten]
    if isinstance(memory, LookupMemory):
        left += [len(memory.undecided), len(memory.recent.behind)]
    if isinstance(memory, LastMemory):
        sources = memory.sources.active.values()
        left += [
            len(memory.fallback_ids.in_flight),
            sum(len(each.in_flight) + each.pending for each in sources),
        ]
    ring = memory.reach.count_window
    if ring is not None:
        left += [len(ring.pending), len(ring.unnumbered)]
    return left
