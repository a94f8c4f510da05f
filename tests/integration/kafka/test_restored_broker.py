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

KEPT, LOST, OTHERS, LATER = numbers(0, 80), numbers(80, 100), numbers(200, 230), numbers(300, 310)
LOOKUP, LAST_ID = lookup(), LastId(id=header("dedup-id"), order=integer(), reorder_depth=200)


def send(kafka: LocalKafka, ids: Iterable[str]) -> None:
    """Send records whose value is their ID."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for each in ids:
        producer.produce("orders", each, headers={"dedup-id": each}, partition=0)
    assert producer.flush(30) == 0


def restore(kafka: LocalKafka, backup: Path, restarts: int = 0) -> None:
    """Put the disk of a running broker back to its backup; each restart begins a leader epoch."""
    kafka.kill()
    shutil.rmtree(kafka.log.parent)
    shutil.copytree(backup, kafka.log.parent)
    kafka.start()
    for _ in range(restarts):
        kafka.kill()
        kafka.start()


def back_up(kafka: LocalKafka, backup: Path) -> None:
    """Copy the disk of a running broker."""
    kafka.kill()
    shutil.copytree(kafka.log.parent, backup)
    kafka.start()


def handle(kafka: LocalKafka, store: Path, count: int, dedup: Lookup | LastId) -> list[str]:
    """Handle so many messages, and leave."""
    with make_consumer(kafka.bootstrap, "g", store, dedup=dedup) as consumer:
        consumer.subscribe(["orders"])
        return values(poll_some(consumer, count))


def handle_and_restore(kafka: LocalKafka, folder: Path, dedup: Lookup | LastId, restarts: int = 0) -> None:
    """Handle 80 messages on host "one", then 20 more; the backup of before these comes back."""
    kafka.create_topic("orders")
    send(kafka, KEPT)
    assert handle(kafka, folder / "one", 80, dedup) == KEPT
    back_up(kafka, folder / "backup")
    send(kafka, LOST)
    assert handle(kafka, folder / "one", 20, dedup) == LOST
    restore(kafka, folder / "backup", restarts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("dedup", [LOOKUP, LAST_ID], ids=["lookup", "last-id"])
def test_nothing_of_a_restored_broker_is_hidden(tmp_path: Path, dedup: Lookup | LastId) -> None:
    """80 messages are handled, then 20 more.

    The backup of before these comes back, and 30 others are sent: all of them are delivered.
    """
    with LocalKafka() as kafka:
        handle_and_restore(kafka, tmp_path, dedup)
        send(kafka, OTHERS)
        assert handle(kafka, tmp_path / "one", 30, dedup) == OTHERS


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "restarts", "dedup"),
    [(30, 0, LOOKUP), (30, 2, LOOKUP), (15, 0, LOOKUP), (30, 0, LAST_ID)],
    ids=["same-epoch", "later-epoch", "commit-below-the-store", "last-id"],
)
def test_a_host_counts_nothing_of_the_old_log_where_another_one_went_on(
    tmp_path: Path, count: int, restarts: int, dedup: Lookup | LastId
) -> None:
    """Another host handles messages in the places of the lost ones: their copies are hidden on the first host, too."""
    with LocalKafka() as kafka:
        handle_and_restore(kafka, tmp_path, dedup, restarts)
        send(kafka, OTHERS[:count])
        assert handle(kafka, tmp_path / "another", count, dedup) == OTHERS[:count]
        send(kafka, [*OTHERS[:count], *LATER])
        assert handle(kafka, tmp_path / "one", len(LATER), dedup) == LATER
