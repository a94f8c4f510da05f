"""A broker that is restored from a backup of its disk.

Other records lie at offsets that the group has handled, at the same leader epoch.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from dedup_sdk import LastId, Lookup, header
from dedup_sdk.orders import integer
from dedup_sdk.testing import LocalKafka
from tests.support.consuming import lookup, make_consumer, numbers, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = [pytest.mark.broker, pytest.mark.slow]

KEPT, LOST, OTHERS = numbers(0, 80), numbers(80, 100), numbers(200, 230)


def send(kafka: LocalKafka, ids: Iterable[str]) -> None:
    """Send records whose value is their ID."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for each in ids:
        producer.produce("orders", each, headers={"dedup-id": each}, partition=0)
    assert producer.flush(30) == 0


def handle(kafka: LocalKafka, store: Path, count: int, dedup: Lookup | LastId) -> list[str]:
    """Handle so many messages, and leave."""
    with make_consumer(kafka.bootstrap, "g", store, dedup=dedup) as consumer:
        consumer.subscribe(["orders"])
        return values(poll_some(consumer, count))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "dedup",
    [lookup(), LastId(id=header("dedup-id"), order=integer(), reorder_depth=200)],
    ids=["lookup", "last-id"],
)
def test_nothing_of_a_restored_broker_is_hidden(tmp_path: Path, dedup: Lookup | LastId) -> None:
    """80 messages are handled, then 20 more.

    The backup of before these comes back, and 30 others are sent: all of them are delivered.
    """
    with LocalKafka() as kafka:
        kafka.create_topic("orders")
        folder, backup = kafka.log.parent, tmp_path / "backup"
        send(kafka, KEPT)
        assert handle(kafka, tmp_path / "store", 80, dedup) == KEPT
        kafka.kill()
        shutil.copytree(folder, backup)
        kafka.start()
        send(kafka, LOST)
        assert handle(kafka, tmp_path / "store", 20, dedup) == LOST
        kafka.kill()
        shutil.rmtree(folder)
        shutil.copytree(backup, folder)
        kafka.start()
        send(kafka, OTHERS)
        assert handle(kafka, tmp_path / "store", 30, dedup) == OTHERS
