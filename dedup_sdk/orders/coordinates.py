"""Where a record lay in a Kafka of its own: topic, partition, offset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from dedup_sdk.orders.decimals import MAX_INT64, unsigned
from dedup_sdk.orders.order import Order, order_name
from dedup_sdk.orders.place import Place
from dedup_sdk.orders.sequences import check_separator

_TOPIC = re.compile(rb"[A-Za-z0-9._-]{1,249}")
_NO_TOPICS = (b".", b"..")
_MAX_PARTITION = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KafkaCoordinates(Order):
    """``topic-partition-offset``; see `dedup_sdk.orders.kafka_coordinates`."""

    dense: ClassVar[bool] = True

    separator: str

    def __post_init__(self) -> None:
        """Refuse a separator that does not part them."""
        check_separator(self.separator)

    @property
    def name(self) -> str:
        """The identity of this order."""
        return order_name("kafka-coordinates", separator=self.separator)

    def place(self, dedup_id: bytes, /) -> Place | None:
        """Return the place of e.g. ``orders-0-42``, read from its end; the origin is ``(topic, partition)``."""
        separator = self.separator.encode()
        rest, _, offset_text = dedup_id.rpartition(separator)
        topic, _, partition_text = rest.rpartition(separator)
        partition, offset = unsigned(partition_text, _MAX_PARTITION), unsigned(offset_text, MAX_INT64)
        if partition is None or offset is None or not _TOPIC.fullmatch(topic) or topic in _NO_TOPICS:
            return None
        return Place((topic.decode("ascii"), partition), offset)
