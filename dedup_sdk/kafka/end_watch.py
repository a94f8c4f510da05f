"""Whether a partition is read to the end of its log: only then a unit that is not whole is late.

The client knows the end as of its last fetch. That is not enough to fail a unit for good: while a broker is away nothing is fetched, and the rest
of the unit may lie there. So its leader is asked, and nobody waits for the answer; without one nothing fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.kafka.questions import Knock
from dedup_sdk.kafka.reading import is_fetched

HOLES_S: Final = 5.0
"""Seconds in which nothing comes, though more is asked for, after which what lies below the end is no record: markers of transactions."""


class Ends(Protocol):
    """What is asked of the client."""

    def known_end(self, topic: str, partition: int) -> int:
        """Return the end of the log as of the last fetch, below zero before the first."""

    def knock(self, topic: str, partition: int) -> Knock:
        """Ask the leader for the end."""


@dataclass(slots=True)
class _Look:
    """What was seen of a partition: where it stood, since when it does, and what its leader said when it stood at ``asked_at``."""

    assigned: Assigned
    stands: tuple[int, int] = (-1, -1)
    since: float = 0.0
    knock: Knock | None = None
    asked_at: tuple[int, int] = (-1, -1)


class EndWatch:
    """Watches the ends of the logs that one consumer reads."""

    def __init__(self, client: Ends, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._looks: dict[tuple[str, int], _Look] = {}

    def is_reached(self, assigned: Assigned, position: int, *, dry: bool) -> bool:
        """Whether there seems to be nothing more to read behind ``position``; ``dry``: the client has nothing ready, of any partition."""
        if not is_fetched(assigned) or assigned.stopped:
            return False
        look, now = self._look(assigned), self._clock()
        end = self._client.known_end(assigned.topic, assigned.partition)
        if not dry or look.stands != (position, end):
            look.stands, look.since = (position, end), now
        return 0 <= end <= position or now - look.since >= HOLES_S

    def is_confirmed(self, assigned: Assigned, position: int) -> bool | None:
        """Whether the leader says that nothing lies behind ``position``; None while it has not answered, and is asked again.

        An end that is answered twice, and to which nothing leads in between, has no records before it.
        """
        look = self._look(assigned)
        if look.knock is None:
            look.knock = self._client.knock(assigned.topic, assigned.partition)
        if not look.knock.is_over:
            return None
        end, look.knock = look.knock.end, None
        if end is None:
            return None
        before, look.asked_at = look.asked_at, (position, end)
        return end <= position or before == look.asked_at

    def _look(self, assigned: Assigned) -> _Look:
        coordinates = assigned.topic, assigned.partition
        look = self._looks.get(coordinates)
        if look is None or look.assigned is not assigned:
            look = self._looks[coordinates] = _Look(assigned)
        return look
