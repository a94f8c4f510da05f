"""The topic as a plain reader sees it."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.chaos.history import LogRecord
from tests.chaos.options import ID_HEADER, REJECTED_HEADER

_BATCH: Final = 5_000
_SILENCE_S: Final = 30.0
_LONGEST_ID: Final = 65_536


def read_log(
    bootstrap: str, topic: str, partitions: int, *, isolation: str = "read_committed"
) -> list[LogRecord]:
    """Return every record of a topic, partition by partition; raises `TimeoutError` when the broker stays silent."""
    return list(map(record_of, read_messages(bootstrap, topic, partitions, isolation=isolation)))


def read_messages(
    bootstrap: str, topic: str, partitions: int, *, isolation: str = "read_committed"
) -> list[Any]:
    """Return the client's messages for the same records; raises likewise."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
            "log_level": 0,
        }
    )
    records: list[Any] = []
    open_partitions = set(range(partitions))
    consumer.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
    heard = time.monotonic()
    try:
        while open_partitions:
            batch = consumer.consume(_BATCH, 0.2)
            if batch:
                heard = time.monotonic()
            elif time.monotonic() - heard > _SILENCE_S:
                raise TimeoutError(f"{topic}: the broker said nothing for {_SILENCE_S:g} s")
            for message in batch:
                error = message.error()
                if error is None:
                    records.append(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                elif error.fatal():
                    raise KafkaException(error)
    finally:
        consumer.close()
    return records


def record_of(message: Any) -> LogRecord:
    """Return the oracle's view of a record."""
    headers = dict(message.headers() or ())
    ident = headers.get(ID_HEADER)
    if ident is not None and len(ident) > _LONGEST_ID:
        ident = None
    return LogRecord(
        message.partition(),
        message.offset(),
        message.timestamp()[1],
        message.key(),
        ident,
        rejected=REJECTED_HEADER in headers,
    )
