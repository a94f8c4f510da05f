"""A unit all of whose records have come, and the notes of a chunk with records of units."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

from dedup_sdk._core.flight import Chunk, RecordRef
from dedup_sdk._decision import Mark


class CompleteUnit:
    """A unit all of whose records have come.

    ``places`` are its records in offset order, the last of them its end; ``digests`` its IDs, each once, in the
    order of their first records. ``stored`` are the marks that the store had of them when it became whole. ``left``
    counts the records that the application has not ended; ``sized``: one of its records said how many it has, so
    that none is missing. ``marked`` are the IDs that it leaves a mark of, ``accepted`` those of them that take a
    number.
    """

    __slots__ = ("accepted", "digests", "left", "marked", "places", "sized", "stored")

    def __init__(
        self, places: list[RecordRef], digests: list[bytes], stored: Mapping[bytes, Mark], *, sized: bool
    ) -> None:
        self.places = places
        self.digests = digests
        self.stored = stored
        self.left = 0
        self.marked: list[bytes] = []
        self.accepted: list[bytes] = []
        self.sized = sized

    def accept(self, digests: list[bytes]) -> None:
        """Note that these of its IDs are accepted, and that it leaves a mark of each ID."""
        self.marked, self.accepted = self.digests, digests

    def offer(self) -> None:
        """Note that the application gets one more of its records."""
        self.left += 1

    def end_one(self) -> bool:
        """Note that the application has ended one of its records; return whether it was the last."""
        self.left -= 1
        return not self.left

    @property
    def first(self) -> int:
        """The offset of its first record."""
        return self.places[0].offset

    @property
    def end(self) -> int:
        """The offset at which it is judged and remembered."""
        return self.places[-1].offset

    @property
    def end_ms(self) -> int:
        """The timestamp (ms) with which it is judged and remembered."""
        chunk, row = self.places[-1]
        return int(chunk.timestamps[row])


class UnitNotes:
    """``units`` has, by row, the unit of a record once that was accepted.

    ``gathered``: the rows that end with a unit.
    """

    __slots__ = ("gathered", "units")

    def __init__(self) -> None:
        self.units: dict[int, CompleteUnit] = {}
        self.gathered: set[int] = set()

    def join_unit(self, row: int) -> None:
        """Note that a record ends with its unit."""
        self.gathered.add(row)

    def leave_unit(self, row: int) -> None:
        """Note that a record ends alone, after all: its unit has failed."""
        self.gathered.discard(row)

    def accept(self, row: int, unit: CompleteUnit) -> None:
        """Note the unit of a record, which is accepted."""
        self.units[row] = unit


_NONE: Final[Mapping[int, CompleteUnit]] = MappingProxyType({})


def units_of(chunk: Chunk) -> Mapping[int, CompleteUnit]:
    """Return the accepted units of a chunk, by row."""
    return chunk.notes.units if isinstance(chunk.notes, UnitNotes) else _NONE


def gathered_of(chunk: Chunk) -> Collection[int]:
    """Return the rows of a chunk that end with a unit."""
    return chunk.notes.gathered if isinstance(chunk.notes, UnitNotes) else ()


def notes_of(chunk: Chunk) -> UnitNotes:
    """Return the notes of a chunk with records of units."""
    if not isinstance(chunk.notes, UnitNotes):
        raise TypeError(f"records from {chunk.offsets[0]} belong to no unit")
    return chunk.notes
