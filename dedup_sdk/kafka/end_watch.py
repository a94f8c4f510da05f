"""Whether a partition is read to the end of its log: only then a unit that is not whole is late.

That is asked of each partition by itself: others may never fall silent. Time counts where the client has come to the end as of its last fetch, where
nothing came for a while, and where it is hardly behind what its leader says now and then: in a busy log of transactions some are always open, so that the end
that fetches tell is never reached.

None of that is enough to fail a unit for good. While a broker is away, or the client's queue is full of other partitions, nothing is fetched, and the rest of the
unit may lie there. So the leader is asked, and nobody waits for the answer; without one, or before it is reached, nothing fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import ref

from dedup_sdk.kafka.assignment import Assigned
from dedup_sdk.kafka.client import EndProbe

HOLES_S: Final = 5.0
"""Seconds in which nothing comes of a partition, though more is asked for, after which it seems to be at its end; and how far behind it may be."""
COMPACTED_S: Final = 60.0
"""Seconds in which nothing comes below an end that the leader tells, after which nothing is there."""


class Ends(Protocol):
    """What is asked of the client."""

    def known_end(self, topic: str, partition: int) -> int:
        """Return the end of the log as of the last fetch, below zero before the first."""

    def probe(self, topic: str, partition: int) -> EndProbe:
        """Ask the leader for the end of what may be read."""


@dataclass(slots=True)
class _Look:
    """What was seen of a partition: where it stood when it was looked at last, since when, and since when the client has had nothing ready besides.

    ``probe`` is what its leader is asked before the units ``overdue`` fail; ``stands``: where it stood then and what the answer was, since ``stood``,
    and whether it was asked ``again``. ``mark`` is what the leader is asked to see whether it keeps up, at ``marked``; ``kept_up``: when that was asked
    which it has reached last.
    """

    assigned: ref[Assigned]
    """What has gone is not kept for having been looked at: all that it had in memory would be."""
    coordinates: tuple[str, int]
    position: int = -1
    looked: float = 0.0
    since: float = 0.0
    dry_since: float = 0.0
    probe: EndProbe | None = None
    overdue: frozenset[bytes] = frozenset()
    stands: tuple[int, int] = (-1, -1)
    stood: float = 0.0
    again: bool = False
    mark: EndProbe | None = None
    marked: float = float("-inf")
    kept_up: float = float("-inf")


class EndWatch:
    """Watches the ends of the logs that one consumer reads."""

    def __init__(self, client: Ends, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._looks: dict[tuple[str, int], _Look] = {}

    def is_reached(self, assigned: Assigned, position: int, *, dry: bool) -> bool:
        """Whether there seems to be nothing more to read behind ``position``; ``dry``: the client has nothing ready, of any partition.

        ``position``: before it is nothing that was not read, be it a record or a marker of a transaction.
        """
        if not assigned.is_fetched or assigned.stopped:
            return False
        look, now = self._look(assigned), self._clock()
        if look.position != position or now - look.looked > HOLES_S:
            # In a time in which nobody looked nothing was asked for.
            look.since = look.dry_since = now
        elif not dry:
            look.dry_since = now
        look.position, look.looked = position, now
        end = self._client.known_end(assigned.topic, assigned.partition)
        return 0 <= end <= position or now - look.since >= HOLES_S or self._keeps_up(look, position, now)

    def _keeps_up(self, look: _Look, position: int, now: float) -> bool:
        """Whether everything is read that the leader had a few seconds ago."""
        if look.mark is None and now - look.marked >= HOLES_S / 2:
            look.mark, look.marked = self._ask(look), now
        if look.mark is not None and look.mark.is_over:
            end = look.mark.end
            if end is None or end <= position:
                look.mark, look.kept_up = None, look.kept_up if end is None else look.marked
        return now - look.kept_up < HOLES_S

    def late(self, assigned: Assigned, position: int, overdue: Collection[bytes]) -> set[bytes]:
        """Return which of these units may fail: all that lay in the log when they were overdue is read. To be asked again and again.

        ``position``: as of `is_reached`.
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
        """Whether there are no records up to the end that the leader has told: the log was compacted.

        It has to be told twice, and nothing to have come in between, though the client had nothing ready, of any partition, and was free to fetch.
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
