"""What the tests of the bridge have in common: records in, and what lies in the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dedup_sdk import Bridge
from tests.support.topic_records import topic_records

if TYPE_CHECKING:
    from dedup_sdk import BridgeCounters

QUICK = {"log_level": 0, "session.timeout.ms": 2000, "heartbeat.interval.ms": 200, "fetch.wait.max.ms": 20}


class Lies(NamedTuple):
    """A record as it lies in a topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def ident(self) -> bytes | None:
        """Its dedup ID."""
        return dict(self.headers).get("dedup-id")


def bridge(
    source: str, target: str, *topics: str, config: dict[str, Any] | None = None, **options: Any
) -> Bridge:
    """A bridge between two addresses that says nothing to stderr; ``config`` is more of the target's settings."""
    return Bridge(
        {"bootstrap.servers": source, **QUICK},
        {"bootstrap.servers": target, "log_level": 0, "linger.ms": 0, **(config or {})},
        **{"topics": topics or ["orders"], **options},
    )  # fmt: skip


def copy_all(source: str, target: str, *topics: str, **options: Any) -> BridgeCounters:
    """Copy all that there is, and return what was counted."""
    made = bridge(source, target, *topics, **options)
    made.run(until_end=True)
    return made.counters


def lying(bootstrap: str, topic: str, partitions: int = 1) -> list[Lies]:
    """Every committed record of a topic, partition by partition."""
    found = map(_lies, topic_records(bootstrap, topic, partitions))
    return sorted(found, key=lambda each: (each.partition, each.offset))


def _lies(message: Any) -> Lies:
    return Lies(
        message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1],
        tuple(message.headers() or ()),
    )  # fmt: skip
