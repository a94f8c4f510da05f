"""What an engine tells of its partitions, and to whom."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from dedup_sdk.observe import Counters, Observer, PartitionEvent

logger = logging.getLogger("dedup_sdk")


class News:
    """The half of an engine that counts what happens to its partitions, and tells its observers.

    ``counters``: running totals since the engine was made.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        self.counters = Counters()
        self._observers = list(observers)

    def tell(self, event: PartitionEvent) -> None:
        """Count an event, write it to the log, and tell the observers that want to know."""
        logger.warning(
            "%s[%d]: %s: %s; going on at %d", event.topic, event.partition, event.name, event.detail, event.offset
        )  # fmt: skip
        self.count(event)

    def count(self, event: PartitionEvent) -> None:
        """Count an event, and tell the observers that want to know."""
        self.counters.events[event.name] = self.counters.events.get(event.name, 0) + 1
        self.inform(event)

    def inform(self, event: PartitionEvent) -> None:
        """Tell the observers that want to know, and nobody else."""
        for observer in self._observers:
            listen: Callable[[PartitionEvent], None] | None = getattr(observer, "partition_event", None)
            if listen is not None:
                try:
                    listen(event)
                except Exception:
                    self.counters.observer_errors += 1
                    logger.exception("an observer failed at %s; going on", event.name)
