from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import KafkaError, Producer

from dedup_sdk._demo import DemoError
from dedup_sdk._demo.flights import Flight, RetryingProducer
from dedup_sdk._demo.oracle import Topic
from dedup_sdk.testing import MockKafka

if TYPE_CHECKING:
    from collections.abc import Iterator

FLIGHTS = [Flight(f"id-{number}", f"key-{number % 7}".encode(), b"{}") for number in range(3_000)]
IDS = {flight.dedup_id for flight in FLIGHTS}


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    """A mock cluster with topic ``flights``."""
    with MockKafka() as mock:
        mock.create_topic("flights", partitions=2)
        yield mock


@pytest.fixture
def topic(kafka: MockKafka) -> Iterator[Topic]:
    """The topic as the oracle sees it."""
    with Topic(kafka.bootstrap, "flights", group="billing", partitions=2) as opened:
        yield opened


def test_everything_arrives_once_when_nothing_fails(kafka: MockKafka, topic: Topic) -> None:
    """Without faults and repeats, each flight is one record, and the progress ends at their number."""
    producer = RetryingProducer(kafka.bootstrap, "flights")
    assert list(producer.send(FLIGHTS)) == [1_000, 2_000, 3_000, 3_000]
    counts = topic.count_ids(topic.ends())
    assert counts.keys() == IDS
    assert counts.total() == len(FLIGHTS)
    assert (producer.retried, producer.repeated) == (0, 0)


def test_what_was_not_confirmed_is_sent_again(kafka: MockKafka, topic: Topic) -> None:
    """Failed requests are resent by the application, as often as needed, until the topic has every flight."""
    kafka.push_errors("Produce", KafkaError.REQUEST_TIMED_OUT, 5)
    producer = RetryingProducer(kafka.bootstrap, "flights")
    for _ in producer.send(FLIGHTS):
        pass
    assert producer.retried > 0
    assert topic.count_ids(topic.ends()).keys() == IDS


def test_the_needless_repeats_are_a_seeded_share(kafka: MockKafka, topic: Topic) -> None:
    """About the given share is sent twice, the same flights in every run, and counted exactly."""
    producer = RetryingProducer(kafka.bootstrap, "flights", repeat_share=0.1)
    for _ in producer.send(FLIGHTS):
        pass
    counts = topic.count_ids(topic.ends())
    assert counts.total() - len(FLIGHTS) == producer.repeated
    assert 200 < producer.repeated < 400
    assert set(counts.values()) == {1, 2}


def test_records_without_an_id_end_the_count(kafka: MockKafka, topic: Topic) -> None:
    """The oracle refuses a topic with records that the demo did not send."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce("flights", value=b"stray", partition=0)
    producer.flush()
    with pytest.raises(DemoError, match=r"flights\[0\]@0 has no dedup-id"):
        topic.count_ids(topic.ends())
