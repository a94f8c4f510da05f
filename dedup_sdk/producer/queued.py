"""What waits for its transaction: messages, and marks behind them."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import NamedTuple

from dedup_sdk.errors import OutboxError
from dedup_sdk.producer.outgoing import Outgoing
from dedup_sdk.producer.settings import OnDelivery


class Mark:
    """A place in the queue; ends when everything before it is on disk."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: OutboxError | None = None

    def end(self, error: OutboxError | None = None) -> None:
        """Let those go on who wait for it."""
        self.error = error
        self.done.set()


class Queued(NamedTuple):
    """A message that is not on disk yet."""

    message: Outgoing
    callback: OnDelivery | None


@dataclass(slots=True)
class Batch:
    """What the next transaction takes along."""

    queued: list[Queued] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)
