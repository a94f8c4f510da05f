from __future__ import annotations

import ctypes
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from dedup_sdk.errors import KafkaHelperError
from dedup_sdk.testing import MockKafka
from dedup_sdk.testing._mock_kafka import MockLibrary
from tests.support.consuming import PATIENCE_S
from tests.support.producing import produce, with_ids

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def kafka() -> Iterator[MockKafka]:
    """A mock cluster with the topic "orders" of 2 partitions."""
    with MockKafka() as mock:
        mock.create_topic("orders", partitions=2)
        yield mock


def _consumer(kafka: MockKafka, **settings: Any) -> Consumer:
    common = {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": "g",
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    return Consumer({**common, "session.timeout.ms": 2000, "heartbeat.interval.ms": 100, **settings})


def test_a_group_reads_what_was_produced(kafka: MockKafka) -> None:
    """A consumer group works at once: no wait for more members before the first assignment."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b", "c"))
    waited = []
    # A machine may stand still for a while, but not each time.
    for group in range(5):
        consumer = _consumer(kafka, **{"group.id": f"{group}"})
        try:
            consumer.subscribe(["orders"])
            began = time.monotonic()
            first = consumer.poll(PATIENCE_S)
            waited.append(time.monotonic() - began)
            rest = consumer.consume(2, PATIENCE_S)
        finally:
            consumer.close()

        assert first is not None
        assert [message.value() for message in [first, *rest]] == [b"a", b"b", b"c"]
        if waited[-1] < 2.5:
            return
    pytest.fail(f"the first message came after {waited} s each; the mock's own initial delay is 3 s")


def test_a_topic_has_the_partitions_it_was_given(kafka: MockKafka) -> None:
    """create_topic decides the number of partitions, not the mock's default of 4."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})

    assert len(producer.list_topics("orders", timeout=10).topics["orders"].partitions) == 2


def test_pushed_errors_come_once_each(kafka: MockKafka) -> None:
    """The next commit fails with the given code, the one after it works."""
    consumer = _consumer(kafka, **{"enable.auto.commit": False})
    offsets = [TopicPartition("orders", 0, 1)]
    try:
        consumer.assign([TopicPartition("orders", 0)])
        consumer.commit(offsets=offsets, asynchronous=False)
        kafka.push_errors("OffsetCommit", KafkaError.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(KafkaException) as caught:
            consumer.commit(offsets=offsets, asynchronous=False)
        kafka.push_errors("OffsetCommit", KafkaError.TOPIC_AUTHORIZATION_FAILED, count=5)
        kafka.clear_errors("OffsetCommit")
        consumer.commit(offsets=offsets, asynchronous=False)
    finally:
        consumer.close()

    assert caught.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_deleted_records_are_gone(kafka: MockKafka) -> None:
    """delete_records moves a partition's beginning, as retention does."""
    produce(kafka.bootstrap, "orders", with_ids("a", "b", "c"))

    kafka.delete_records("orders", 0, 2)

    consumer = _consumer(kafka)
    try:
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (2, 3)
    finally:
        consumer.close()


def _accepts(bootstrap: str) -> bool:
    host, port = bootstrap.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def test_a_broker_goes_down_and_comes_back(kafka: MockKafka) -> None:
    """A broker that is down refuses connections, and serves its records when it is up again."""
    produce(kafka.bootstrap, "orders", with_ids("a"))

    kafka.set_broker_down()
    assert not _accepts(kafka.bootstrap)
    kafka.set_broker_up(1)

    consumer = _consumer(kafka)
    try:
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=10) == (0, 1)
    finally:
        consumer.close()


def test_answers_can_be_delayed(kafka: MockKafka) -> None:
    """set_rtt makes every answer as late as it says."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.list_topics("orders", timeout=10)

    kafka.set_rtt(300)
    began = time.monotonic()
    producer.list_topics("orders", timeout=10)

    assert time.monotonic() - began >= 0.3


def test_leaders_and_coordinators_move_between_brokers() -> None:
    """Of several brokers each can be a partition's leader; a topic can answer with an error."""
    with MockKafka(brokers=3) as kafka:
        kafka.create_topic("orders", partitions=1, replicas=3)
        kafka.set_coordinator("g", 2)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        leaders = []
        for broker in (1, 2, 3):
            kafka.set_leader("orders", 0, broker)
            leaders.append(producer.list_topics("orders", timeout=10).topics["orders"].partitions[0].leader)
        kafka.set_topic_error("orders", KafkaError.TOPIC_AUTHORIZATION_FAILED)
        error = producer.list_topics("orders", timeout=10).topics["orders"].error

        assert len(kafka.bootstrap.split(",")) == 3
    assert leaders == [1, 2, 3]
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_wrong_use_is_one_line(kafka: MockKafka) -> None:
    """An unknown request, an impossible topic and a stopped cluster are errors that name the value."""
    with pytest.raises(KafkaHelperError, match="knows no request 'Commit': one of Produce"):
        kafka.push_errors("Commit", KafkaError.UNKNOWN)
    with pytest.raises(KafkaHelperError, match=r"topic_create\(b'orders', 1, 1\) was refused"):
        kafka.create_topic("orders")
    with pytest.raises(KafkaHelperError, match="brokers=0"):
        MockKafka(brokers=0)
    kafka.stop()
    kafka.stop()
    with pytest.raises(KafkaHelperError, match="was stopped"):
        kafka.set_rtt(1)


def test_a_library_without_the_mock_is_one_line() -> None:
    """A librdkafka that hides its mock cluster is said in one line, with the remedy."""
    with pytest.raises(KafkaHelperError, match=r"has no rd_kafka_.*: install confluent-kafka's own wheel"):
        MockLibrary(ctypes.CDLL(None))
