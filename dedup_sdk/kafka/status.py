"""What a partition in hand is doing, and what stands in its way: for people, dashboards and the line after a rebalance."""

from __future__ import annotations

import logging

from dedup_sdk.core.flight import Flight
from dedup_sdk.engine.deduplicator import Deduplicator
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
        hindrances=hindrances_of(assigned, engine),
        position=None if begun is None else begun.flight.position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=assigned.note,
    )


def _of_its_recovery(assigned: Assigned) -> list[Hindrance]:
    found: list[Hindrance] = []
    if assigned.start is None:
        found.append("offsets")
    if assigned.waits_for is not None and assigned.waits_for != "store":
        found.append(assigned.waits_for)
    if assigned.held is not None:
        found.append("beginning")
    return found


def hindrances_of(assigned: Assigned, engine: Deduplicator) -> tuple[Hindrance, ...]:
    """Return what stands in a partition's way, as `PartitionStatus.hindrances` names it."""
    held = engine.partitions.get((assigned.topic, assigned.partition))
    found = _of_its_recovery(assigned) if assigned.recovers else []
    if (held is not None and held.writer.disk_full) or assigned.waits_for == "store":
        found.append("store")
    if Pause.BACKLOG in assigned.pauses:
        found.append("backlog")
    for gate in () if held is None else held.gates:
        found += gate.hindrances()
    if assigned.state is State.FAILED:
        found.append("failed")
    if assigned.uncompleted:
        found.append("uncompleted")
    if Pause.USER in assigned.pauses:
        found.append("paused")
    if held is not None and held.started and assigned.held is not None and not held.covered:
        found.append("uncovered")
    return tuple(found)
