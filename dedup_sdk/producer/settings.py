"""The producer's configuration: what would break a promise is refused, and what one hangs on is set.

Set by us unless the user says otherwise:

- ``enable.idempotence=true``: what the client itself sends again keeps its place and is not doubled.
- ``delivery.timeout.ms=0``: the client tries until the broker answers; giving up would only mean that the outbox hands the message over again,
  behind others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dedup_sdk.errors import ConfigurationError

_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")
_CALLBACKS: Final = ("on_delivery", "dr_cb")
_DEFAULT_PARTITIONER: Final = "consistent_random"
OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """What is read from the configuration; ``client`` is what librdkafka gets, passwords included."""

    client: dict[str, Any] = field(repr=False)
    on_delivery: OnDelivery | None
    scatters_empty_keys: bool
    """Whether the client would put an empty key anywhere, as it does without a key."""


def producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Read a configuration; raises `ConfigurationError` for what would lose or double messages."""
    client = dict(config)
    if client.get("transactional.id"):
        raise ConfigurationError(
            "transactional.id: an outbox and a transaction are two ways to the same end; take a plain Producer for transactions"
        )
    for name in ("acks", "request.required.acks"):
        if str(client.get(name, "all")) not in ("all", "-1"):
            raise ConfigurationError(
                f"{name}={client[name]!r} lets the broker lose what it has confirmed, and so what has left the outbox; leave it out"
            )
    if str(client.get("delivery.report.only.error", "false")).lower() not in ("false", "0"):
        raise ConfigurationError(
            "delivery.report.only.error=true: without its report a message stays in the outbox for good; leave it out"
        )
    partitioner = str(client.get("partitioner", _DEFAULT_PARTITIONER))
    if partitioner == "random":
        raise ConfigurationError(
            "partitioner='random' sends a message again to another partition, where nobody knows it; choose e.g. consistent_random or murmur2_random"
        )
    callbacks = [client.pop(name) for name in _CALLBACKS if client.get(name) is not None]
    client.setdefault("acks" if "request.required.acks" not in client else "request.required.acks", "all")
    client.setdefault("enable.idempotence", True)
    if not any(name in client for name in _TIMEOUTS):
        client["delivery.timeout.ms"] = 0
    return ProducerSettings(
        client=client,
        on_delivery=callbacks[0] if callbacks else None,
        scatters_empty_keys=partitioner == _DEFAULT_PARTITIONER,
    )
