"""What a partition in hand is doing, and what stands in its way: for people, dashboards and the line after a rebalance."""

from __future__ import annotations

from collections.abc import Iterator

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.engine.partition import Partition
from dedup_sdk.kafka.assignment import Assigned, State
from dedup_sdk.observe import Hindrance, PartitionStatus


def status_of(assigned: Assigned, engine: Deduplicator) -> PartitionStatus:
    """Return the status of one partition; a few look-ups, no question to a broker or a disk."""
    held = engine.partitions.get((assigned.topic, assigned.partition))
    begun = held if held is not None and held.started else None
    return PartitionStatus(
        topic=assigned.topic,
        partition=assigned.partition,
        state=assigned.state.value,
        hindrances=tuple(_hindrances(assigned, held)),
        position=None if begun is None else begun.flight.position,
        in_flight=0 if begun is None else begun.flight.in_flight,
        effective_window_ms=None if begun is None else begun.writer.effective_window_ms,
        detail=assigned.note,
    )


def _hindrances(assigned: Assigned, held: Partition | None) -> Iterator[Hindrance]:
    if assigned.state is State.RECOVERING:
        yield from _waits_for(assigned)
    choked = held is not None and held.writer.choked
    if choked or assigned.waits_for == "store":
        yield "store"
    if assigned.full and not choked and not (held is not None and held.stands_still):
        yield "backlog"
    for gate in () if held is None else held.gates:
        yield from gate.hindrances()
    if assigned.given_up:
        yield "failed"
    if assigned.uncompleted:
        yield "uncompleted"
    if assigned.user_paused:
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
