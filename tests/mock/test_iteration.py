from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.consuming import committed, iterate_all, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

IDLE_S = 4.0
"""So long that a machine which stands still for a moment has not been without messages for it."""


def test_the_loop_of_the_readme(make: Make, send: Send) -> None:
    """Iteration yields each logical message once, and ends after the time without one."""
    send("a", "b", "a")
    consumer = make("orders", idle_timeout=IDLE_S)

    assert values(iterate_all(consumer)) == ["a", "b"]
    send("b", "c")
    assert values(consumer) == ["c"]


def test_stop_ends_after_the_message_in_hand(make: Make, send: Send, kafka: MockKafka) -> None:
    """Also from another thread; the message in hand is completed by leaving the block in order."""
    send("a", "b", "c")
    got = []
    with make("orders") as consumer:
        for message in consumer:
            got.append(message)
            if len(got) == 2:
                stopping = threading.Thread(target=consumer.stop)
                stopping.start()
                stopping.join()

    assert values(got) == ["a", "b"]
    assert committed(kafka.bootstrap, "g", "orders").offset == 2


def test_stop_before_the_loop_ends_it_at_once(make: Make, send: Send) -> None:
    """A signal that comes while the program still prepares is not forgotten; a later loop runs again."""
    send("a")
    consumer = make("orders")
    consumer.stop()

    assert list(consumer) == []
    assert values(iterate_all(consumer)) == ["a"]


def test_fatal_errors_are_raised(make: Make, send: Send, kafka: MockKafka) -> None:
    """A consumer that was fenced cannot go on; the loop says so instead of waiting for ever."""
    send("a")
    consumer = make("orders", config={"group.instance.id": "one"})
    loop = iter(consumer)
    next(loop)
    kafka.push_errors("Heartbeat", KafkaError.FENCED_INSTANCE_ID, 10)

    with pytest.raises(KafkaException) as caught:
        next(loop)
    assert caught.value.args[0].code() == KafkaError._FATAL
    health = consumer.health()
    assert (health.live, health.ready, len(health.reasons)) == (False, False, 1)
    assert "the client has failed for good" in health.reasons[0]
    assert "fenced" in health.reasons[0].lower()
    kafka.clear_errors("Heartbeat")


def test_other_errors_are_logged(make: Make, send: Send, caplog: pytest.LogCaptureFixture) -> None:
    """An event that the plain client would hand out is a line in the log, and the loop goes on."""
    send("a")
    consumer = make("orders", config={"enable.partition.eof": True})

    with caplog.at_level(logging.WARNING, "dedup_sdk"):
        assert values(iterate_all(consumer)) == ["a"]
    assert any("_PARTITION_EOF" in record.getMessage() for record in caplog.records)
