"""Whether a partition is read to the end of its log, so that time may count against records that have not come.

A gate may wait for records, e.g. for the rest of a unit. It may give them up after some time, but only if they are not
in the log: a slow consumer must not turn a complete unit into an incomplete one. So its time counts only while the
partition is read to the end. Each partition is looked at by itself, because others may never be read to their end.

A partition seems to be read to its end if one of three is true: its position is the end that the last fetch returned;
nothing has come for `HOLES_S`; or it has reached an end that the leader returned a few seconds ago (in a busy log of
transactions some are always open, so the end that a fetch returns is never reached).

None of that is enough to give something up for good. While a broker is away, or the client's queue is full of other
partitions, nothing is fetched, and the missing records may be in the log. So the leader is asked first
(`LogEnds.late`). The answer is not waited for. Nothing is given up without an answer, or before that offset is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import ref

from dedup_sdk._engine.partition import Partition
from dedup_sdk._kafka.assign.assignment import Assigned
from dedup_sdk._kafka.client.client import EndProbe

HOLES_S: Final = 5.0
"""Seconds without a record, though more was asked for, after which a partition seems to be read to its end.

Also the age of the leader's answer up to which a partition that has reached that offset keeps up."""
COMPACTED_S: Final = 60.0
"""Seconds without a record below an end that the leader told, after which only holes are left there."""


class EndSource(Protocol):
    """The client's part: where a log ends."""

    def known_end(self, topic: str, partition: int) -> int:
        """Return the end of the log as of the last fetch, below zero before the first."""

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Ask the leader for the end of what may be read."""


@dataclass(slots=True)
class _Look:
    """The last look at one partition; times are monotonic seconds."""

    assigned: ref[Assigned]
    """Weak: a look must not keep a closed partition, and all its records, in memory."""
    coordinates: tuple[str, int]
    position: int = -1
    """The position at the last look."""
    looked: float = 0.0
    """The time of the last look."""
    since: float = 0.0
    """The position has not changed since then."""
    dry_since: float = 0.0
    """The client has had no message ready since then."""
    probe: EndProbe | None = None
    """The request to the leader that decides on the names in ``overdue``."""
    overdue: frozenset[bytes] = frozenset()
    stands: tuple[int, int] = (-1, -1)
    """The position, and the leader's answer, at the last look at ``probe``."""
    stood: float = 0.0
    """Neither of them has changed since then."""
    again: bool = False
    """The request was repeated."""
    mark: EndProbe | None = None
    """A request to the leader that shows whether the partition keeps up."""
    marked: float = float("-inf")
    """The time of that request."""
    kept_up: float = float("-inf")
    """The time of the newest such request whose end offset is read by now."""


class LogEnds:
    """The ends of the logs that one consumer reads."""

    def __init__(self, client: EndSource, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._looks: dict[tuple[str, int], _Look] = {}

    def tick(self, assigned: Assigned, partition: Partition, position: int, *, dry: bool) -> None:
        """Tell a partition the time, and whether it is read to its end; have it give up names that are late.

        ``position`` and ``dry`` as in `is_reached`.
        """
        at_end = self.is_reached(assigned, position, dry=dry)
        overdue = partition.tick(at_end=at_end)
        for name in self.late(assigned, position, overdue) if overdue else ():
            partition.give_up(name)

    def is_reached(self, assigned: Assigned, position: int, *, dry: bool) -> bool:
        """Whether there seems to be nothing more to read from ``position`` on.

        Everything before ``position`` is read, be it a record or a marker of a transaction. ``dry``: the client has no
        message ready, of any partition.
        """
        if not assigned.is_fetched or assigned.stopped:
            return False
        look, now = self._look(assigned), self._clock()
        if look.position != position or now - look.looked > HOLES_S:
            # Nobody asked for messages while nobody looked.
            look.since = look.dry_since = now
        elif not dry:
            look.dry_since = now
        look.position, look.looked = position, now
        end = self._client.known_end(assigned.topic, assigned.partition)
        return 0 <= end <= position or now - look.since >= HOLES_S or self._keeps_up(look, position, now)

    def _keeps_up(self, look: _Look, position: int, now: float) -> bool:
        """Whether everything is read that the log contained a few seconds ago."""
        if look.mark is None and now - look.marked >= HOLES_S / 2:
            look.mark, look.marked = self._ask(look), now
        if look.mark is not None and look.mark.is_over:
            end = look.mark.end
            if end is None or end <= position:
                look.mark, look.kept_up = None, look.kept_up if end is None else look.marked
        return now - look.kept_up < HOLES_S

    def late(self, assigned: Assigned, position: int, overdue: Collection[bytes]) -> set[bytes]:
        """Return the overdue names that may be given up: everything in the log when they became overdue is read.

        Call it again until it returns them. ``position`` as in `is_reached`.
        """
        look = self._look(assigned)
        if look.probe is None or look.overdue.isdisjoint(overdue):
            look.probe, look.overdue = self._ask(look), frozenset(overdue)
        if not look.probe.is_over:
            return set()
        end = look.probe.end
        if end is not None and position < end and not self._are_holes(look, position, end):
            return set()
        look.probe = None
        return set() if end is None else set(look.overdue.intersection(overdue))

    def _are_holes(self, look: _Look, position: int, end: int) -> bool:
        """Whether there are no records up to the end that the leader told: the log was compacted there.

        The leader must tell it twice. In between no record may have come, although the client had no message ready and
        was free to fetch.
        """
        now = self._clock()
        if look.stands != (position, end) or look.dry_since > look.stood:
            look.stands, look.stood, look.again = (position, end), now, False
        elif look.again:
            return True
        elif now - look.stood >= COMPACTED_S:
            look.probe, look.again = self._ask(look), True
        return False

    def _ask(self, look: _Look) -> EndProbe:
        return self._client.probe(*look.coordinates)

    def _look(self, assigned: Assigned) -> _Look:
        coordinates = assigned.topic, assigned.partition
        look = self._looks.get(coordinates)
        if look is None or look.assigned() is not assigned:
            look = self._looks[coordinates] = _Look(ref(assigned), coordinates)
        return look
