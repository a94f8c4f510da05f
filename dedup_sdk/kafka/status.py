"""What a partition in hand is doing, and what stands in its way: for people, dashboards and the line after a rebalance."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from dedup_sdk.core.flight import Flight
from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.assignment import Assigned, Pause, State
from dedup_sdk.observe import Hindrance, PartitionStatus

logger = logging.getLogger("dedup_sdk")

MANY = 10_000
"""Records in flight after which it is news that nothing was completed yet."""


def note_uncompleted(assigned: Assigned, flight: Flight, most_waiting: int) -> None:
    """Note whether much was handed out and nothing ever came back, of a partition that only the user's offsets complete.

    The log says it once. ``most_waiting``: the records at which the partition will be paused.
    """
    start = flight.low if assigned.start is None else assigned.start.offset
    if assigned.note_uncompleted(flight.high <= start and flight.in_flight >= MANY):
        logger.warning(
            "%s[%d]: %d records are in flight, and nothing was completed since offset %d: here only commit(), store_offsets() and "
            "complete() complete; a transaction's offsets, or offsets kept elsewhere, do not. At %d the partition is paused; call "
            "store_offsets() for what is handled",
            assigned.topic, assigned.partition, flight.in_flight, start, most_waiting,
        )  # fmt: skip


def status_of(assigned: Assigned, engine: Deduplicator) -> PartitionStatus:
    """Return the status of one partition; a few look-ups, no question to a broker or a disk."""
    held = engine.partitions.get((assigned.topic, assigned.partition))
    begun = held if held is not None and held.started else None
    return PartitionStatus(
        topic=assigned.topic,
        partition=assigned.partition,
        state="recovering" if assigned.recovers else assigned.state.value,
        hindrances=tuple(_hindrances(assigned, held)),
        position=None if begun is None else begun.flight.position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=assigned.note,
    )


def _hindrances(assigned: Assigned, held: Partition | None) -> Iterator[Hindrance]:
    if assigned.recovers:
        yield from _waits_for(assigned)
    choked = held is not None and held.writer.choked
    if choked or assigned.waits_for == "store":
        yield "store"
    if Pause.BACKLOG in assigned.pauses:
        yield "backlog"
    for gate in () if held is None else held.gates:
        yield from gate.hindrances()
    if assigned.state is State.FAILED:
        yield "failed"
    if assigned.uncompleted:
        yield "uncompleted"
    if Pause.USER in assigned.pauses:
        yield "paused"
    if held is not None and held.started and assigned.held is not None and not held.covered:
        yield "uncovered"


def _waits_for(assigned: Assigned) -> Iterator[Hindrance]:
    if assigned.start is None:
        yield "offsets"
    if assigned.waits_for is not None and assigned.waits_for != "store":
        yield assigned.waits_for
    if assigned.held is not None:
        yield "beginning"
