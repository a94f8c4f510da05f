"""The units that are open: their records, and when one is whole or has failed.

It knows names and counts, but no IDs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import Any, Final

from dedup_sdk._units.keys import Member

MOST_FAILED: Final = 10_000
"""So many failed units are known by name; for late records of any other the unit is waited for anew."""

UNFINISHED: Final = "unit-unfinished"
"""It took too long, or has too many records."""
MALFORMED: Final = "unit-malformed"
"""Its records contradict each other on its end, or say a size that is none."""
CROSSES: Final = "unit-crosses"
"""It has records in another partition, too."""


class UnitStatus(Enum):
    """The effect of a record on its unit."""

    WAITS = 0
    WHOLE = 1
    FAILED = 2
    """It cannot become whole: this record says so, or is one too many."""
    LATE = 3
    """It had failed before."""


@dataclass(slots=True)
class OpenUnit:
    """A unit that is open, or was: ``items`` are its records as they were given, ``offsets`` their offsets.

    ``since_ms``: see `UnitAssembler`.
    """

    name: bytes
    since_ms: int
    size: int | None = None
    offsets: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    reason: str = UNFINISHED
    begun_at: tuple[int, int] = (0, 0)
    """How many records, and bytes, had come before it; see `UnitAssembler.note_came`."""


@dataclass(slots=True)
class Failed:
    """A unit whose records end one by one; ``over``: all of them that came had been completed before.

    ``since_ms``: when it failed, or when its last record came; see `UnitAssembler`. ``lately``: that was not long
    ago.
    """

    reason: str
    size: int | None
    count: int
    since_ms: int
    first: int
    over: bool = False
    lately: bool = True


class UnitAssembler:
    """The units of one partition; ``records`` is the most that one may have.

    Its time (``since_ms``) is the time in which there was nothing more to read, as `note_time` says: a unit that
    lies whole in the topic is not late because reading it takes long. Units of which another partition has records
    fail, as `ask_elsewhere` says, until `take_crossed`. ``short`` are those that ended lately with fewer records
    than they said: here the name is free, but the others may lie elsewhere.
    """

    def __init__(self, records: int) -> None:
        self.open: dict[bytes, OpenUnit] = {}
        self.failed: dict[bytes, Failed] = {}
        self.short: dict[bytes, Failed] = {}
        self._elsewhere: Callable[[bytes], bool] = _nowhere
        self._crossed: dict[bytes, int] = {}
        self._records = records
        self._came = (0, 0)
        # All three stand in the order of their time, so that a look at the oldest and the newest is enough.
        self._waited_ms = self._latest_ms = 0
        self._noted_ms: int | None = None
        self._at_end = True

    def ask_elsewhere(self, elsewhere: Callable[[bytes], bool]) -> None:
        """Ask this function from here on whether another partition has records of a unit of that name."""
        self._elsewhere = elsewhere

    def take_crossed(self) -> dict[bytes, int]:
        """Return the units that failed because another partition has records of them, and forget them.

        Each has the offset of its first record.
        """
        crossed, self._crossed = self._crossed, {}
        return crossed

    def note_time(self, now_ms: int, *, at_end: bool) -> None:
        """Note the time, and whether there is nothing more to read.

        The time since the last call counts only where there was nothing more to read in both.
        """
        if at_end and self._at_end:
            self._waited_ms += self._since_noted(now_ms)
        self._noted_ms, self._at_end = now_ms, at_end
        # Units begun in a time that does not count.
        for known in self._newest_first():
            for each in known:
                # All others are older, and began in time that counts.
                if each.since_ms <= self._waited_ms:
                    break
                each.since_ms = self._waited_ms
        self._latest_ms = self._waited_ms

    def note_came(self, records: int, size: int) -> None:
        """Count records that came, and their bytes, for the backlog of every open unit; not needed while none is open.

        They are counted as they come, not by offsets: holes in the log take no memory.
        """
        self._came = self._came[0] + records, self._came[1] + size

    def overflowing(self, most_records: int, most_bytes: int) -> bytes | None:
        """Return the name of the oldest open unit if more than this has come since it began, which all waits for it.

        Else None.
        """
        # They stand in the order of their first records.
        oldest = next(iter(self.open.values()), None)
        if oldest is None:
            return None
        records, size = (now - then for now, then in zip(self._came, oldest.begun_at, strict=True))
        return oldest.name if records > most_records or size > most_bytes else None

    def _since_noted(self, now_ms: int) -> int:
        """Return the time that has gone by; a clock that was set back does not extend the life of a unit."""
        if self._noted_ms is None:
            self._noted_ms = now_ms
        return max(0, now_ms - self._noted_ms)

    def _newest_first(self) -> list[Iterator[OpenUnit | Failed]]:
        return [reversed(self.open.values()), reversed(self.failed.values()), reversed(self.short.values())]

    def _now(self, now_ms: int) -> int:
        # Never back, even if the clock is: all three tables stand in the order of this time.
        self._latest_ms = max(self._latest_ms, self._waited_ms + self._since_noted(now_ms))
        return self._latest_ms

    @property
    def waits(self) -> bool:
        """Whether time matters: a unit is open, or failed and known by name."""
        return bool(self.open or self.failed or self.short)

    def first(self, name: bytes) -> int | None:
        """Return the offset of the first record here of a unit that has not ended, or not with all its records.

        Else None.

        A record of it elsewhere makes it cross partitions. A unit that was completed before may have been whole, and
        of one that failed in a fold nobody knows how long ago that was, so that the name may be another unit's
        there.
        """
        if name in self.open:
            return self.open[name].offsets[0]
        failed = self.failed.get(name, self.short.get(name))
        return failed.first if failed is not None and failed.lately and not failed.over else None

    def take(
        self, member: Member, offset: int, item: Any, now_ms: int
    ) -> tuple[UnitStatus, OpenUnit | None, str]:
        """Take a record in; return the effect on its unit, the unit, and the reason where it has failed."""
        failed = self.failed.get(member.name)
        if failed is not None:
            failed.over, failed.lately, failed.since_ms = False, True, self._now(now_ms)
            if not self._count_late(member, failed):
                self._note(self.failed, member.name, failed)
            return UnitStatus.LATE, None, failed.reason
        unit = self.open.get(member.name)
        if unit is None:
            unit = self.open[member.name] = OpenUnit(member.name, self._now(now_ms), begun_at=self._came)
            # The name begins anew: the short unit was another one.
            self.short.pop(member.name, None)
        unit.offsets.append(offset)
        unit.items.append(item)
        count = len(unit.offsets)
        contradicts = member.malformed or (None not in (member.size, unit.size) and member.size != unit.size)
        unit.size = member.size if unit.size is None else unit.size
        # Asked once a unit: a later record elsewhere asks there, and finds this one.
        if count == 1 and self._elsewhere(member.name):
            self.fail(unit.name, CROSSES, now_ms, ended=member.is_end)
            self._crossed.setdefault(unit.name, offset)
            return UnitStatus.FAILED, unit, CROSSES
        short = unit.size is not None and (count > unit.size or (member.is_end and count < unit.size))
        if contradicts or short:
            unit.reason = MALFORMED
            self.fail(unit.name, MALFORMED, now_ms, ended=member.is_end)
            if member.is_end and not contradicts and unit.size is not None and count < unit.size:
                known = Failed(MALFORMED, unit.size, count, self._now(now_ms), unit.offsets[0])
                self._note(self.short, unit.name, known)
            return UnitStatus.FAILED, unit, MALFORMED
        if member.is_end or count == unit.size:
            del self.open[member.name]
            return UnitStatus.WHOLE, unit, ""
        if count >= self._records or (unit.size or 0) > self._records:
            self.fail(unit.name, UNFINISHED, now_ms)
            return UnitStatus.FAILED, unit, UNFINISHED
        return UnitStatus.WAITS, unit, ""

    def may_end(self, members: Iterable[Member]) -> set[bytes]:
        """Return the names of open units that some of these records may make whole."""
        coming: dict[bytes, list[Member]] = {}
        for member in members:
            if member.name in self.open:
                coming.setdefault(member.name, []).append(member)
        return {name for name, more in coming.items() if self._may_end(self.open[name], more)}

    @staticmethod
    def _may_end(unit: OpenUnit, more: list[Member]) -> bool:
        sizes = [size for size in (unit.size, *(member.size for member in more)) if size is not None]
        return any(member.is_end for member in more) or any(
            len(unit.offsets) + len(more) >= size for size in sizes
        )

    def fail(self, name: bytes, reason: str, now_ms: int, *, ended: bool = False) -> OpenUnit:
        """Let an open unit fail: later records of it are late. ``ended``: nothing more will come."""
        unit = self.open.pop(name)
        unit.reason = reason
        count = len(unit.offsets)
        # More may come: without its name the rest would begin a unit, and be waited for.
        if not ended and (unit.size is None or count < unit.size):
            known = Failed(reason, unit.size, count, self._now(now_ms), unit.offsets[0])
            self._note(self.failed, name, known)
        return unit

    def note_over(self, member: Member, offset: int, now_ms: int) -> tuple[int, int] | None:
        """Note a record that was completed before.

        Return the range of its unit, where that ends here and was completed.

        The range is its first and its last offset; None elsewhere.
        """
        failed = self.failed.get(member.name)
        if failed is None:
            failed = Failed(UNFINISHED, member.size, 0, self._now(now_ms), offset, over=True)
            self._note(self.failed, member.name, failed)
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

    @staticmethod
    def _note(among: dict[bytes, Failed], name: bytes, failed: Failed) -> None:
        # Out first: a dictionary keeps the place of a name, but the order is that of time.
        among.pop(name, None)
        among[name] = failed
        while len(among) > MOST_FAILED:
            del among[next(iter(among))]

    def overdue(self, timeout_ms: int) -> list[bytes]:
        """Return the names of units begun longer ago than that.

        Forget failed ones of which nothing has come for as long.
        """
        before_ms = self._waited_ms - timeout_ms
        for known in (self.failed, self.short):
            for name in _begun_before(known, before_ms):
                del known[name]
        return _begun_before(self.open, before_ms)

    def wait_anew(self) -> None:
        """Begin the time anew in which units must become whole, and failed ones are known: a fold was before."""
        self._noted_ms = None
        self.short.clear()
        for failed in self.failed.values():
            # How long before the fold's end a unit failed, the log does not tell.
            failed.lately = False
        for known in self._newest_first():
            for each in known:
                each.since_ms = self._waited_ms
        self._latest_ms = self._waited_ms


def _begun_before(known: Mapping[bytes, OpenUnit | Failed], before_ms: int) -> list[bytes]:
    """Return the names of those begun before; they stand in the order of their time."""
    return [name for name, _ in takewhile(lambda each: each[1].since_ms < before_ms, known.items())]


def _nowhere(_name: bytes) -> bool:
    return False
