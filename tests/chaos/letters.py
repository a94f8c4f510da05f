"""The messages of a topic of dead letters, as a plain reader sees it."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from dedup_sdk import DeadLetter

_SILENCE_S: Final = 20.0


def read_letters(bootstrap: str, topic: str, partitions: int) -> list[tuple[DeadLetter, Any]]:
    """Return every dead letter, with its message.

    One that was written twice, before and after a kill, is there twice.
    """
    found: list[tuple[DeadLetter, Any]] = []
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    open_partitions, heard = set(range(partitions)), time.monotonic()
    reader.assign([TopicPartition(topic, partition, 0) for partition in open_partitions])
    try:
        while open_partitions:
            message = reader.poll(0.2)
            if message is None:
                if time.monotonic() - heard > _SILENCE_S:
                    raise TimeoutError(f"{topic}: the broker said nothing for {_SILENCE_S:g} s")
                continue
            heard, error = time.monotonic(), message.error()
            if error is None:
                letter = DeadLetter.read(message)
                if letter is None:
                    raise RuntimeError(f"{topic}@{message.offset()} is no dead letter")
                found.append((letter, message))
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            elif error.fatal():
                raise KafkaException(error)
    finally:
        reader.close()
    return found
