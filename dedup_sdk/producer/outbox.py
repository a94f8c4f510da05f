"""What a producer needs of the place where messages wait for their delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dedup_sdk.producer.outgoing import Outgoing


class Stored(NamedTuple):
    """A message in an outbox.

    ``unreadable`` says why its row is no message (then the other fields of ``message`` mean nothing); empty where it is one.
    """

    id: int
    message: Outgoing
    unreadable: str = ""


@dataclass(slots=True)
class Step:
    """What one transaction does to an outbox.

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
    """Whether others add messages as well, so that it has to be looked for new ones."""

    def open(self) -> None:
        """Take the outbox for this process alone.

        Raises `OutboxLockedError` when another one has it, `OutboxError` when it is damaged or something else.
        """

    def apply(self, step: Step) -> Sequence[int]:
        """Do a step as one transaction, on disk when this returns; return the IDs of what was added.

        Raises `OutboxFullError` when that may go better later, `OutboxError` when it never will. Nothing was done then.
        """

    def after(self, last: int, most: int) -> list[Stored]:
        """Return at most ``most`` of the messages with an ID beyond ``last``, ascending."""

    def read(self, ids: Sequence[int]) -> list[Stored]:
        """Return some messages, ascending; those that are no longer there are left out."""

    def count(self) -> int:
        """Return how many messages it has."""

    def fresh(self, known: Sequence[int], most: int) -> list[Stored]:
        """Return at most ``most`` messages that are not among the ``known`` ones nor refused, ascending; only asked where it is shared."""

    def close(self) -> None:
        """Give it back. Does nothing when it is not open."""
