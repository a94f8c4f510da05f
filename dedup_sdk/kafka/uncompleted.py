"""A loop that never completes anything, because its offsets go elsewhere: said before its partition is paused."""

from __future__ import annotations

import logging

from dedup_sdk.core.flight import Flight
from dedup_sdk.kafka.assignment import Assigned

logger = logging.getLogger("dedup_sdk")

MANY = 10_000
"""Records in flight after which it is news that nothing was completed yet."""


def note_uncompleted(assigned: Assigned, flight: Flight, most_waiting: int) -> None:
    """Note whether much was handed out and nothing ever came back, of a partition that only the user's offsets complete.

    The log says it once. ``most_waiting``: the records at which the partition will be paused.
    """
    start = flight.low if assigned.start is None else assigned.start.offset
    before = assigned.uncompleted
    assigned.uncompleted = flight.high <= start and flight.in_flight >= MANY
    if assigned.uncompleted and not before:
        logger.warning(
            "%s[%d]: %d records are in flight, and nothing was completed since offset %d: here only commit(), store_offsets() and "
            "complete() complete; a transaction's offsets, or offsets kept elsewhere, do not. At %d the partition is paused; call "
            "store_offsets() for what is handled",
            assigned.topic, assigned.partition, flight.in_flight, start, most_waiting,
        )  # fmt: skip
