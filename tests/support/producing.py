"""Records for a topic, written down briefly and delivered for certain."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from confluent_kafka import KafkaError, Message

    from dedup_sdk._record import Record

_FLUSH_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A record to be sent.

    Attributes:
        value: the body.
        key: None = no key.
        headers: name to value; more than one of a name need a list of pairs.
        partition: -1 = the partitioner's choice.
        timestamp_ms: 0 = now.
    """

    value: bytes | None = None
    key: bytes | None = None
    headers: Mapping[str, bytes | None] | list[tuple[str, bytes | None]] = field(default_factory=dict)
    partition: int = -1
    timestamp_ms: int = 0


def outgoing(records: Iterable[Record]) -> list[Outgoing]:
    """Records as they are, to be sent."""
    return [
        Outgoing(
            value=each.value,
            key=each.key,
            headers=list(each.headers),
            partition=each.partition,
            timestamp_ms=each.timestamp_ms,
        )
        for each in records
    ]


def with_ids(*ids: str, partition: int = 0, header: str = "dedup-id") -> list[Outgoing]:
    """Records of one partition that bear `ids` in a header, in this order; the ID is the value too."""
    return [
        Outgoing(value=each.encode(), headers={header: each.encode()}, partition=partition) for each in ids
    ]


def produce(bootstrap: str, topic: str, records: Iterable[Outgoing]) -> int:
    """Send records in order and return their number when the broker has every one of them."""
    # One request at a time keeps the order. An idempotent client would first take half a second to get its producer ID.
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, "max.in.flight": 1, "log_level": 2})
    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error.str())

    count = 0
    for each in records:
        pairs = each.headers if isinstance(each.headers, list) else each.headers.items()
        headers: list[tuple[str, str | bytes | None]] = list(pairs)
        producer.produce(
            topic,
            value=each.value,
            key=each.key,
            headers=headers,
            partition=each.partition,
            timestamp=each.timestamp_ms,
            on_delivery=delivered,
        )
        producer.poll(0)
        count += 1
    left = producer.flush(_FLUSH_S)
    assert not left, f"{left} of {count} records were not delivered to {topic} within {_FLUSH_S:g} s"
    assert not failures, f"{len(failures)} of {count} records were refused by {topic}: {failures[0]}"
    return count
