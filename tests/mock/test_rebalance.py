from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from dedup_sdk._kafka.client.client import Client
from dedup_sdk._kafka.client.settings import Reset
from tests.support.consuming import PATIENCE_S, committed, poll_quiet, poll_some, values, wait_for

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_a_lost_partition_writes_and_commits_nothing(make: Make, send: Send, kafka: MockKafka) -> None:
    """A handler that outlives the group's patience: the event comes, then on_lost; messages in hand come again."""
    lost: list[list[TopicPartition]] = []
    send("a", "b")
    config = {"max.poll.interval.ms": 2000, "auto.commit.interval.ms": 600_000}
    consumer = make(config=config, completion="explicit")
    consumer.subscribe(["orders"], on_lost=lambda _, partitions: lost.append(partitions))
    first, second = poll_some(consumer, 2)
    consumer.complete(first)
    events: list[Any] = []
    while not lost:
        # Time is the subject: the client measures it between two polls, and says nothing before the second one.
        time.sleep(2.7)
        events += [event for event in [consumer.poll(0.1)] if event is not None]

    assert [event.error().code() for event in events if event.error() is not None] == [
        KafkaError._MAX_POLL_EXCEEDED
    ]
    assert committed(kafka.bootstrap, "g", "orders").offset == 0
    consumer.complete(second)
    assert consumer.counters.stale == 1
    assert values(poll_some(consumer, 1)) == ["b"]


@pytest.mark.parametrize("code", [KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._TRANSPORT])
def test_a_coordinator_that_does_not_answer_is_asked_again(
    make: Make, send: Send, kafka: MockKafka, code: int
) -> None:
    """Where the group's offsets are not known yet nothing is guessed: messages come once they are, from there on."""
    send("a", "b", "c")
    with make("orders") as before:
        poll_some(before, 2)
    kafka.push_errors("OffsetFetch", code, 3)
    consumer = make("orders")

    assert values(poll_some(consumer, 1)) == ["c"]


def test_a_refused_question_for_the_offsets_is_raised_and_asked_again(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Missing rights are the user's business.

    Nothing is delivered from a wrong place, and all of it once they are there.
    """
    send("a", "b")
    kafka.push_errors("OffsetFetch", KafkaError.GROUP_AUTHORIZATION_FAILED, 2)
    consumer = make("orders")

    with pytest.raises(KafkaException, match="GROUP_AUTHORIZATION_FAILED"):
        consumer.poll(PATIENCE_S)
    assert values(poll_some(consumer, 2)) == ["a", "b"]


@pytest.mark.parametrize("code", [KafkaError._UNKNOWN_PARTITION, KafkaError.FENCED_LEADER_EPOCH])
def test_what_the_client_has_not_heard_of_yet_is_asked_for_again(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A partition added, or a broker started, a moment ago is no reason to fail.

    It begins when the client knows where.
    """
    send("a", "b")
    unknown = [KafkaException(KafkaError(code))] * 2
    edge = Client.edge

    def not_yet(self: Client, topic: str, partition: int, reset: Reset) -> int:
        if unknown:
            raise unknown.pop()
        return edge(self, topic, partition, reset)

    monkeypatch.setattr(Client, "edge", not_yet)

    assert values(poll_some(make("orders"), 2)) == ["a", "b"]
    assert not unknown


def test_a_cluster_that_does_not_answer_is_waited_for(
    make: Make, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that goes while a partition recovers is waited for, as the plain client does, and nothing is raised."""
    send("a", "b")
    unreachable = [KafkaException(KafkaError(KafkaError._TRANSPORT))] * 2
    names = Client.cluster_id

    def not_now(self: Client) -> str:
        if unreachable:
            raise unreachable.pop()
        return names(self)

    monkeypatch.setattr(Client, "cluster_id", not_now)

    assert values(poll_some(make("orders"), 2)) == ["a", "b"]
    assert not unreachable


def test_partitions_taken_by_hand_behave_the_same(make: Make, send: Send, kafka: MockKafka) -> None:
    """assign() begins where the group stands, or where its offset says.

    Replacing an assignment gives the old one back.
    """
    send("a", "b", "a", topic="pairs", partition=0)
    send("x", "y", topic="pairs", partition=1)
    consumer = make()
    consumer.assign([TopicPartition("pairs", 0)])
    assert values(poll_some(consumer, 2)) == ["a", "b"]
    poll_quiet(consumer)
    consumer.assign([TopicPartition("pairs", 1, 1)])
    assert values(poll_some(consumer, 1)) == ["y"]
    assert committed(kafka.bootstrap, "g", "pairs", 0).offset == 3
    consumer.incremental_assign([TopicPartition("pairs", 0)])
    send("b", "c", topic="pairs", partition=0)
    assert values(poll_quiet(consumer)) == ["c"]
    consumer.incremental_unassign([TopicPartition("pairs", 1)])
    consumer.unassign()

    assert consumer.assignment() == []
    assert committed(kafka.bootstrap, "g", "pairs", 1).offset == 2


def test_letting_partitions_go_keeps_what_was_asked_past(make: Make, send: Send, kafka: MockKafka) -> None:
    """Unsubscribing releases the last hand-out only, also while a batch is not through."""
    send(*"abcdef")
    consumer = make("orders")
    assert values(poll_some(consumer, 3)) == ["a", "b", "c"]
    consumer.unsubscribe()
    wait_for(consumer, lambda: consumer.assignment() == [], "the end of the assignment")
    assert committed(kafka.bootstrap, "g", "orders").offset == 2
    assert values(poll_some(make("orders"), 4)) == ["c", "d", "e", "f"]
