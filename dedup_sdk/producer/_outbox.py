"""The interface of an outbox, where messages wait for their delivery, and the counters of a producer that has one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple, Protocol

from dedup_sdk.producer._outgoing import Outgoing


class Stored(NamedTuple):
    """A message in an outbox.

    ``unreadable`` says why its row is not a message (then ignore ``message``); empty where it is one.
    """

    id: int
    message: Outgoing
    unreadable: str = ""


@dataclass(slots=True)
class Step:
    """The changes of one transaction to an outbox.

    Attributes:
        added: messages to keep, in the order in which they are to be sent.
        removed: IDs of messages that are delivered.
        refused: IDs of messages that the broker will not take, each with the reason; they stay.
    """

    added: list[Outgoing] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.refused)


class Outbox(Protocol):
    """Keeps messages until they are delivered. Used by one thread at a time.

    IDs are whole numbers that ascend in the order in which messages were added.
    """

    shared: bool
    """Whether other processes add messages, too; then `fresh` is called to find them."""

    def open(self) -> None:
        """Open the outbox, exclusively for this process.

        Raises `OutboxLockedError` when another process has it open, `OutboxError` when it is damaged or not an outbox.
        """

    def apply(self, step: Step) -> Sequence[int]:
        """Apply a step as one transaction, on disk when this returns; return the IDs of the added messages.

        Raises `OutboxFullError` when a later attempt may succeed, `OutboxError` when none will. Then
        nothing was changed.
        """

    def after(self, last: int, most: int) -> list[Stored]:
        """Return at most ``most`` of the messages with an ID beyond ``last``, ascending."""

    def read(self, ids: Sequence[int]) -> list[Stored]:
        """Return the messages with these IDs, ascending; IDs that are no longer there are left out."""

    def count(self) -> int:
        """Return the number of messages."""

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """Return at most ``most`` messages that are neither ``known`` nor refused, ascending.

        Only called for a shared outbox.
        """

    def close(self) -> None:
        """Close the outbox, and release its lock. Does nothing when it is not open."""


@dataclass(slots=True)
class OutboxCounters:
    """Totals since the producer was made.

    Attributes:
        recovered: messages that an earlier producer left in the outbox.
        persisted: messages written to it by this one.
        sent: messages handed to the client, each time counted.
        confirmed: messages that the broker has confirmed.
        retried: failed deliveries that are tried again.
        refused: messages that the broker, or the client, never accepts as they are.
        unreadable: rows of the outbox that are not messages.
    """

    recovered: int = 0
    persisted: int = 0
    sent: int = 0
    confirmed: int = 0
    retried: int = 0
    refused: int = 0
    unreadable: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the totals by name."""
        return asdict(self)
