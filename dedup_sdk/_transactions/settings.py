"""The settings of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from confluent_kafka import Message
from confluent_kafka.cimpl import Producer

from dedup_sdk._checks import seconds, text, whole
from dedup_sdk._masking import shown
from dedup_sdk.errors import ConfigurationError

_MOST_MESSAGES: Final = 100_000

Headers = Mapping[str, str | bytes | None] | Iterable[tuple[str, str | bytes | None]]


class Produce(Protocol):
    """Produces a record in the transaction of a message, while its handler runs.

    ``partition`` -1: chosen by the key. ``timestamp``: milliseconds since the epoch, 0: now. The records of a call that
    raises are forgotten.
    """

    def __call__(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        *,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers = (),
    ) -> None: ...


ProducingHandler = Callable[[Message, Produce], object]


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """The settings of `DedupConsumer.transactions`; raises `ConfigurationError` with a one-line message."""

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
