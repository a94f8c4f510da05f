"""Messages that were given up, and what is read of them later."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from dedup_sdk import DeadLetter
from dedup_sdk.ids import digest_one
from dedup_sdk.kafka.dead_letter_log import GivenUp
from tests.support.consuming import PATIENCE_S, run_all

if TYPE_CHECKING:
    from collections.abc import Generator

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make


def fail_for(*bad: str) -> Any:
    """A handler that fails for some values."""

    def handle(message: Any) -> None:
        if message.value().decode() in bad:
            raise ValueError("no")

    return handle


def give_up(make: Make, *bad: str, **options: Any) -> None:
    """Handle what is there; some of it becomes dead letters."""
    with make("orders", **options) as consumer:
        run_all(consumer, fail_for(*bad), on_error="dead-letter", attempts=1)
        assert consumer.counters.dead_lettered == len(bad)


def result(reading: Generator[None, None, GivenUp]) -> GivenUp:
    """Drive a reading to its end."""
    while True:
        try:
            next(reading)
        except StopIteration as ended:
            found: GivenUp = ended.value
            return found


def send_letters(kafka: MockKafka, *letters: DeadLetter, age_ms: int = 0) -> None:
    """Send dead letters that somebody else wrote."""
    from confluent_kafka import Message

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    now_ms = int(time.time() * 1000)
    for letter in letters:
        message = Message(topic=letter.topic, partition=letter.partition, value=b"v")
        producer.produce(
            "letters", b"v", headers=[*letter.headers(message)], partition=0, timestamp=now_ms - age_ms
        )
    assert producer.flush(PATIENCE_S) == 0


def letter_of(
    offset: int,
    group: str = "g",
    topic: str = "orders",
    name: str | None = None,
    timestamp_ms: int = 0,
    before: int | None = None,
) -> DeadLetter:
    """A dead letter."""
    return DeadLetter(
        topic=topic, partition=0, offset=offset, timestamp_ms=timestamp_ms, group=group, attempts=1,
        digest=None if name is None else digest_one(name.encode()), error_type="ValueError", error="no",
        before=before,
    )  # fmt: skip
