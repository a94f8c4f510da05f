"""The engine's input and output as plain values.

record
    one Kafka record: coordinates (topic, partition, offset), timestamp, key, value, headers.
verdict
    the engine's decision on a record, made once, before the application sees it.
settled
    a record that had to wait (or was released) and now has its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from enum import StrEnum

type_headers = Sequence[tuple[str, bytes | None]]


class VerdictKind(StrEnum):
    """The verdicts of the rule; ``HELD`` is not final and is not counted."""

    FRESH = "fresh"
    """No earlier record of this ID inside the window: deliver."""
    DUPLICATE = "duplicate"
    """A completed record with this ID lies before it, inside the window: do not deliver."""
    REDELIVERED = "redelivered"
    """This very record (topic, partition, offset) was completed before: do not deliver."""
    UNVERIFIED = "unverified"
    """No earlier record is known, but the store does not cover the window: deliver, and count."""
    UNKEYED = "unkeyed"
    """It has no usable ID: the strategy's ``on_missing_id`` policy decides."""
    HELD = "parked"
    """A record with the same ID is in flight, or its unit is incomplete: the verdict comes when that one is settled."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record, free of any client's types.

    ``timestamp_ms`` is Kafka's record timestamp in milliseconds since the epoch, -1 where there is none.
    ``headers`` keeps Kafka's order and repetitions; header values may be ``None``.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = -1
    key: bytes | None = None
    value: bytes | None = None
    headers: type_headers = field(default=())


@dataclass(frozen=True, slots=True)
class Verdict:
    """The engine's decision on one record.

    ``seen_offset`` is the offset of the last sighting of the ID (-1: in another partition, before the topic
    got more of them), ``age_ms`` how much older its timestamp is (negative where timestamps run backwards);
    both are None unless ``kind`` is ``DUPLICATE``. ``reason`` explains ``UNVERIFIED``, ``UNKEYED`` and
    ``HELD`` in a few words (``uncovered``, ``older-than-window``, ``absent``, ``in-flight``, ...), is
    ``off`` where the topic's window is off, and is empty otherwise. ``attempt`` counts deliveries, from 1.
    """

    kind: VerdictKind
    deliver: bool
    reason: str = ""
    seen_offset: int | None = None
    age_ms: int | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Settled:
    """A record whose verdict is known now: it was waiting, or it was released and is offered again."""

    record: Record
    verdict: Verdict


def value_bytes(items: Sequence[Record] | Sequence[Sized]) -> int:
    """Return the total size of the values of records, or of a client's messages (their length is that of the value)."""
    if items and isinstance(items[0], Record):
        return sum(len(item.value or b"") for item in items if isinstance(item, Record))
    # One built-in call: this runs for each batch while a unit is open.
    return sum(map(len, items))  # type: ignore[arg-type]
