"""KIP-848: a client whose group coordinator does not answer goes on fetching; the group may put it out meanwhile."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk._kafka.client.client import Client
from dedup_sdk.testing import MockKafka
from tests.support import inside
from tests.support.consuming import (
    committed,
    make_consumer,
    poll_quiet,
    poll_some,
    progress,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from dedup_sdk import MemoryStore

LEADER, COORDINATOR = 1, 2
PATIENCE_S = 15.0
"""A few revoke deadlines, and half of the session timeout."""
DEADLINE_S = 2.0
CONFIG = {"group.protocol": "consumer", "auto.commit.interval.ms": 100, "fetch.wait.max.ms": 50}


def send(kafka: MockKafka, *ids: str) -> None:
    """Send one record an ID to orders[0]."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0})
    for each in ids:
        producer.produce("orders", each, headers={"dedup-id": each}, partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("put_out", [False, True])
def test_what_is_handled_without_the_coordinator_counts_once(memory: MemoryStore, *, put_out: bool) -> None:
    """It is in the store, and not called committed.

    When the coordinator is back it is committed, or known to be handled.
    """
    with MockKafka(brokers=2) as kafka:
        kafka.create_topic("orders")
        kafka.set_leader("orders", 0, LEADER)
        kafka.set_coordinator("g", COORDINATOR)
        send(kafka, "a", "b")
        lost: list[TopicPartition] = []
        consumer = make_consumer(kafka.bootstrap, "g", memory, CONFIG)
        consumer.subscribe(["orders"], on_lost=lambda _, partitions: lost.extend(partitions))
        assert values(poll_some(consumer, 2)) == ["a", "b"]
        wait_for(consumer, lambda: committed(kafka.bootstrap, "g", "orders").offset == 2, "the commit")

        kafka.set_broker_down(COORDINATOR)
        send(kafka, "c", "d", "c")
        assert values([*poll_some(consumer, 2), *poll_quiet(consumer)]) == ["c", "d"]
        assert progress(consumer) == (5, 0)
        assert inside.partition_of(consumer).flight.committed == 2
        assert [status.state for status in consumer.partition_statuses] == ["active"]

        if put_out:
            kafka.push_errors("ConsumerGroupHeartbeat", KafkaError.UNKNOWN_MEMBER_ID)
        kafka.set_broker_up(COORDINATOR)
        again = wait_for(consumer, lambda: bool(lost), "the loss") if put_out else []
        send(kafka, "d", "e")
        again += wait_for(
            consumer, lambda: committed(kafka.bootstrap, "g", "orders").offset == 7, "a commit of everything"
        )
        assert values(again) == ["e"]
        assert [tp.partition for tp in lost] == ([0] if put_out else [])
        assert consumer.counters.verdicts["redelivered"] == (3 if put_out else 0)
        consumer.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("static", [False, True])
def test_a_close_without_the_coordinator_is_bounded(
    memory: MemoryStore, *, protocol: str, static: bool
) -> None:
    """It ends within some revoke deadlines, not after the session timeout.

    Completed messages are in the store and not handled again.
    """
    config = {
        "group.protocol": protocol,
        "fetch.wait.max.ms": 50,
        **({"session.timeout.ms": 30_000} if protocol == "classic" else {}),
        **({"group.instance.id": "one"} if static else {}),
    }
    with MockKafka(brokers=2) as kafka:
        kafka.create_topic("orders")
        kafka.set_leader("orders", 0, LEADER)
        kafka.set_coordinator("g", COORDINATOR)
        send(kafka, "a", "b")
        consumer = make_consumer(kafka.bootstrap, "g", memory, config, revoke_deadline=1.0)
        consumer.subscribe(["orders"])
        assert values(poll_some(consumer, 2)) == ["a", "b"]
        kafka.set_broker_down(COORDINATOR)
        closing = threading.Thread(target=consumer.close, daemon=True)
        closing.start()
        closing.join(PATIENCE_S)
        assert not closing.is_alive()
        kafka.set_broker_up(COORDINATOR)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """While it is set, no coordinator says which offsets its group has committed."""
    is_silent, real = threading.Event(), Client.committed

    def ask(client: Client, *arguments: Any) -> Any:
        if is_silent.is_set():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return real(client, *arguments)

    monkeypatch.setattr(Client, "committed", ask)
    return is_silent


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"partition.assignment.strategy": "cooperative-sticky"},
        {"group.instance.id": "one"},
        {"group.protocol": "consumer"},
        {"enable.auto.commit": False},
    ],
    ids=str,
)
def test_the_last_commit_of_a_member_is_sent_without_an_answer(
    memory: MemoryStore, silence: threading.Event, config: dict[str, Any]
) -> None:
    """No answer comes in time: it is only the answer that is given up."""
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        send(kafka, "a", "b", "c", "c")
        consumer = make_consumer(
            kafka.bootstrap, "g", memory, {"fetch.wait.max.ms": 50, **config}, revoke_deadline=DEADLINE_S
        )
        consumer.subscribe(["orders"])
        poll_some(consumer, 3)
        if config == {"enable.auto.commit": False}:
            consumer.commit(asynchronous=False)
        assert poll_quiet(consumer) == []
        silence.set()
        consumer.close()
        assert committed(kafka.bootstrap, "g", "orders").offset == 4


def test_of_a_partition_assigned_by_hand_no_commit_is_sent_without_an_answer(
    memory: MemoryStore, silence: threading.Event
) -> None:
    """No group would refuse it when another program has the partition, and has gone on."""
    with MockKafka() as kafka:
        kafka.create_topic("orders")
        send(kafka, "a", "b")
        consumer = make_consumer(kafka.bootstrap, "g", memory, revoke_deadline=DEADLINE_S)
        consumer.assign([TopicPartition("orders", 0)])
        poll_some(consumer, 2)
        assert poll_quiet(consumer) == []
        silence.set()
        consumer.close()
        assert committed(kafka.bootstrap, "g", "orders").offset == 0
