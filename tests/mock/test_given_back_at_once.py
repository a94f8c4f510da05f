"""A loss that is interrupted, and partitions that the group gives back inside the same call of the loop."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError

from dedup_sdk._kafka.deliver.handover import Handover
from tests.support.consuming import poll_some, values
from tests.support.interrupting import Interrupted

if TYPE_CHECKING:
    import pytest

    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

_PATIENCE_S = 20.0


def test_a_partition_that_comes_back_at_once_after_an_interrupted_loss_is_read(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With KIP-848 the new assignment comes milliseconds after the loss: before anything could be reopened."""
    lose, struck = Handover.lose, list[int]()

    def interrupt(*arguments: Any) -> None:
        if not struck:
            struck.append(1)
            raise Interrupted
        lose(*arguments)

    send("a")
    consumer = make("orders", config={"group.protocol": "consumer"})
    assert values(poll_some(consumer, 1)) == ["a"]
    monkeypatch.setattr(Handover, "lose", interrupt)
    kafka.push_errors("ConsumerGroupHeartbeat", KafkaError.UNKNOWN_MEMBER_ID)
    got: list[str] = []
    until = time.monotonic() + _PATIENCE_S
    while not struck and time.monotonic() < until:
        with suppress(Interrupted):
            consumer.poll(0.3)
    assert struck
    send("b")
    while "b" not in got and time.monotonic() < until:
        with suppress(Interrupted):
            message = consumer.poll(0.3)
            got += values([message]) if message is not None else []

    assert "b" in got, (consumer.assignment(), consumer.partition_statuses)
