"""Every record of a topic, as a client finds it."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.support.consuming import PATIENCE_S


def topic_records(bootstrap: str, topic: str, partitions: int = 1) -> list[Any]:
    """Return the committed messages of a topic, in the order in which they come: by offset in each partition."""
    found: list[Any] = []
    left = set(range(partitions))
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "topic-records", "enable.partition.eof": True, "log_level": 0,
         "fetch.wait.max.ms": 10, "enable.auto.commit": False}
    )  # fmt: skip
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in left])
        until = time.monotonic() + PATIENCE_S
        while left:
            assert time.monotonic() < until, f"{topic} is not read to its end"
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                found.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                left.discard(message.partition())
    finally:
        consumer.close()
    return found
