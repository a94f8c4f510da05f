"""Messages whose handler fails for good, and their dead letters."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.support.consuming import PATIENCE_S, run_all

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.mock.conftest import Make


def fail_for(*bad: str) -> Any:
    """A handler that fails for some values."""

    def handle(message: Any) -> None:
        if message.value().decode() in bad:
            raise ValueError("no")

    return handle


def dead_letter(
    make: Make, *bad: str, topic: str = "orders", letters: str | None = None, **options: Any
) -> None:
    """Handle the records; some of it becomes dead letters, in the group's topic for them, or in that one."""
    with make(topic, **options) as consumer:
        run_all(consumer, fail_for(*bad), on_error="dead-letter", dead_letters=letters, attempts=1)
        assert consumer.counters.dead_lettered == len(bad)


def dead_letters(bootstrap: str, topic: str = "g.dead-letters") -> list[Message]:
    """All that lies in a dead-letter topic."""
    reader = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "reader", "auto.offset.reset": "earliest",
        "enable.partition.eof": True, "enable.auto.commit": False,
    })  # fmt: skip
    found: list[Message] = []
    try:
        # No member of a group: the mock cluster lets one that comes again wait for the session of the one before.
        left = set(reader.list_topics(topic).topics[topic].partitions)
        reader.assign([TopicPartition(topic, number, 0) for number in left])
        until = time.monotonic() + PATIENCE_S
        while left:
            message = reader.poll(0.2)
            if message is not None and message.error() is None:
                found.append(message)
            elif message is not None:
                left.discard(message.partition())
            assert time.monotonic() < until
    finally:
        reader.close()
    return found


def forward(bootstrap: str, letters: Iterable[Any], topic: str = "orders", partition: int = 0) -> None:
    """Send dead letters back as any tool does that copies key, value and headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    for letter in letters:
        producer.produce(topic, letter.value(), letter.key(), partition, headers=letter.headers())
    assert producer.flush(PATIENCE_S) == 0
