"""Solace PubSub+: its replication group message IDs, and the headers of a Kafka record that contain IDs.

    from dedup_adapters import solace
    one = solace.ReplicationGroupMessageId.parse("rmid1:3b202-25d86a922c7-00000000-000001f2")
    one.compare(other)                                                     # 1: later than the other
    solace.order()                                                         # the same, as an order of IDs
    Lookup(id=solace.replication_group_message_id(), window=Window(days=7))

Written from the public documentation only (docs.solace.com, "Detecting Duplicate Messages", and the
references of the messaging APIs), which defines the text form and the comparison. If you have a client of
the vendor, you can use its own comparison as an order (`dedup_sdk.orders.order_of`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from dedup_sdk import IdSpec, header
from dedup_sdk.errors import shown
from dedup_sdk.orders import Order, SortKey

REPLICATION_GROUP_MESSAGE_ID: Final = "solace_replicationGroupMessageId"
"""The header of the replication group message ID."""
APPLICATION_MESSAGE_ID: Final = "solace_applicationMessageId"
"""The header of the publisher's own message ID; use it where copies arrive through several queues."""
SEQUENCE_NUMBER: Final = "solace_sequenceNumber"
"""The header of the sequence number that the publisher, or its client, assigned."""
SENDER_ID: Final = "solace_senderId"
"""The header of the publisher that assigned the sequence number."""

_TEXT = re.compile("rmid1:([0-9A-Fa-f]{5})-([0-9A-Fa-f]{11})-([0-9A-Fa-f]{8})-([0-9A-Fa-f]{8})")
_TEXT_LENGTH = 41
_BITS = 64


class InvalidReplicationGroupMessageId(ValueError):  # noqa: N818 - the vendor's word; every language calls it so
    """A text is not a replication group message ID."""


class NotComparable(Exception):  # noqa: N818 - as above
    """Two replication group message IDs have different origins, so that their messages have no known order."""


@dataclass(frozen=True, slots=True)
class ReplicationGroupMessageId:
    """Solace's identifier of a message in a replication group.

    ``spooler_id``: the unique ID of the message spooler, 64 bits unsigned; it is the origin, one broker or
    a pair. ``message_id``: the effective message ID, 64 bits unsigned, ascending. Raises
    `InvalidReplicationGroupMessageId` for anything else.
    """

    spooler_id: int
    message_id: int

    def __post_init__(self) -> None:
        """Refuse numbers outside of 64 bits."""
        for name in ("spooler_id", "message_id"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**_BITS:
                message = (
                    f"{name}={shown(value)} is not an unsigned number of {_BITS} bits; read an ID with "
                    "ReplicationGroupMessageId.parse(text)"
                )
                raise InvalidReplicationGroupMessageId(message)

    @classmethod
    def parse(cls, text: str) -> ReplicationGroupMessageId:
        """Read ``rmid1:`` and 32 hexadecimal digits in groups of 5, 11, 8 and 8 joined by ``-``: 41 characters.

        The prefix is lower case, the digits are ASCII of either case, and there are no blanks. Raises
        `InvalidReplicationGroupMessageId` that shows (the beginning of) the text.
        """
        given: object = text
        found = _TEXT.fullmatch(given) if isinstance(given, str) and len(given) == _TEXT_LENGTH else None
        if found is None:
            message = (
                f"{shown(given)} is not a replication group message ID; give e.g. "
                "rmid1:3b202-25d86a922c7-00000000-000001f2"
            )
            raise InvalidReplicationGroupMessageId(message)
        return cls(int(found[1] + found[2], 16), int(found[3] + found[4], 16))

    def __str__(self) -> str:
        """The text that `parse` reads, in lower case."""
        origin, message = f"{self.spooler_id:016x}", f"{self.message_id:016x}"
        return f"rmid1:{origin[:5]}-{origin[5:]}-{message[:8]}-{message[8:]}"

    def compare(self, other: ReplicationGroupMessageId) -> int:
        """Return -1 when this message came before the other, 0 when it is the same, 1 when it came after it.

        Raises `NotComparable` when the origins differ, and `TypeError` for another type.
        """
        given: object = other  # what callers without a type checker pass
        if not isinstance(given, ReplicationGroupMessageId):
            raise TypeError(
                f"{type(given).__name__} is not a ReplicationGroupMessageId; read a text with "
                "ReplicationGroupMessageId.parse(text)"
            )
        if self.spooler_id != other.spooler_id:
            raise NotComparable(
                f"{self} and {other} come from different brokers, which count independently; treat the "
                "message as new"
            )
        return (self.message_id > other.message_id) - (self.message_id < other.message_id)


@dataclass(frozen=True, slots=True)
class _MessageIdOrder(Order):
    """The result of `order`; it reads bytes without an object for each ID."""

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
    """Return the order of replication group message IDs.

    IDs of one origin are compared by message ID; IDs of different origins are uncomparable.
    """
    return _MessageIdOrder()


def replication_group_message_id() -> IdSpec:
    """Return the ID spec of the header in which Solace's connectors put the replication group message ID."""
    return header(REPLICATION_GROUP_MESSAGE_ID)


def application_message_id() -> IdSpec:
    """Return the ID spec of the header in which Solace's connectors put the publisher's own message ID."""
    return header(APPLICATION_MESSAGE_ID)
