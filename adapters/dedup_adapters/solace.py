"""Solace PubSub+: its replication group message IDs, and where they stand in a Kafka record.

    from dedup_adapters import solace
    one = solace.ReplicationGroupMessageId.parse("rmid1:3b202-25d86a922c7-00000000-000001f2")
    one.compare(other)                                                     # 1: later than the other
    solace.order()                                                         # the same, as an order of IDs
    Lookup(id=solace.replication_group_message_id(), window=Window(days=7))

Made after the public documentation alone (docs.solace.com, "Detecting Duplicate Messages", and the
references of the messaging APIs), which gives the text form and what comparing means; whoever has a client
of the vendor's may use its own comparison as an order instead (`dedup_sdk.orders.order_of`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dedup_sdk import IdSpec, header
from dedup_sdk.orders import Order, SortKey

REPLICATION_GROUP_MESSAGE_ID: Final = "solace_replicationGroupMessageId"
"""The header of the replication group message ID."""
APPLICATION_MESSAGE_ID: Final = "solace_applicationMessageId"
"""The header of the ID that the publisher gave its message: the one to look for where copies come by several queues."""
SEQUENCE_NUMBER: Final = "solace_sequenceNumber"
"""The header of the number that the publisher, or its client, counted."""
SENDER_ID: Final = "solace_senderId"
"""The header of the publisher whose sequence numbers these are."""

_TEXT = re.compile("rmid1:([0-9A-Fa-f]{5})-([0-9A-Fa-f]{11})-([0-9A-Fa-f]{8})-([0-9A-Fa-f]{8})")
_TEXT_LENGTH = 41
_BITS = 64
_MOST_SHOWN = 60


class InvalidReplicationGroupMessageId(ValueError):  # noqa: N818 - the vendor's word; every language calls it so
    """A text that is no replication group message ID."""


class NotComparable(Exception):  # noqa: N818 - as above
    """Two replication group message IDs of different origins: nothing says which message came first."""


@dataclass(frozen=True, slots=True)
class ReplicationGroupMessageId:
    """What Solace calls a message in a queue of a replication group.

    ``spooler_id``: the spooler's unique ID, 64 bits unsigned; the origin, one broker or pair of them.
    ``message_id``: the effective message ID, 64 bits unsigned, growing. Raises
    `InvalidReplicationGroupMessageId` for anything else.
    """

    spooler_id: int
    message_id: int

    def __post_init__(self) -> None:
        """Refuse what are no 64 bits."""
        for name in ("spooler_id", "message_id"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**_BITS:
                message = f"{name}={value!r} is no unsigned number of {_BITS} bits; read an ID with ReplicationGroupMessageId.parse(text)"
                raise InvalidReplicationGroupMessageId(message)

    @classmethod
    def parse(cls, text: str) -> ReplicationGroupMessageId:
        """Read ``rmid1:`` and 32 hexadecimal digits in groups of 5, 11, 8 and 8 joined by ``-``: 41 characters.

        The prefix in lower case, the digits in either; no blanks, no digits but ASCII's. Raises
        `InvalidReplicationGroupMessageId` that shows (the beginning of) the text.
        """
        given: object = text
        found = _TEXT.fullmatch(given) if isinstance(given, str) and len(given) == _TEXT_LENGTH else None
        if found is None:
            shown = (
                repr(given[:_MOST_SHOWN]) + "…" * (len(given) > _MOST_SHOWN)
                if isinstance(given, str)
                else repr(type(given).__name__)
            )
            message = f"{shown} is no replication group message ID; one looks like rmid1:3b202-25d86a922c7-00000000-000001f2"
            raise InvalidReplicationGroupMessageId(message)
        return cls(int(found[1] + found[2], 16), int(found[3] + found[4], 16))

    def __str__(self) -> str:
        """The text that `parse` reads, in lower case."""
        origin, message = f"{self.spooler_id:016x}", f"{self.message_id:016x}"
        return f"rmid1:{origin[:5]}-{origin[5:]}-{message[:8]}-{message[8:]}"

    def compare(self, other: ReplicationGroupMessageId) -> int:
        """Return -1 when this message came before the other, 0 when it is the same, 1 when it came after it.

        Raises `NotComparable` when they come from different origins, and `TypeError` for what is no such ID.
        """
        given: object = other  # what callers without a type checker pass
        if not isinstance(given, ReplicationGroupMessageId):
            raise TypeError(
                f"{type(given).__name__} is no ReplicationGroupMessageId; read a text with "
                "ReplicationGroupMessageId.parse(text)"
            )
        if self.spooler_id != other.spooler_id:
            raise NotComparable(
                f"{self} and {other} come from different brokers, which count by themselves; take the "
                "message for a new one"
            )
        return (self.message_id > other.message_id) - (self.message_id < other.message_id)


@dataclass(frozen=True, slots=True)
class _MessageIdOrder(Order):
    """`order` as a value; it reads bytes, without making an ID of each."""

    @property
    def name(self) -> str:
        """The identity of this order."""
        return "solace-rgmid"

    def sort_key(self, dedup_id: bytes, /) -> SortKey | None:
        """Return the sort key of an ID's text: the origin is the spooler's ID, the rank the message's."""
        found = _BYTES.fullmatch(dedup_id)
        return found and SortKey(int(found[1] + found[2], 16), int(found[3] + found[4], 16))


_BYTES = re.compile(_TEXT.pattern.encode())


def order() -> Order:
    """Return the order of replication group message IDs: by message ID within an origin, uncomparable between two."""
    return _MessageIdOrder()


def replication_group_message_id() -> IdSpec:
    """Return the ID spec of the header in which Solace's connectors put the replication group message ID."""
    return header(REPLICATION_GROUP_MESSAGE_ID)


def application_message_id() -> IdSpec:
    """Return the ID spec of the header in which Solace's connectors put the publisher's own message ID."""
    return header(APPLICATION_MESSAGE_ID)
