"""The producer's configuration: refuses settings that would break a promise, and sets those that it needs.

Set here unless you set them:

- ``enable.idempotence=true``: a message that the client itself resends keeps its position, and is not
  duplicated.
- ``delivery.timeout.ms=0``: the client retries until the broker answers. If it gave up, the outbox would
  send the message again, after later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_TIMEOUTS: Final = ("delivery.timeout.ms", "message.timeout.ms")
_CALLBACKS: Final = ("on_delivery", "dr_cb")
DEFAULT_PARTITIONER: Final = "consistent_random"
OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """The settings read from a configuration; ``client`` is the configuration of librdkafka, passwords included."""

    client: dict[str, Any] = field(repr=False)
    on_delivery: OnDelivery | None
    scatters_empty_keys: bool
    """Whether the client chooses a random partition for an empty key, as it does without a key."""


def producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Read a configuration; raises `ConfigurationError` for a setting that would lose or duplicate messages."""
    client = dict(config)
    if client.get("transactional.id"):
        raise ConfigurationError(
            "transactional.id: an outbox and a transaction have the same purpose; use a plain Producer for transactions"
        )
    partitioner = checked_partitioner(client)
    if str(client.get("delivery.report.only.error", "false")).lower() not in ("false", "0"):
        raise ConfigurationError(
            "delivery.report.only.error=true: without its delivery report a message stays in the outbox "
            "forever; leave it out"
        )
    callbacks = [client.pop(name) for name in _CALLBACKS if client.get(name) is not None]
    client.setdefault("acks" if "request.required.acks" not in client else "request.required.acks", "all")
    client.setdefault("enable.idempotence", True)
    if not any(name in client for name in _TIMEOUTS):
        client["delivery.timeout.ms"] = 0
    return ProducerSettings(
        client=client,
        on_delivery=callbacks[0] if callbacks else None,
        scatters_empty_keys=partitioner == DEFAULT_PARTITIONER,
    )


def checked_partitioner(client: Mapping[str, Any]) -> str:
    """Return the partitioner of a client's configuration.

    Raises `ConfigurationError` for acknowledgements by which brokers lose confirmed messages, and for a
    random partitioner.
    """
    for name in ("acks", "request.required.acks"):
        if str(client.get(name, "all")) not in ("all", "-1"):
            raise ConfigurationError(
                f"{name}={shown(client[name])} lets the brokers lose confirmed messages; leave it out"
            )
    partitioner = str(client.get("partitioner", DEFAULT_PARTITIONER))
    if partitioner == "random":
        raise ConfigurationError(
            "partitioner='random' resends a message to another partition, where no consumer knows its ID; "
            "choose e.g. consistent_random or murmur2_random"
        )
    return partitioner
