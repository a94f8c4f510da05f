from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from dedup_sdk.errors import RecoveryError
from dedup_sdk.kafka import client
from dedup_sdk.kafka.passing import passes
from dedup_sdk.kafka.settings import client_settings


class Admin:
    """An admin client that describes no topic: it gets an error instead."""

    code = 0

    def __init__(self, _: Any) -> None:
        pass

    def describe_topics(self, _: Any, **_others: Any) -> dict[str, Future[Any]]:
        """Answer with the error."""
        future: Future[Any] = Future()
        future.set_exception(KafkaException(KafkaError(self.code)))
        return {"orders": future}


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TIMED_OUT, KafkaException),
        (KafkaError._TRANSPORT, KafkaException),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, RecoveryError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, RecoveryError),
    ],
)
def test_a_broker_that_does_not_answer_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: type[Exception]
) -> None:
    """When nobody says which topic it is, recovery goes on later; a refusal, or a topic that is not there, is an error."""
    monkeypatch.setattr(client, "AdminClient", Admin)
    monkeypatch.setattr(client.Client, "cluster_id", lambda _: "real")
    monkeypatch.setattr(Admin, "code", code)
    consumer = Consumer({"group.id": "g"})
    asked = client.Client(consumer, client_settings({"group.id": "g"}))
    with pytest.raises(expected) as raised:
        asked.topic_id("orders")
    assert not isinstance(raised.value, KafkaException) or passes(raised.value)
    consumer.close()
