from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer

from dedup_sdk.testing import MockKafka, free_port
from tests.chaos import sender as sending
from tests.chaos import watch as watching
from tests.chaos.sender import Sender
from tests.chaos.topic_log import read_log
from tests.chaos.watch import CommitWatch
from tests.support.consuming import PATIENCE_S

_TOPIC = "t"


def test_a_sender_whose_client_forgot_every_broker_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it could not send is sent all the same, once its client has heard nothing for long."""
    monkeypatch.setattr(sending, "_SILENCE_S", 0.5)
    monkeypatch.setitem(sending._SETTINGS, "message.timeout.ms", 1_000)
    with MockKafka() as kafka:
        kafka.create_topic(_TOPIC, partitions=1)
        sender = Sender(kafka.bootstrap, _TOPIC, partitions=1, per_second=50, seed=1)
        sender._producer = Producer({
            **sending._SETTINGS, "bootstrap.servers": f"127.0.0.1:{free_port()}",
        })  # fmt: skip
        sender.start()
        until = time.monotonic() + PATIENCE_S
        while not sender.sent and time.monotonic() < until:
            time.sleep(0.1)
        sender.stop()
        assert {record.ident for record in read_log(kafka.bootstrap, _TOPIC, 1)} == {
            b"id-%d" % number for number in range(sender.sent)
        }
        assert sender.sent > 0


def test_a_watch_whose_client_forgot_every_broker_takes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is known again, once its client has heard nothing for long."""
    monkeypatch.setattr(watching, "_SILENCE_S", 0.5)
    monkeypatch.setattr(watching, "_ANSWER_S", 0.3)
    with MockKafka() as kafka:
        kafka.create_topic(_TOPIC, partitions=1)
        deaf = CommitWatch(f"127.0.0.1:{free_port()}", "g", _TOPIC, 1)
        deaf._config = {**deaf._config, "bootstrap.servers": kafka.bootstrap}
        with deaf as watch:
            assert watch.patiently(PATIENCE_S) == {}
