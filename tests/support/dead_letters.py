"""Messages whose handler fails for good, and what becomes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

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


def dead_letter(make: Make, *bad: str, topic: str = "orders", **options: Any) -> None:
    """Handle what is there; some of it becomes dead letters."""
    with make(topic, **options) as consumer:
        run_all(consumer, fail_for(*bad), on_error="dead-letter", attempts=1)
        assert consumer.counters.dead_lettered == len(bad)


def forward(bootstrap: str, letters: Iterable[Any], topic: str = "orders", partition: int = 0) -> None:
    """Send dead letters back as any tool does that copies key, value and headers."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "log_level": 0})
    for letter in letters:
        producer.produce(topic, letter.value(), letter.key(), partition, headers=letter.headers())
    assert producer.flush(PATIENCE_S) == 0
