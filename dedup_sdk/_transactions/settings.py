"""The settings of transactions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka.cimpl import Producer

from dedup_sdk._checks import seconds, text, whole
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_MOST_MESSAGES: Final = 100_000


@dataclass(frozen=True, slots=True)
class Transactions:
    """Transactions in which `DedupConsumer.run` commits what its handlers produce.

        consumer.run(handle, transactions=Transactions({"transactional.id": "billing-1"}, seconds=0.2), workers=4)

    Args:
        producer: settings for the producer besides those of the consumer, or a `Producer` of yours with a
            ``transactional.id``; see `DedupConsumer.transactions`.
        max_messages: the most messages of a transaction.
        seconds: the most seconds between the end of the first handler of a transaction and its commit.
        id_header: the header for the ID of each record that a handler produces; None: no header.

    Raises `ConfigurationError` for what is none of these.
    """

    producer: Mapping[str, Any] | Producer = field(default_factory=dict[str, Any], repr=False)
    max_messages: int = field(default=1_000, kw_only=True)
    seconds: float = field(default=0.1, kw_only=True)
    id_header: str | None = field(default="dedup-id", kw_only=True)

    def __post_init__(self) -> None:
        whole("max_messages", self.max_messages, most=_MOST_MESSAGES, advice="give e.g. 1000")
        seconds("seconds", self.seconds)
        if self.id_header is not None:
            text("id_header", self.id_header)
        if not isinstance(self.producer, Mapping | Producer):
            raise ConfigurationError(
                f"producer={shown(self.producer)}: give settings, e.g. {{'transactional.id': 'billing-1'}}, or a "
                "Producer"
            )
