from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Consumer, TopicPartition

from tests.support.producing import Outgoing, with_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conftest import MakeTopic
    from tests.support.brokers import Broker


def test_what_is_produced_is_there(
    broker: Broker,
    make_topic: MakeTopic,
    group: str,
    produce: Callable[[str, Iterable[Outgoing]], int],
) -> None:
    """The run's broker keeps order, headers (null, empty), keys and timestamps of any year, whichever broker it is."""
    topic = make_topic(partitions=2)
    odd = Outgoing(
        value=None, key=b"k", headers=[("h", None), ("h", b"")], partition=1, timestamp_ms=1_356_998_400_000
    )
    assert produce(topic, [*with_ids("a", "b", partition=1), odd]) == 3

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        consumer.assign([TopicPartition(topic, 1, 0)])
        read = consumer.consume(3, timeout=20)
    finally:
        consumer.close()

    assert [message.headers() for message in read[:2]] == [[("dedup-id", b"a")], [("dedup-id", b"b")]]
    assert (read[2].key(), read[2].value(), read[2].timestamp()[1]) == (b"k", None, 1_356_998_400_000)
    assert read[2].headers() == [("h", None), ("h", b"")]


def test_topics_are_of_one_test(make_topic: MakeTopic) -> None:
    """Two topics of one test have two names."""
    assert make_topic() != make_topic()
