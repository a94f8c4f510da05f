"""What waits for its transaction: messages, and marks behind them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dedup_sdk.errors import OutboxError
from dedup_sdk.producer.outgoing import Outgoing
from dedup_sdk.producer.settings import OnDelivery

_MOST: Final = 5_000


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

    def __bool__(self) -> bool:
        """Whether there is anything for the outbox."""
        return bool(self.queued or self.removed or self.refused)

    def take(self, queue: deque[Queued | Mark], removed: deque[int], refused: deque[tuple[int, str]]) -> None:
        """Take along what waits, up to the first mark; what comes behind that need not be waited for."""
        while queue and len(self.queued) < _MOST:
            item = queue.popleft()
            if isinstance(item, Mark):
                self.marks.append(item)
                break
            self.queued.append(item)
        while removed and len(self.removed) < _MOST:
            self.removed.append(removed.popleft())
        while refused:
            self.refused.append(refused.popleft())

    def end_marks(self, error: OutboxError | None) -> None:
        """Let those go on who wait for this transaction."""
        for mark in self.marks:
            mark.end(error)
        self.marks = []
