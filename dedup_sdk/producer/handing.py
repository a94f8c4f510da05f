"""Handing a message to the client: with its key in a header, and to a partition that is the same when it is sent again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError, Message

from dedup_sdk.producer.outgoing import Outgoing, unpack_headers
from dedup_sdk.producer.placing import Places

_CREATE_TIME = 1


class ClientSide:
    """Knows how a message is given to the client.

    Args:
        produce: of the client.
        places: see `Places`.
        id_header: the header that bears the dedup key.
        scatters_empty_keys: see `ProducerSettings`.
    """

    def __init__(
        self, produce: Callable[..., None], places: Places, *, id_header: str, scatters_empty_keys: bool
    ) -> None:
        self.produce = produce
        self._places, self._id_header, self._scatters_empty_keys = places, id_header, scatters_empty_keys

    def give(self, message: Outgoing, report: Callable[..., None]) -> bool:
        """Give a message to the client; false where its partition is not known yet.

        Raises `BufferError` when the client has no room, `KafkaException` when it will not take it.
        """
        where = message.partition
        if where < 0 and (message.key is None or (not message.key and self._scatters_empty_keys)):
            place = self._places.place(message.topic, message.dedup_id)
            if place is None:
                return False
            where = place
        self.produce(
            message.topic, message.value, message.key, where,
            on_delivery=report, timestamp=message.timestamp_ms, headers=self._headers(message),
        )  # fmt: skip
        return True

    def refused(self, message: Outgoing, error: KafkaError) -> Message:
        """Return a message as a delivery report has it, headers included."""
        return Message(
            topic=message.topic, partition=message.partition, key=message.key, value=message.value,
            headers=self._headers(message), error=error, timestamp=(_CREATE_TIME, message.timestamp_ms),
        )  # fmt: skip

    def _headers(self, message: Outgoing) -> list[tuple[str, Any]]:
        headers: list[tuple[str, Any]] = [] if message.headers is None else unpack_headers(message.headers)
        headers.append((self._id_header, message.dedup_id))
        return headers
