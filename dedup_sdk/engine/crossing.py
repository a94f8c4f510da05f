"""Units that cross partitions: nobody can say in which order two partitions are read, so that such a unit is never whole."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from dedup_sdk.engine.partition import Partition
from dedup_sdk.observe import PartitionEvent
from dedup_sdk.units.gathering import CROSSES

logger = logging.getLogger("dedup_sdk")


def claims_elsewhere(name: bytes, held: Partition, all_held: Iterable[Partition]) -> bool:
    """Whether a partition other than this one has had records of a unit that has not ended there, or not with all its records."""
    return any(_first(other, name) is not None for other in all_held if other is not held)


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
        firsts = [(other, _first(other, name)) for other in all_held if other is not held]
        others = [(other, first) for other, first in firsts if first is not None]
        if not others:
            continue
        beside, first = others[0]
        detail = (
            f"unit {name.decode(errors='backslashreplace')!r} has records in {held.topic}[{held.partition}] from offset {offset} and in "
            f"{beside.topic}[{beside.partition}] from offset {first}: they are delivered one by one, as "
            "unverified; send a unit to one partition, e.g. with one key"
        )
        logger.error("%s", detail)
        for other, _ in others:
            if other.units is not None and name in other.units.units.open:
                other.fail_unit(name, CROSSES)
        events.append(PartitionEvent(CROSSES, held.topic, held.partition, offset, detail))
    return events


def _first(held: Partition, name: bytes) -> int | None:
    return None if held.units is None else held.units.units.first(name)
