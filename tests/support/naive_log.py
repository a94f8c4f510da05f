"""The rule in the plainest way: every record and how it ended, kept in a list and read again for every question.

Nothing here is taken from the code under test: it follows the words of the rule. A record that bears the ID of one in
flight waits; one that ends, by its handler or by a dead letter, leaves a mark; a duplicate moves the mark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple


class End(Enum):
    """How a record stands."""

    OPEN = "in flight, or waiting"
    HANDLED = "handled, or dead-lettered"
    DUPLICATE = "judged a duplicate"


@dataclass(slots=True)
class Entry:
    """One record of the log: ``ident`` None has no ID; ``doubtful`` was delivered as unverified."""

    offset: int
    ident: str | None
    timestamp_ms: int
    end: End = End.OPEN
    doubtful: bool = False


class Sighting(NamedTuple):
    """The history of an ID in the log: its last completed record, and the rank of its last accepted one."""

    offset: int
    timestamp_ms: int
    number: int


def in_window(
    timestamp_ms: int, seen: Sighting, accepted: int, *, time_ms: int | None, count: int | None
) -> bool:
    """Whether a record of that time is a duplicate of the one seen before; ``accepted``: IDs accepted before it."""
    in_time = time_ms is None or timestamp_ms - seen.timestamp_ms <= time_ms
    return in_time and (count is None or accepted - seen.number < count)


@dataclass(slots=True)
class Reading:
    """The duplicates and IDs of a log, read from its beginning.

    ``duplicates`` has the original of every duplicate, by offset; ``seen`` the last sighting of each ID.
    """

    duplicates: dict[int, Sighting] = field(default_factory=dict)
    seen: dict[str, Sighting] = field(default_factory=dict)
    accepted: int = 0


def read_log(log: Iterable[Entry], time_ms: int | None, count: int | None) -> Reading:
    """Read a log in offset order; a record delivered in doubt was accepted."""
    reading = Reading()
    seen = reading.seen
    for entry in sorted(log, key=lambda entry: entry.offset):
        if entry.ident is None:
            continue
        sighting = seen.get(entry.ident)
        known = sighting and in_window(
            entry.timestamp_ms, sighting, reading.accepted, time_ms=time_ms, count=count
        )
        if sighting and known and not entry.doubtful:
            reading.duplicates[entry.offset] = sighting
            seen[entry.ident] = Sighting(entry.offset, entry.timestamp_ms, sighting.number)
        else:
            reading.accepted += 1
            seen[entry.ident] = Sighting(entry.offset, entry.timestamp_ms, reading.accepted)
    return reading


def first_open(log: list[Entry]) -> int:
    """Return the offset that may be committed.

    That of the first record that is not over, else the one after the last.
    """
    still_open = [entry.offset for entry in log if entry.end is End.OPEN]
    return min(still_open) if still_open else max(entry.offset for entry in log) + 1
