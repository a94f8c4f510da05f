"""Questions of several threads, while no broker answers, while credentials change, and while the consumer closes."""

from __future__ import annotations

import time
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.client import questions
from tests.support.consuming import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make

LATE_S = 10.0
"""Many times what a question with a timeout may take here."""


def in_thread(call: Callable[[], object]) -> Thread:
    """Begin a call in another thread."""
    thread = Thread(target=call, daemon=True)
    thread.start()
    return thread


def fails(consumer: DedupConsumer, timeout: float) -> None:
    """Ask for the metadata, which nobody gives."""
    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=timeout)


class Made:
    """The clients that were made to ask."""

    def __init__(self) -> None:
        self.clients: list[Any] = []
        self.meanwhile: list[Callable[[], object]] = []
        """What is done, once, while the next client is made."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Watches the clients that are made to ask."""
    made = Made()

    class Watched(Consumer):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__(config)
            self.password, self.is_closed = config.get("sasl.password"), False
            made.clients.append(self)
            while made.meanwhile:
                made.meanwhile.pop()()

        def close(self) -> None:
            super().close()
            self.is_closed = True

    monkeypatch.setattr(questions, "Consumer", Watched)
    return made


def test_a_question_with_a_timeout_does_not_wait_for_one_without(make: Make, kafka: MockKafka) -> None:
    """The other thread's question goes on, and is answered when the broker is back."""
    consumer = make()
    kafka.set_broker_down()
    without = in_thread(consumer.list_topics)
    time.sleep(0.2)
    limited = in_thread(lambda: fails(consumer, 0.5))
    limited.join(LATE_S)
    ended = not limited.is_alive()
    assert without.is_alive(), "no broker was away"
    kafka.set_broker_up()
    without.join(PATIENCE_S)
    assert (ended, without.is_alive()) == (True, False)


def test_only_the_first_question_gets_the_time_to_connect(make: Make, kafka: MockKafka) -> None:
    """While no broker answers, each further one takes its own timeout."""
    consumer = make()
    kafka.set_broker_down()
    began = time.monotonic()
    for _ in range(10):
        fails(consumer, 0.05)
    assert time.monotonic() - began < LATE_S


def test_credentials_that_come_while_a_client_is_made_are_those_of_the_next_question(
    make: Make, made: Made
) -> None:
    """That client has the old ones, and is not asked again."""
    consumer = make()
    made.meanwhile.append(lambda: consumer.set_sasl_credentials("shop", "new"))
    consumer.list_topics(timeout=PATIENCE_S)
    consumer.list_topics(timeout=PATIENCE_S)
    assert [(each.password, each.is_closed) for each in made.clients] == [(None, True), ("new", False)]


def test_a_question_that_the_consumer_closes_before_leaves_no_client(make: Make, made: Made) -> None:
    """It is answered, as the question was asked before; the next one is refused."""
    consumer = make()
    made.meanwhile.append(consumer.close)
    consumer.list_topics(timeout=PATIENCE_S)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.list_topics(timeout=PATIENCE_S)
    assert [each.is_closed for each in made.clients] == [True]
