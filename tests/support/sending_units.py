"""Records that belong to units, for tests that have a broker.

A record is written as its ID and its unit: ``x/U`` has ID ``x`` and belongs to U, ``x/U.`` bears U's end mark,
``x/U:3`` says that U has three records, ``/U`` has no ID, and ``x`` no unit. The text is its value, too.
"""

from __future__ import annotations

from typing import Any, Protocol

from confluent_kafka import Producer

from dedup_sdk import Lookup, Unit
from tests.support.consuming import lookup


def units(timeout: float = 60.0, **settings: Any) -> Lookup:
    """The usual lookup, with units."""
    return lookup(unit=Unit(timeout=timeout), **settings)


class SendUnits(Protocol):
    """Sends records that may belong to units."""

    def __call__(self, *records: str, topic: str = "orders", partition: int = 0) -> None:
        """Send records, in this order."""


def unit_sender(bootstrap: str) -> SendUnits:
    """Return a function that sends records as this module writes them."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 60_000, "log_level": 0})

    def send(*records: str, topic: str = "orders", partition: int = 0) -> None:
        for each in records:
            ident, _, rest = each.partition("/")
            name, _, size = rest.rstrip(".").partition(":")
            headers: list[tuple[str, str | bytes | None]] = [("dedup-id", ident)] if ident else []
            headers += [("dedup-unit", name)] if name else []
            headers += [("dedup-unit-size", size)] if size else []
            headers += [("dedup-unit-end", b"")] if each.endswith(".") else []
            producer.produce(topic, each, headers=headers, partition=partition)
        assert producer.flush(30.0) == 0

    return send
