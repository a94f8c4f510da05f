"""An observer that keeps the events of partitions."""

from __future__ import annotations

from dedup_sdk import PartitionEvent, VerdictEvent


class Events:
    """Notes the events of partitions; verdicts are not looked at."""

    def __init__(self) -> None:
        self.seen: list[PartitionEvent] = []

    def __call__(self, event: VerdictEvent) -> None:
        """Take no note of verdicts."""

    def partition_event(self, event: PartitionEvent) -> None:
        """Take note."""
        self.seen.append(event)

    @property
    def names(self) -> list[str]:
        """Their names, in their order."""
        return [event.name for event in self.seen]
