"""New credentials of a consumer that runs: they reach each of its clients."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from dedup_sdk import DedupConsumer, MemoryStore
from dedup_sdk.testing._local_kafka import create_topic
from tests.support.consuming import PATIENCE_S, lookup, values
from tests.support.kafka_container import KafkaContainer
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

USER: Final = "shop"
AGAIN_MS: Final = 1_500
"""So long a login counts at the broker: a client that has not logged in again then is cut off."""


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaContainer]:
    """A broker whose second listener wants a login, again and again."""
    config = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "listener.name.login.scram-sha-256.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "connections.max.reauth.ms": str(AGAIN_MS),
    }
    with KafkaContainer(config=config, login_listener="LOGIN") as made:
        yield made


def set_password(kafka: KafkaContainer, password: str) -> None:
    """Make a password the user's only one."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    wanted = UserScramCredentialUpsertion(
        USER, ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096), password.encode()
    )
    admin.alter_user_scram_credentials([wanted])[USER].result(PATIENCE_S)


@pytest.mark.container
def test_new_credentials_reach_every_client(kafka: KafkaContainer) -> None:
    """After the password was changed the loop goes on, dead letters arrive, a question and a seek are answered."""
    create_topic(kafka.bootstrap, "orders")
    create_topic(kafka.bootstrap, "letters")
    produce(kafka.bootstrap, "orders", with_ids("a", "b"))
    set_password(kafka, "old")
    host, port = kafka.address("LOGIN")
    config = {
        "bootstrap.servers": f"{host}:{port}", "group.id": "g", "auto.offset.reset": "earliest", "log_level": 0,
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "SCRAM-SHA-256", "sasl.username": USER,
        "sasl.password": "old",
    }  # fmt: skip
    first = TopicPartition("orders", 0, OFFSET_BEGINNING)
    handled: list[str] = []
    asked: list[Any] = []

    def handle(message: Message) -> None:
        """On a thread of its own; all clients have logged in by now, and each has to do so again."""
        handled.extend(values([message]))
        if handled == ["a"]:
            asked.append(consumer.list_topics(timeout=10).cluster_id)
            set_password(kafka, "new")
            consumer.set_sasl_credentials(USER, "new")
            time.sleep(2 * AGAIN_MS / 1_000)
            asked.append(consumer.list_topics(timeout=10).cluster_id)
            raise ValueError
        until = time.monotonic() + PATIENCE_S
        while not consumer.counters.dead_lettered and time.monotonic() < until:
            time.sleep(0.05)
        # The leader is asked where the log begins, by another client than the one of the questions.
        consumer.seek(first)
        consumer.stop()

    with DedupConsumer(config, dedup=lookup(), store=MemoryStore()) as consumer:
        consumer.subscribe(["orders"])
        consumer.run(handle, on_error="dead-letter", attempts=1, dead_letters="letters")
        assert handled == ["a", "b"], "the loop went on"
        assert asked[0] == asked[1]
    with Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "reader", "log_level": 0}) as plain:
        assert plain.get_watermark_offsets(TopicPartition("letters", 0), PATIENCE_S) == (0, 1)
