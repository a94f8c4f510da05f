from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer

from dedup_sdk.testing import MockKafka, free_port
from tests.chaos import sender as sending
from tests.chaos import watch as watching
from tests.chaos.sender import Sender
from tests.chaos.topic_log import read_log
from tests.chaos.watch import CommitWatch
from tests.support.consuming import PATIENCE_S

_TOPIC = "t"


def test_a_sender_whose_client_forgot_every_broker_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsent messages are sent all the same, once its client has heard nothing for long."""
    monkeypatch.setattr(sending, "SILENCE_S", 0.5)
    made: list[Producer] = []

    def deaf_at_first(config: dict[str, Any]) -> Producer:
        place = {} if made else {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
        made.append(Producer({**config, "message.timeout.ms": 1_000, **place}))
        return made[-1]

    monkeypatch.setattr(sending, "Producer", deaf_at_first)
    with MockKafka() as kafka:
        kafka.create_topic(_TOPIC, partitions=1)
        sender = Sender(kafka.bootstrap, _TOPIC, partitions=1, per_second=50, seed=1)
        sender.start()
        until = time.monotonic() + PATIENCE_S
        while not sender.sent and time.monotonic() < until:
            time.sleep(0.1)
        sender.stop()
        assert {record.ident for record in read_log(kafka.bootstrap, _TOPIC, 1)} == {
            b"id-%d" % number for number in range(sender.sent)
        }
        assert sender.sent > 0
        assert len(made) > 1


def test_a_watch_whose_client_forgot_every_broker_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits are known again, once its client has heard nothing for long."""
    monkeypatch.setattr(watching, "SILENCE_S", 0.5)
    monkeypatch.setattr(watching, "ANSWER_S", 0.3)
    made: list[Consumer] = []

    def deaf_at_first(config: dict[str, Any]) -> Consumer:
        place = {} if made else {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
        made.append(Consumer({**config, **place}))
        return made[-1]

    monkeypatch.setattr(watching, "Consumer", deaf_at_first)
    with MockKafka() as kafka:
        kafka.create_topic(_TOPIC, partitions=1)
        with CommitWatch(kafka.bootstrap, "g", _TOPIC, 1) as watch:
            assert watch.patiently(PATIENCE_S) == {}
        assert len(made) > 1
