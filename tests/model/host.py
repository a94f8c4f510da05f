"""What a history asks of a consumer: the design as a model, and the engine, are both one.

A host has a disk of its own. It is assigned the one partition of the one group, reads, ends records in any order, and is
killed or stops in order. Offsets are "the next one" where they are watermarks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol

WINDOW_MS = 40


class Row(NamedTuple):
    """A record of the log: what it is called, and when."""

    ident: int
    timestamp_ms: int


class Outcome(Enum):
    """What a host says of a record."""

    FRESH = "delivered"
    DOUBTFUL = "delivered, and marked as in doubt"
    DUPLICATE = "a duplicate"
    REDELIVERED = "completed before"
    PARKED = "waits for its twin"


class Commit(NamedTuple):
    """What the group's commits say: an offset, and with our metadata where its history begins."""

    offset: int
    low: int | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Where a host begins: ``commit`` is the group's, or for a group that never committed the place where it starts.

    ``dead`` are the offsets in the dead-letter topic, ``end`` is where the log ends now, ``cut`` a number from 0 to 1
    that says how much of the history a snapshot brings.
    """

    log: list[Row]
    commit: Commit
    new: bool
    end: int
    cut: float
    dead: frozenset[int] = field(default=frozenset())


class Host(Protocol):
    """One consumer with its disk."""

    @property
    def high(self) -> int:
        """Everything before it is completed."""

    @property
    def low(self) -> int:
        """Where the stretch begins that the group has processed without a gap."""

    @property
    def complete(self) -> bool:
        """Whether the group's own history begins at ``low``."""

    def assign(self, assignment: Assignment) -> None:
        """Come up to date."""

    def admit(self, offset: int) -> Outcome:
        """Judge the next record."""

    def end(self, offset: int, *, dead: bool) -> list[tuple[int, Outcome]]:
        """Complete or dead-letter a record; return what was parked and is judged now."""

    def release(self, offset: int) -> list[int]:
        """Hand a record back; return what is offered in its place."""

    def jump(self, offset: int) -> None:
        """Go on elsewhere; nothing is in flight."""

    def note_committed(self, offset: int) -> None:
        """Remember what the group has committed."""

    def stop(self, *, killed: bool) -> None:
        """Let the partition go."""

    def lose_disk(self) -> None:
        """Forget everything."""
