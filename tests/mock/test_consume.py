from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message, TopicPartition

from tests.support import inside
from tests.support.consuming import PATIENCE_S, committed, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send


def test_a_batch_has_at_most_so_many_messages_and_no_duplicates(make: Make, send: Send) -> None:
    """A batch is no longer than asked for, and the rest comes with the next."""
    send("a", "b", "a", "c", "d")
    consumer = make("orders")

    batches = [values(consumer.consume(2, PATIENCE_S))]
    while sum(map(len, batches)) < 4:
        batches.append(values(consumer.consume(2, 1)))

    assert [value for batch in batches for value in batch] == ["a", "b", "c", "d"]
    assert max(map(len, batches)) == 2


def test_consume_waits_for_the_number_or_the_time(make: Make, send: Send) -> None:
    """Like the plain client's: messages that trickle in are one batch, also while commits are due."""
    consumer = make("orders", config={"auto.commit.interval.ms": 50})
    send("0")
    poll_some(consumer, 1)

    def trickle() -> None:
        for each in "abc":
            time.sleep(0.15)  # time is the subject: they come one after the other, with commits in between
            send(each)

    trickling = threading.Thread(target=trickle)
    trickling.start()
    try:
        assert values(consumer.consume(3, PATIENCE_S)) == ["a", "b", "c"]
    finally:
        trickling.join()
    send("d")
    fetcher = inside.fetcher_of(consumer)
    while not fetcher.messages:
        fetcher.listen(0.1)
    assert values(consumer.consume(3, 0.5)) == ["d"]


def test_nothing_but_duplicates_is_an_empty_batch(make: Make, send: Send) -> None:
    """A batch of duplicates only is nothing to hand out, once the time is up."""
    send("a")
    consumer = make("orders")
    poll_some(consumer, 1)
    send("a", "a", "a")

    assert consumer.consume(3, 1) == []
    while consumer.counters.verdicts["duplicate"] < 3:
        assert consumer.consume(3, 0.5) == []


def test_a_batch_that_is_over_is_freed_with_the_next(make: Make, send: Send) -> None:
    """Also if a record waited for another one of it: else the messages of each batch start a garbage collection."""
    consumer = make("orders")
    for batch in ("first", "second", "third"):
        sent = [f"{batch} of freed {number}" for number in (0, 1, 2, 0)]
        send(*sent)
        got = set[str]()
        while got != {*sent}:
            # More than come: the whole second is waited for, however late the assignment or the first message is.
            got.update(values(consumer.consume(20, 1)))
    # Messages of other tests may be alive, too, some of them without a value.
    alive = values(each for each in gc.get_objects() if type(each) is Message and each.value() is not None)
    assert {each.split()[0] for each in alive if "of freed" in each} == {"third"}


def test_numbers_that_the_plain_client_refuses_are_refused(make: Make) -> None:
    """None asked for is none; a negative or an absurd number is a ValueError."""
    consumer = make("orders")

    assert consumer.consume(0, 0) == []
    for number in (-1, 1_000_001):
        with pytest.raises(ValueError, match="num_messages"):
            consumer.consume(number, 0)


def test_error_events_stand_between_the_messages_of_a_batch(make: Make, send: Send) -> None:
    """An event that lies between two messages comes between them, and none of the three is lost."""
    send("a", "b")
    consumer = make("orders", config={"enable.partition.eof": True})

    got = poll_some(consumer, 3)
    send("c")
    until = time.monotonic() + PATIENCE_S
    while len(got) < 5 and time.monotonic() < until:
        got += consumer.consume(10, 0.3)

    assert values(got) == ["a", "b", "_PARTITION_EOF", "c", "_PARTITION_EOF"]


def test_batches_span_topics_and_partitions(make: Make, send: Send) -> None:
    """Each partition is judged by itself: the same ID in two partitions, or two topics, is two messages."""
    for topic, partition in (("orders", 0), ("pairs", 0), ("pairs", 1)):
        send("a", "b", "a", topic=topic, partition=partition)
    consumer = make("orders", "pairs")

    got: list[Any] = []
    while len(got) < 6:
        got += consumer.consume(9, 0.5)

    assert sorted((m.topic(), m.partition(), m.value()) for m in got) == [
        (topic, partition, value)
        for topic, partition in (("orders", 0), ("pairs", 0), ("pairs", 1))
        for value in (b"a", b"b")
    ]
    assert consumer.consume(1, 0.5) == []
    while consumer.counters.verdicts["duplicate"] < 3:
        assert consumer.consume(1, 0.5) == []
    positions = consumer.position(
        [TopicPartition("orders", 0), TopicPartition("pairs", 0), TopicPartition("pairs", 1)]
    )
    assert [tp.offset for tp in positions] == [3, 3, 3]


def test_poll_and_consume_may_alternate(make: Make, send: Send) -> None:
    """Messages that one of them has judged ahead, the other hands out, in order."""
    send(*"abcdef")
    consumer = make("orders")

    got = [
        poll_some(consumer, 1)[0],
        *consumer.consume(2, PATIENCE_S),
        *poll_some(consumer, 1),
        *consumer.consume(2, PATIENCE_S),
    ]

    assert values(got) == list("abcdef")


def test_consume_of_none_serves_the_group_and_completes_nothing(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A program without room for a message keeps its partition, and the message that it has."""
    send("a", "b", "c")
    consumer = make("orders", config={"max.poll.interval.ms": 1500})
    assert values(poll_some(consumer, 1)) == ["a"]
    until = time.monotonic() + 3
    while time.monotonic() < until:
        assert consumer.consume(0) == []
        time.sleep(0.1)
    assert [tp.partition for tp in consumer.assignment()] == [0]
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset <= 0
    assert values(poll_some(make("orders"), 3)) == ["a", "b", "c"]


def test_many_messages_are_completed_at_once(make: Make, send: Send, kafka: MockKafka) -> None:
    """In any order, of several partitions; one that was completed before changes nothing."""
    send("a", "b", "c", topic="pairs")
    send("d", "e", topic="pairs", partition=1)
    consumer = make("pairs", completion="explicit")
    got = {message.value(): message for message in poll_some(consumer, 5)}
    consumer.complete(got[b"b"])
    consumer.complete(got[b"c"], got[b"a"], got[b"d"], got[b"b"])
    consumer.commit(asynchronous=False)

    assert committed(kafka.bootstrap, "g", "pairs").offset == 3
    assert committed(kafka.bootstrap, "g", "pairs", 1).offset == 1
