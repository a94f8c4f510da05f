"""The calls of a history on a consumer: the design as a model, and the engine, are both one.

A host has a disk of its own. It is assigned the one partition of the one group, reads, ends records in any order,
and is killed or stops in order. Offsets are "the next one" where they are watermarks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

WINDOW_MS = 40


class Row(NamedTuple):
    """A record of the log.

    It has an ID as either of two ID specs reads it, the time when it was written, and a number that no other
    record has. An offset may be written twice, before and after a broker was restored; ``serial`` tells one record
    from the other.
    """

    idents: tuple[int, int]
    timestamp_ms: int
    serial: int


class Outcome(Enum):
    """A host's verdict on a record."""

    FRESH = "delivered"
    DOUBTFUL = "delivered, and marked as in doubt"
    DUPLICATE = "a duplicate"
    REDELIVERED = "completed before"
    HELD = "waits for its twin"
    ANOTHER_LOG = (
        "what was completed there was another record: the host reads again from its watermark, nothing is "
        "in flight"
    )


class Commit(NamedTuple):
    """A commit of the group: an offset, and the text that a host wrote beside it (None: there is none)."""

    offset: int
    text: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where a host begins: ``commit`` is the group's, or for a group that never committed the place where it starts.

    ``rule`` is the ID spec that the host goes by (0 or 1), ``end`` is where the log ends now, ``cut`` a number
    from 0 to 1 that says how much of the history a snapshot brings. ``clock`` tells the time (ms).
    """

    log: list[Row]
    commit: Commit
    new: bool
    end: int
    cut: float
    clock: Callable[[], int]
    rule: int = 0


class Host(Protocol):
    """One consumer with its disk."""

    @property
    def high(self) -> int:
        """Everything before it is completed."""

    def text(self, offset: int) -> object:
        """Return the text beside a commit of an offset up to ``high``."""

    def completed_above(self, offset: int) -> set[int]:
        """Return the offsets that the group completed at or above this one, here or elsewhere."""

    def assign(self, assignment: Assignment) -> int:
        """Come up to date; return the offset to go on at: the group's, or the disk's where the group has none."""

    def admit(self, offset: int) -> Outcome:
        """Judge the next record."""

    def end(self, offset: int, *, dead: bool) -> list[tuple[int, Outcome]]:
        """Complete or dead-letter a record; return parked records that are judged now."""

    def release(self, offset: int) -> list[int]:
        """Hand a record back; return the records offered in its place."""

    def jump(self, offset: int) -> None:
        """Go on elsewhere; nothing is in flight."""

    def note_committed(self, offset: int) -> None:
        """Remember the group's commit."""

    def stop(self, *, killed: bool) -> None:
        """Let the partition go."""

    def lose_disk(self) -> None:
        """Forget everything."""

    def rewind(self, text: object, committed: int, offset: int) -> object:
        """Return the text that `dedup rewind` writes beside ``offset`` where the group has committed ``committed``."""
