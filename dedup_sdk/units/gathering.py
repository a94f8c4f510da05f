"""Which units are open: what of them has come, and when one is whole or has failed. It knows names and counts, and nothing of IDs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from dedup_sdk.units.keys import Member

MOST_FAILED: Final = 10_000
"""So many failed units are known by name; what comes late of others is waited for anew."""

UNFINISHED: Final = "unit-unfinished"
"""It took too long, or has too many records."""
MALFORMED: Final = "unit-malformed"
"""Its records contradict each other on its end, or say a size that is none."""
CROSSES: Final = "unit-crosses"
"""It is open in another partition, too."""


class Standing(Enum):
    """What a record does to its unit."""

    WAITS = 0
    WHOLE = 1
    FAILED = 2
    """It cannot become whole, for what this record says or because it is one too many."""
    LATE = 3
    """It had failed before."""


@dataclass(slots=True)
class Gathered:
    """A unit that is open, or was: ``items`` are its records as they were given, ``offsets`` theirs; ``since_ms`` when it was begun."""

    name: bytes
    since_ms: int
    size: int | None = None
    offsets: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    reason: str = UNFINISHED
    given_up: bool = False
    """Whether one of its records must leave no mark."""


@dataclass(slots=True)
class Failed:
    """What is known of a unit whose records end one by one; ``over``: all that came of it had been completed before.

    ``since_ms``: when it failed, or when its last record came.
    """

    reason: str
    size: int | None
    count: int
    since_ms: int
    first: int
    over: bool = False


class Gathering:
    """The units of one partition; ``records`` is the most that one may have."""

    def __init__(self, records: int) -> None:
        self.open: dict[bytes, Gathered] = {}
        self.failed: dict[bytes, Failed] = {}
        self._records = records

    def take(
        self, member: Member, offset: int, item: Any, now_ms: int
    ) -> tuple[Standing, Gathered | None, str]:
        """Take a record in; return what that makes of its unit, the unit, and the reason where it has failed."""
        failed = self.failed.get(member.name)
        if failed is not None:
            self._count_late(member, failed)
            failed.over, failed.since_ms = False, now_ms
            return Standing.LATE, None, failed.reason
        unit = self.open.get(member.name)
        if unit is None:
            unit = self.open[member.name] = Gathered(member.name, now_ms)
        unit.offsets.append(offset)
        unit.items.append(item)
        count = len(unit.offsets)
        contradicts = member.malformed or (None not in (member.size, unit.size) and member.size != unit.size)
        unit.size = member.size if unit.size is None else unit.size
        short = unit.size is not None and (count > unit.size or (member.is_end and count < unit.size))
        if contradicts or short:
            unit.reason = MALFORMED
            self.fail(unit.name, MALFORMED, now_ms, ended=member.is_end)
            return Standing.FAILED, unit, MALFORMED
        if member.is_end or count == unit.size:
            del self.open[member.name]
            return Standing.WHOLE, unit, ""
        if count >= self._records or (unit.size or 0) > self._records:
            self.fail(unit.name, UNFINISHED, now_ms)
            return Standing.FAILED, unit, UNFINISHED
        return Standing.WAITS, unit, ""

    def may_end(self, members: Iterable[Member]) -> set[bytes]:
        """Return the names of open units that some of these records may make whole."""
        coming: dict[bytes, list[Member]] = {}
        for member in members:
            if member.name in self.open:
                coming.setdefault(member.name, []).append(member)
        return {name for name, told in coming.items() if self._may_end(self.open[name], told)}

    @staticmethod
    def _may_end(unit: Gathered, told: list[Member]) -> bool:
        sizes = [size for size in (unit.size, *(member.size for member in told)) if size is not None]
        return any(member.is_end for member in told) or any(
            len(unit.offsets) + len(told) >= size for size in sizes
        )

    def fail(self, name: bytes, reason: str, now_ms: int, *, ended: bool = False) -> Gathered:
        """Let an open unit fail: what comes of it later is late. ``ended``: nothing more will come."""
        unit = self.open.pop(name)
        unit.reason = reason
        count = len(unit.offsets)
        if not ended and (unit.size is None or count < unit.size):
            self._note(name, Failed(reason, unit.size, count, now_ms, unit.offsets[0]))
        return unit

    def note_over(self, member: Member, offset: int, now_ms: int) -> tuple[int, int] | None:
        """Note a record that was completed before; return first and last offset of its unit where all of it was, and this is its end."""
        failed = self.failed.get(member.name)
        if failed is None:
            failed = Failed(UNFINISHED, member.size, 0, now_ms, offset, over=True)
            self._note(member.name, failed)
        failed.size = member.size if failed.size is None else failed.size
        if self._count_late(member, failed) and failed.over:
            return failed.first, offset
        return None

    def _count_late(self, member: Member, failed: Failed) -> bool:
        """Count a record of a unit that has failed; True where it was the last, so that the name is free again."""
        failed.count += 1
        failed.size = member.size if failed.size is None else failed.size
        ended = member.is_end or (failed.size is not None and failed.count >= failed.size)
        if ended:
            del self.failed[member.name]
        return ended

    def _note(self, name: bytes, failed: Failed) -> None:
        self.failed[name] = failed
        while len(self.failed) > MOST_FAILED:
            del self.failed[next(iter(self.failed))]

    def overdue(self, now_ms: int, timeout_ms: int) -> list[bytes]:
        """Return the names of units begun longer ago than that, and forget those of which nothing has come for as long since they failed."""
        before_ms = now_ms - timeout_ms
        # A clock that was set back: nobody waits until it is there again.
        for unit in self.open.values():
            unit.since_ms = min(unit.since_ms, now_ms)
        for failed in self.failed.values():
            failed.since_ms = min(failed.since_ms, now_ms)
        for name in [name for name, failed in self.failed.items() if failed.since_ms < before_ms]:
            del self.failed[name]
        return [name for name, unit in self.open.items() if unit.since_ms < before_ms]

    def wait_from(self, now_ms: int) -> None:
        """Begin the time anew in which units are to become whole, and failed ones are known: nothing could come."""
        for unit in self.open.values():
            unit.since_ms = now_ms
        for failed in self.failed.values():
            failed.since_ms = now_ms
