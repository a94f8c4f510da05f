"""Where the units of a partition end, found before any of them is folded.

A cut must not lie inside one, and a unit that never ends is not waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dedup_sdk._units.assembler import UnitAssembler, UnitStatus
from dedup_sdk._units.keys import UnitKeys
from dedup_sdk._units.ranges import MOST_HELD_BACK


class Ends(NamedTuple):
    """``cut``: the offset below which a snapshot may end.

    ``unfinished``: the offsets below it of records whose unit does not end before it. ``failed``: the last offset of a
    record of a unit that is malformed or too large; None where none is.
    """

    cut: int
    unfinished: frozenset[int]
    failed: int | None = None


class UnitEnds:
    """Takes the unit keys of a partition in offset order.

    In memory are the units that are open, and those that ended a while ago.
    """

    def __init__(self, keys: UnitKeys) -> None:
        self._keys = keys
        self._units = UnitAssembler(keys.unit.records)
        self._over: list[tuple[int, int]] = []
        self._next_tidy = 0
        self._failed: int | None = None

    def add(self, offsets: Sequence[int], keys: Sequence[bytes]) -> None:
        """Take some records."""
        for row, member in self._keys.members_of(keys).items():
            if not member.name:
                continue
            offset = offsets[row]
            status, unit, _ = self._units.take(member, offset, None, 0)
            if status is UnitStatus.WHOLE and unit is not None and unit.offsets[0] < offset:
                self._over.append((offset, unit.offsets[0]))
            elif status in (UnitStatus.FAILED, UnitStatus.LATE):
                self._failed = offset
        if offsets[-1] >= self._next_tidy:
            self._over = [(end, first) for end, first in self._over if end >= offsets[-1] - MOST_HELD_BACK]
            self._next_tidy = offsets[-1] + MOST_HELD_BACK

    def finish(self, high: int) -> Ends:
        """Say where a snapshot of the rows that came may end, at ``high`` or a little before it.

        A unit that is open there may end behind it, and lies there as a whole; as the watermark of a consumer
        does, the cut stays outside those that are whole, too. One that has been open for longer has failed, and so
        have all where the cut would lie too far back.
        """
        least = high - MOST_HELD_BACK
        begun = [unit.offsets[0] for unit in self._units.open.values()]
        cut = min([high, *(first for first in begun if first >= least)])
        for end, first in sorted(self._over, reverse=True):
            if first < cut <= end:
                cut = first
        if cut < least:
            cut = high
        return Ends(
            cut,
            frozenset(
                offset
                for unit in self._units.open.values()
                if unit.offsets[0] < cut
                for offset in unit.offsets
            ),
            self._failed,
        )
