"""Calls of another thread while a step of the loop waits for a broker that is away."""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.cimpl import Consumer

from dedup_sdk._kafka.client import client
from tests.support.consuming import PATIENCE_S, poll_some

if TYPE_CHECKING:
    from collections.abc import Callable

    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

LATE_S = 5.0
"""Many times what a call may take that does not wait; a step that waits takes longer."""
PATIENT = {"session.timeout.ms": 30_000}
"""After this time the client gives the coordinator up."""
PLACE = TopicPartition("orders", 0, 0)

STEPS: dict[str, Callable[[DedupConsumer], object]] = {
    "commit": lambda consumer: consumer.commit(asynchronous=False),
    "unassign": lambda consumer: consumer.unassign(),
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The credentials that the consumer's own client was told."""
    told: list[tuple[str, str]] = []

    class Watched(Consumer):
        def set_sasl_credentials(self, username: str, password: str) -> None:
            told.append((username, password))
            Consumer.set_sasl_credentials(self, username, password)

    monkeypatch.setattr(client, "Consumer", Watched)
    return told


def in_thread(call: Callable[[], object]) -> Thread:
    """Begin a call in another thread; the broker may be away for too long for it."""

    def run() -> None:
        with suppress(KafkaException):
            call()

    thread = Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("step", STEPS)
def test_credentials_and_the_assignment_do_not_wait_for_a_step(
    make: Make, send: Send, kafka: MockKafka, told: list[tuple[str, str]], step: str
) -> None:
    """The step may wait for just these credentials; the client gets them with its next call."""
    send("a", "b")
    consumer = make(config=PATIENT, revoke_deadline=120)
    consumer.assign([PLACE])
    poll_some(consumer, 2)
    kafka.set_broker_down()
    waiting = in_thread(lambda: STEPS[step](consumer))
    waiting.join(0.5)
    answers: list[Any] = []

    def ask() -> None:
        consumer.set_sasl_credentials("shop", "new")
        answers.append(consumer.assignment())

    asking = in_thread(ask)
    asking.join(LATE_S)
    answered, waits = not asking.is_alive(), waiting.is_alive()
    kafka.set_broker_up()
    waiting.join(PATIENCE_S)
    asking.join(PATIENCE_S)
    assert waits, "no broker was away"
    assert (answered, answers) == (True, [[PLACE]])
    consumer.poll(0)
    assert told == [("shop", "new")]


def test_a_loop_that_only_commits_passes_credentials_on(
    make: Make, send: Send, kafka: MockKafka, told: list[tuple[str, str]]
) -> None:
    """It may repeat its commit until one succeeds, and ask for no message before that."""
    send("a", "b")
    consumer = make(config=PATIENT)
    consumer.assign([PLACE])
    [first] = poll_some(consumer, 1)
    kafka.set_broker_down()
    waiting = in_thread(lambda: consumer.commit(message=first, asynchronous=False))
    waiting.join(0.5)
    renewing = in_thread(lambda: consumer.set_sasl_credentials("shop", "new"))
    renewing.join(LATE_S)
    renewed_beside = not renewing.is_alive()
    kafka.set_broker_up()
    waiting.join(PATIENCE_S)
    consumer.commit(message=first, asynchronous=False)
    assert (renewed_beside, told) == (True, [("shop", "new")])


@pytest.mark.parametrize("password", ["a\0b", "a\ud800"])
def test_credentials_that_no_client_can_send_are_refused(make: Make, send: Send, password: str) -> None:
    """At the call, without the password: else each later call of the loop would fail."""
    send("a")
    consumer = make("orders")
    with pytest.raises(ValueError, match=r"^password has a character that no client can send"):
        consumer.set_sasl_credentials("shop", password)
    poll_some(consumer, 1)
