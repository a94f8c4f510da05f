"""What a producer with an outbox counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class OutboxCounters:
    """Totals since the producer was made.

    Attributes:
        recovered: messages that an earlier producer left in the outbox.
        persisted: messages written to it by this one.
        sent: messages handed to the client, each time counted.
        confirmed: messages that the broker has confirmed.
        retried: failed deliveries that are tried again.
        refused: messages that the broker, or the client, will not take as they are.
        unreadable: rows of the outbox that are no messages.
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
