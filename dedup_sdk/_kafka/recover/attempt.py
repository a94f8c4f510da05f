"""One attempt to recover a partition: the value that all its steps are given."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from dedup_sdk._engine.deduplicator import Deduplicator
from dedup_sdk._kafka.assign.assignment import Assigned, Recovering, State
from dedup_sdk._kafka.assign.start import Start
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.reader import TailReader
from dedup_sdk._kafka.client.settings import ClientSettings
from dedup_sdk._kafka.recover.settings import Recovery
from dedup_sdk._metrics import EventName
from dedup_sdk._observe import PartitionEvent


@dataclass(frozen=True, slots=True)
class Attempt:
    """The partition that recovers, the parts that its steps use, and its log by the brokers' names.

    A failed attempt leaves nothing here: the next one begins with a new value.
    """

    assigned: Assigned
    recovering: Recovering
    engine: Deduplicator
    client: Client
    settings: ClientSettings
    policy: Recovery
    cluster: str
    topic_id: str
    until: float | None
    """When (monotonic seconds) the partition starts without the rest of its history; None: never."""

    @property
    def is_over(self) -> bool:
        """Whether `until` has come."""
        return self.until is not None and time.monotonic() >= self.until

    def reader(self) -> closing[TailReader]:
        """Return a reader of the partition, for a ``with``."""
        return closing(self.client.tail_reader(self.assigned.topic, self.assigned.partition))

    def event(self, name: EventName, detail: str, offset: int | None = None) -> PartitionEvent:
        """Return an event of this partition, by default at its start."""
        at = self.recovering.start.offset if offset is None else offset
        return PartitionEvent(name, self.assigned.topic, self.assigned.partition, at, detail)

    def begin(self, detail: str) -> None:
        """Note that a replay or installation begins; the first one sends the event ``recovery-started``."""
        self.recovering.note = detail
        if self.assigned.state is State.OPENING:
            self.assigned.enter(State.REPLAYING)
            self.engine.count(self.event("recovery-started", detail))

    def progress(self, offset: int, detail: str) -> None:
        """Note that a replay has reached an offset; send the event ``recovery-progress``."""
        self.recovering.note = detail
        self.engine.count(self.event("recovery-progress", detail, offset))

    def learn(self, start: Start, more: Start) -> None:
        """Replace the partition's start by itself with more known of it; nothing if it starts otherwise by now."""
        if self.recovering.start is start:
            self.recovering.start = more
