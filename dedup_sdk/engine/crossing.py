"""Units that cross partitions: nobody can say in which order two partitions are read, so that such a unit is never whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dedup_sdk.engine.partition import Partition
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.units.gathering import CROSSES

logger = logging.getLogger("dedup_sdk")


def claims_elsewhere(name: bytes, held: Partition, all_held: Iterable[Partition]) -> bool:
    """Whether a partition other than this one has records of a unit that is open, or failed because it crosses partitions."""
    return any(_claims(other, name) for other in all_held if other is not held)


def fail_crossing(held: Partition, all_held: Iterable[Partition]) -> list[PartitionEvent]:
    """Let units of which a partition has had records fail in the others that claim them; return an event for each.

    No exception: a producer that does so would stop its consumers for good, and every record is delivered all the same.
    """
    events: list[PartitionEvent] = []
    lane = held.units
    crossed: dict[bytes, int] = {}
    if lane is not None and lane.units.crossed:
        crossed, lane.units.crossed = lane.units.crossed, {}
    for name, offset in crossed.items():
        others = [other for other in all_held if other is not held and _claims(other, name)]
        if not others:
            continue
        detail = (
            f"unit {name.decode(errors='backslashreplace')!r} has records in {held.topic}[{held.partition}] from offset {offset} and in "
            f"{others[0].topic}[{others[0].partition}] from offset {_first(others[0], name)}: they are delivered one by one, as "
            "unverified; send a unit to one partition, e.g. with one key"
        )
        logger.error("%s", detail)
        for other in others:
            if other.units is not None and name in other.units.units.open:
                other.fail_unit(name, CROSSES)
        events.append(PartitionEvent(CROSSES, held.topic, held.partition, offset, detail))
    return events


def _claims(held: Partition, name: bytes) -> bool:
    return held.units is not None and held.units.units.claims(name)


def _first(held: Partition, name: bytes) -> int:
    """Return the offset of the first record that a partition has of a unit that it claims."""
    if held.units is None:
        return -1
    units = held.units.units
    return units.open[name].offsets[0] if name in units.open else units.failed[name].first
