"""What a lane still has in memory of records when all of them are over: nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dedup_sdk.lane.last_lane import LastLane

if TYPE_CHECKING:
    from dedup_sdk.lane.maker import AnyLane


def kept(lane: AnyLane) -> list[int]:
    """How many are in each place."""
    left = [len(lane.parked), len(lane.undecided), len(lane.recent.behind), lane.in_flight, lane.unwritten]
    if isinstance(lane, LastLane):
        tracks = lane.tracks.values()
        left += [
            len(lane.waiting),
            len(lane.sightings.flying),
            sum(len(each.flying) + each.pending for each in tracks),
        ]
    if lane.ring is not None:
        left += [len(lane.ring._pending), len(lane.ring._unnumbered)]
    return left
