"""Units that are no longer waited for, because too much came behind them: said once a minute and partition, not once a unit."""

from __future__ import annotations

import logging
from typing import Final

from dedup_sdk.lane import unit_lane

logger = logging.getLogger("dedup_sdk")

QUIET_MS: Final = 60_000
"""Milliseconds between two lines on one partition, at least."""


class Crowding:
    """What is said of the units of one partition; ``where`` names it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._unsaid = 0
        self._quiet_until_ms = 0

    def note(self, lane: unit_lane.UnitLane, now_ms: int) -> None:
        """Take out of the lane what failed so; say it, if nothing was said lately."""
        crowded, lane.crowded = lane.crowded, []
        self._unsaid += len(crowded)
        if not crowded or now_ms < self._quiet_until_ms:
            return
        unit, (name, offset) = lane.keys.unit, crowded[0]
        among = f" (one of {self._unsaid:,} since this was said last)" if self._unsaid > 1 else ""
        logger.warning(
            "%s: unit %r, begun at offset %d, is no longer waited for%s: more than %s records, or %s MB, came since, all of them in memory for "
            "it; it is delivered record by record, as unverified. Have its producer end it, or raise Unit(records=%d, megabytes=%d)",
            self._where, name.decode(errors="backslashreplace"), offset, among, f"{unit_lane.MOST_OPEN + unit.records:,}", f"{unit.megabytes:,}",
            unit.records, unit.megabytes,
        )  # fmt: skip
        self._unsaid = 0
        self._quiet_until_ms = now_ms + QUIET_MS
