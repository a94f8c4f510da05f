"""A consumer's status of its partitions: the state of each, and its hindrance."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._kafka.assign import assignment
from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.recover import upkeep
from dedup_sdk._store.rocks import RocksStore
from tests.support.consuming import PATIENCE_S, commit_plainly, poll_quiet, poll_some, run_all, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dedup_sdk import DedupConsumer, PartitionStatus
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS = TopicPartition("orders", 0)


def only(consumer: DedupConsumer) -> PartitionStatus:
    """The status of the one partition in hand."""
    [status] = consumer.partition_statuses
    return status


def test_a_partition_without_trouble(make: Make, send: Send) -> None:
    """Nobody has one before the group gives it; then it is active, with nothing in its way.

    After the end there is none.
    """
    send("a", "b", "a")
    consumer = make("orders")
    assert consumer.partition_statuses == []
    poll_quiet(consumer)
    status = only(consumer)
    assert (status.topic, status.partition, status.state, status.hindrances) == ("orders", 0, "active", ())
    assert (status.position, status.in_flight, status.detail) == (3, 0, "new")
    assert status.effective_window_ms == 7 * 86_400_000
    consumer.close()
    assert consumer.partition_statuses == []


def test_an_unknown_past_is_said(
    make: Make, send: Send, kafka: MockKafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Where new IDs are unverified for now the status says so, and the line after the rebalance too."""
    send("a", "b")
    commit_plainly(kafka.bootstrap, "g", "orders", 1)
    consumer = make("orders")
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        poll_some(consumer, 1)
    assert only(consumer).hindrances == ("uncovered",)
    assert "ready 1 partition: orders[0]@1 (missing, uncovered, " in caplog.text


def test_a_pause_of_the_application_is_said(make: Make, send: Send) -> None:
    """It is told from a pause of ours, until it is over."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    consumer.pause([ORDERS])
    assert only(consumer).hindrances == ("paused",)
    consumer.resume([ORDERS])
    assert only(consumer).hindrances == ()


def test_a_backlog_is_said(make: Make, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is paused because too much waits for one message says so until that is completed."""
    monkeypatch.setattr(upkeep, "MOST_WAITING", 5)
    send(*map(str, range(20)))
    consumer = make("orders", completion="explicit")
    messages = wait_for(
        consumer, lambda: any(s.hindrances == ("backlog",) for s in consumer.partition_statuses), "it"
    )
    assert only(consumer).in_flight > 5
    messages += poll_quiet(consumer)
    for message in messages:
        consumer.complete(message)
    wait_for(consumer, lambda: only(consumer).hindrances == (), "the end of the backlog")


@pytest.mark.parametrize("config", [{"enable.auto.commit": False}, {"enable.auto.offset.store": False}])
def test_offsets_that_go_elsewhere_are_said(
    make: Make,
    send: Send,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, bool],
) -> None:
    """A loop that never completes hears of it once, with the remedy, before the partition is paused.

    Doing that ends it.
    """
    monkeypatch.setattr(assignment, "MANY", 5)
    send(*map(str, range(20)))
    consumer = make("orders", config=config)
    messages = poll_some(consumer, 20)
    poll_quiet(consumer)
    assert only(consumer).hindrances == ("uncompleted",)
    [line] = [line for line in caplog.messages if "nothing was completed" in line]
    assert line.startswith("orders[0]: 20 records are in flight, and nothing was completed since offset 0: ")
    assert "call store_offsets() for handled messages" in line

    consumer.store_offsets(messages[9])
    poll_quiet(consumer)
    assert only(consumer).hindrances == ()


def test_completing_by_asking_for_more_is_never_uncompleted(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the loop itself completes, many messages in flight are nothing to warn of."""
    monkeypatch.setattr(assignment, "MANY", 5)
    work, looks, seen = upkeep.Upkeep.work, list[int](), list[tuple[str, ...]]()

    def counted(self: upkeep.Upkeep, **given: Any) -> Any:
        looks.append(1)
        return work(self, **given)

    def until(condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < ends
            time.sleep(0.01)

    def handle(message: Any) -> None:
        if message.offset() == 0:
            until(lambda: only(consumer).in_flight == 20)
            looked = len(looks)
            until(lambda: len(looks) >= looked + 2)
            seen.append(only(consumer).hindrances)

    monkeypatch.setattr(upkeep.Upkeep, "work", counted)
    send(*map(str, range(20)))
    consumer = make("orders")
    run_all(consumer, handle)
    assert seen == [()]


def test_group_metadata_for_a_transaction_comes_with_a_warning(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """A transactional loop gets the plain client's metadata, and hears once whose offsets have a text."""
    consumer = make("orders")
    assert type(consumer.consumer_group_metadata()) is type(consumer.consumer_group_metadata())
    assert len([line for line in caplog.messages if "those of transaction_offsets(messages)" in line]) == 1


def test_waiting_for_a_lock_is_said(
    make: Make, send: Send, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While another owner keeps the store open the partition recovers, waits for the lock, and logs that once."""
    send("a", "b")
    owner = make(store=RocksStore(tmp_path))
    owner.assign([ORDERS])
    poll_some(owner, 2)
    consumer = make(store=RocksStore(tmp_path, lock_wait=30))
    consumer.assign([ORDERS])
    with caplog.at_level(logging.INFO, "dedup_sdk"):
        assert wait_for(consumer, lambda: "waits for its store" in caplog.text, "the line in the log") == []
        assert consumer.poll(0.5) is None
    assert (only(consumer).state, only(consumer).hindrances) == ("recovering", ("lock",))
    assert caplog.text.count("orders[0] waits for its store") == 1
    owner.close()
    wait_for(consumer, lambda: only(consumer).state == "active", "the lock")
    assert only(consumer).hindrances == ()


def test_a_group_that_does_not_answer_is_said(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody tells the group's offsets the partition waits for them."""
    send("a")

    def silent(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as patch:
        patch.setattr(Client, "committed", silent)
        consumer = make("orders")
        wait_for(consumer, lambda: len(consumer.partition_statuses) == 1, "the partition")
        assert (only(consumer).state, only(consumer).hindrances) == ("recovering", ("offsets",))
    poll_some(consumer, 1)
    assert only(consumer).hindrances == ()
