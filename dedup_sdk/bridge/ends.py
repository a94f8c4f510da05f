"""Up to where a run copies that ends by itself."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

from confluent_kafka import KafkaException

from dedup_sdk.bridge.position import Place
from dedup_sdk.kafka.refusals import text_of

log = logging.getLogger("dedup_sdk")

LOOK_EVERY_S: Final = 5.0
"""Seconds between two looks at where the logs end now."""
GONE_S: Final = 60.0
"""Seconds after which a log that no look has found is waited for no longer: a broker that was just started, or has trouble with a topic, lists it late."""


class Logs(Protocol):
    """What is asked of the source."""

    def ends_now(self, places: set[Place]) -> dict[Place, int | None]:
        """Return where these logs end, 0 where there is nothing, None where no such log is listed; raises `KafkaException`."""

    def reached(self, ends: dict[Place, int]) -> set[Place]:
        """Return the places of which all up to these ends is copied."""

    @property
    def has_joined(self) -> bool:
        """Whether it is known which partitions are this member's."""


class Ends:
    """The ends of the logs when a run began; ``ends`` has those with anything in them.

    A log that was made anew, or cut, may never get that far again: an end that two looks find lower goes back to there.
    """

    def __init__(self, ends: dict[Place, int]) -> None:
        self._ends = ends
        self._lower: dict[Place, int] = {}
        self._unlisted: dict[Place, float] = {}
        self._look_at = time.monotonic() + LOOK_EVERY_S

    def are_reached(self, source: Logs) -> bool:
        """Whether the group has copied all up to there; asked when there is nothing to read."""
        for place in source.reached(self._ends):
            del self._ends[place]
        if self._ends and time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            self._look(source)
        # A member that is about to join does not leave: its client may wait for long then.
        return not self._ends and source.has_joined

    def _look(self, source: Logs) -> None:
        try:
            now = source.ends_now(set(self._ends))
        except KafkaException as error:
            log.debug("bridge: the ends of the logs cannot be asked for: %s", text_of(error))
            return
        self._give_up({place for place, end in now.items() if end is None})
        before, self._lower = (
            self._lower,
            {place: end for place, end in now.items() if end is not None and end < self._ends[place]},
        )
        for place, end in self._lower.items():
            if before.get(place) != end:
                continue
            log.warning(
                "bridge: %s[%d] ended at %d when the run began, and ends at %d now; it is copied up to there",
                *place,
                self._ends[place],
                end,
            )
            if end:
                self._ends[place] = end
            else:
                del self._ends[place]

    def _give_up(self, unlisted: set[Place]) -> None:
        """Wait no longer for logs that have not been listed for long."""
        seen = time.monotonic()
        self._unlisted = {place: self._unlisted.get(place, seen) for place in unlisted}
        for place, since in self._unlisted.items():
            if seen - since >= GONE_S:
                log.warning(
                    "bridge: %s[%d] had records up to %d when the run began, and is not listed by the source any more; what was not copied of it "
                    "is missing at the target",
                    *place, self._ends.pop(place),
                )  # fmt: skip
