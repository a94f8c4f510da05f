"""What observers, and the status of a partition, hear of its recovery while it goes on."""

from __future__ import annotations

from dedup_sdk.engine.deduplicator import Deduplicator
from dedup_sdk.kafka.assigned import Assigned
from dedup_sdk.observe import EventName, PartitionEvent


class RecoveryNews:
    """The events of one recovery; there are none where nothing is read or installed, because the store knows all."""

    def __init__(self, assigned: Assigned, engine: Deduplicator) -> None:
        self._assigned = assigned
        self._engine = engine
        self._begun = False

    def begin(self, detail: str) -> None:
        """Something is going to be replayed or installed; the first call counts."""
        self._assigned.note = detail
        if not self._begun:
            self._begun = True
            self._tell("recovery-started", self._start, detail)

    def progress(self, offset: int, detail: str) -> None:
        """A replay has come to an offset."""
        self._assigned.note = detail
        self._tell("recovery-progress", offset, detail)

    def end(self) -> None:
        """The partition is up to date, and its note says how it came to be."""
        if self._begun:
            detail = f"{self._assigned.note}, {self._assigned.seconds:.2f} s"
            self._tell("recovery-ended", self._start, detail)

    def rewound(self, committed: int) -> None:
        """The group's offsets were set back to ``committed``."""
        self._tell(
            "rewound",
            committed,
            "the group's offsets were set back below what this store knows to be committed",
        )

    @property
    def _start(self) -> int:
        return -1 if self._assigned.start is None else self._assigned.start.offset

    def _tell(self, name: EventName, offset: int, detail: str) -> None:
        self._engine.inform(
            PartitionEvent(name, self._assigned.topic, self._assigned.partition, offset, detail)
        )
