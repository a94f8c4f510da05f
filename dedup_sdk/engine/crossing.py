"""Units that cross partitions: nobody can say in which order two partitions are read, so that such a unit is never whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dedup_sdk.engine.partition import Partition
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.units.gathering import CROSSES

logger = logging.getLogger("dedup_sdk")


def fail_crossing(held: Partition, all_held: Iterable[Partition]) -> list[PartitionEvent]:
    """Let units fail that are open in a partition and in another one, in both; return an event for each.

    No exception: a producer that does so would stop its consumers for good, and every record is delivered all the same.
    """
    events: list[PartitionEvent] = []
    lane = held.units
    if lane is None or not lane.units.open:
        return events
    for other in all_held:
        there = other.units
        if there is None or other is held:
            continue
        for name in lane.units.open.keys() & there.units.open.keys():
            offsets = lane.units.open[name].offsets[0], there.units.open[name].offsets[0]
            detail = (
                f"unit {name.decode(errors='backslashreplace')!r} is open in {held.topic}[{held.partition}] from offset {offsets[0]} and in "
                f"{other.topic}[{other.partition}] from offset {offsets[1]}: its records are delivered one by one, as unverified; send a unit to "
                "one partition, e.g. with one key"
            )
            logger.error("%s", detail)
            for each in (held, other):
                each.fail_unit(name, CROSSES)
            events.append(PartitionEvent(CROSSES, held.topic, held.partition, offsets[0], detail))
    return events
