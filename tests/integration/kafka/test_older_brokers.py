"""Transactions from Kafka to Kafka with the transactions of Kafka 4 (KIP-890), and with those before."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer

from dedup_sdk.errors import TransactionError
from dedup_sdk.testing import LocalKafka
from tests.integration.kafka.test_transactions import IDLE_S, OUT, copy, failing, seen
from tests.support.consuming import numbers
from tests.support.older_kafka import OlderKafka
from tests.support.worlds import World

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
_LIMIT_S = 1.0
_LIMIT_MS = int(1_000 * _LIMIT_S)
_ENDING = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


@pytest.fixture(scope="module", params=[LocalKafka, OlderKafka], ids=["version 2", "version 0"])
def bootstrap(request: pytest.FixtureRequest) -> Iterator[str]:
    """A broker that ends transactions as soon as they have taken too long."""
    with request.param(config=_ENDING) as kafka:
        yield kafka.bootstrap


@pytest.fixture
def world(bootstrap: str, group: str, tmp_path: Path) -> Iterator[World]:
    """A world of its own on this broker."""
    with ExitStack() as stack:
        world = World(bootstrap, group, group, tmp_path, stack)
        world.create_topic(group)
        yield world


@pytest.fixture
def out(world: World) -> str:
    """A topic for what is produced."""
    return world.create_topic(f"{world.topic}-{OUT}")


def test_each_message_is_there_once(world: World, out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an exception, an unknown end, and on an empty disk."""
    world.send(*numbers(0, 20))

    def fail(message: Message) -> None:
        if message.value() == b"12":
            raise ValueError("not yet")

    with monkeypatch.context() as patched:
        patched.setattr("dedup_sdk._transactions.producer.Producer", failing(is_done=False))
        with world.consumer(idle_timeout=IDLE_S) as consumer, pytest.raises(ValueError, match="not yet"):
            copy(consumer, out, fail, max_messages=5)
    world.send(*numbers(0, 30))
    with world.consumer("two", idle_timeout=IDLE_S) as consumer:
        copy(consumer, out, max_messages=7)
    assert seen(world, out) == numbers(0, 30)


def test_a_transaction_that_takes_too_long_comes_again(
    world: World, out: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker ends it; the log names the setting, and the messages are counted as released."""
    world.send(*numbers(0, 10))
    slow = [2 * _LIMIT_S]

    def handle(message: Message) -> None:
        if message.value() == b"6" and slow:
            time.sleep(slow.pop())

    given: dict[str, Any] = {"producer": {"transaction.timeout.ms": _LIMIT_MS}}
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        counted = copy(consumer, out, handle, max_messages=5, **given)
    assert (counted["fresh"], counted["completed"]) == (10, 10)
    assert counted["released"] > 0
    [told] = [each.message for each in caplog.records if "is aborted" in each.message]
    assert "the broker ends a transaction after 1 s (transaction.timeout.ms)" in told
    assert seen(world, out) == numbers(0, 10)


def test_a_producer_of_yours_whose_transaction_takes_too_long_is_of_no_use(
    world: World, out: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot begin another one; the next consumer gets the messages, and nothing is lost or doubled."""
    world.send(*numbers(0, 3))
    producer = Producer({
        "bootstrap.servers": world.bootstrap, "transactional.id": world.group, "transaction.timeout.ms": _LIMIT_MS,
        "log_level": 0,
    })  # fmt: skip
    with (
        world.consumer(idle_timeout=IDLE_S) as consumer,
        pytest.raises(TransactionError, match="close the consumer"),
    ):
        copy(consumer, out, lambda _: time.sleep(2 * _LIMIT_S), max_messages=1, producer=producer)
    assert "the transaction.timeout.ms of your Producer" in caplog.text
    with world.consumer(idle_timeout=IDLE_S) as consumer:
        copy(consumer, out)
    assert seen(world, out) == numbers(0, 3)
