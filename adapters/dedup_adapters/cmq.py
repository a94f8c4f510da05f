"""The deduplication scheme of Tencent CMQ, on Kafka.

    producer = cmq.producer(
        {"bootstrap.servers": "localhost:9092"}, outbox="var/outbox", address="10.0.0.5"
    )
    with producer: ...

    dedup = cmq.lookup(max_retention="4d", max_retry="1h", max_network="1m")

The producer makes a key of its address, process, thread, time and an increment. It writes key and message
to disk before it sends them, and resends with the same key. The consumer keeps the keys of handled messages
for as long as a duplicate may come.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from dedup_sdk import IdSpec, Lookup, Window, header, required_window
from dedup_sdk.producer import DedupProducer, ProducerKey, ProducerKeys

DEDUP_KEY: Final = "dedup-id"
"""The header that contains the key; the vendor's guide leaves the position to the application."""
Length = timedelta | str


def producer(
    config: Mapping[str, Any], *, outbox: str | Path, address: str | None = None, **settings: Any
) -> DedupProducer:
    """Return a producer that gives each message such a key.

    Args:
        config: as for `DedupProducer`.
        outbox: the folder where key and message are kept until the broker has confirmed them.
        address: the name of this producer; None: the host's name.
        settings: other settings of `DedupProducer`.
    """
    return DedupProducer(
        config, outbox=outbox, **{"keys": ProducerKeys(address), "id_header": DEDUP_KEY, **settings}
    )


def lookup(
    *,
    max_retention: Length,
    max_retry: Length,
    max_network: Length = "0s",
    id: IdSpec | None = None,  # noqa: A002 (as `Lookup` has it)
) -> Lookup:
    """Return the strategy of a consumer that keeps keys as long as the guide says; see `required_window`."""
    window = required_window(max_retention=max_retention, max_retry=max_retry, max_network=max_network)
    return Lookup(id=header(DEDUP_KEY) if id is None else id, window=window)


def expiry_ms(now_ms: int, *, max_retention: Length, max_retry: Length, max_network: Length = "0s") -> int:
    """Return the time until which a key first seen now must be kept, milliseconds since 1970.

    Use it for a memory that expires keys by the clock.
    """
    window = required_window(max_retention=max_retention, max_retry=max_retry, max_network=max_network)
    return now_ms + (window.time_ms or 0)


def forgettable_before_ms(earliest_stored_ms: int, *, max_retry: Length, max_network: Length = "0s") -> int:
    """Return the time before which a key must have been made so that it may be removed now, ms since 1970.

    This is the guide's alternative to an expiry of each key: the oldest message that the topic still has
    bounds the duplicates that can come.

    Args:
        earliest_stored_ms: the time at which that message was sent.
        max_retry: how long after its first attempt a message may be resent.
        max_network: how long one attempt may take.
    """
    window = required_window(max_retention="0s", max_retry=max_retry, max_network=max_network)
    return earliest_stored_ms - (window.time_ms or 0)


def is_forgettable(key: bytes, before_ms: int) -> bool:
    """Whether a key was made before a moment; False for a key without a readable time, which must be kept."""
    made = ProducerKey.read(key)
    return made is not None and made.made_ms < before_ms


__all__ = [
    "DEDUP_KEY",
    "ProducerKey",
    "Window",
    "expiry_ms",
    "forgettable_before_ms",
    "is_forgettable",
    "lookup",
    "producer",
    "required_window",
]
