"""Which lane a strategy wants."""

from __future__ import annotations

from collections.abc import Callable

from dedup_sdk.lane.lane import Lane
from dedup_sdk.lane.last_lane import LastLane
from dedup_sdk.lane.unit_lane import UnitLane
from dedup_sdk.marks import Marks
from dedup_sdk.progress import Progress
from dedup_sdk.strategy import LastId, Strategy
from dedup_sdk.units.keys import UnitKeys
from dedup_sdk.window import Window

AnyLane = Lane | LastLane


def lane_maker(strategy: Strategy, window: Window) -> Callable[[Progress, Marks], AnyLane]:
    """Return what makes a partition's lane of a progress and the recent marks beside it; ``window`` is that of its topic."""
    if isinstance(strategy, LastId):
        rule, keys = strategy.rule, strategy.keys
        second = strategy.second_window
        return lambda progress, recent: LastLane(rule, keys, progress, recent, second=second)
    unit_keys = strategy.keys
    if isinstance(unit_keys, UnitKeys) and not window.is_off:
        return lambda progress, recent: UnitLane(window, unit_keys, progress, recent)
    return lambda progress, recent: Lane(window, progress, recent)
