"""Offsets and messages that the application gives: wrong offsets, those of another consumer, waiting ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, TopicPartition

from tests.support.consuming import committed, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

BY_USER = {"enable.auto.commit": False}


@pytest.mark.parametrize("how", ["commit", "store_offsets"])
@pytest.mark.parametrize("offset", [-1001, -1000, -2, -1])
def test_what_is_no_offset_completes_nothing(make: Make, send: Send, how: str, offset: int) -> None:
    """Such as that of a partition without one, or the answer that nothing is committed yet."""
    send(*"abcd")
    consumer = make("orders", config=BY_USER)
    poll_some(consumer, 3)
    getattr(consumer, how)(offsets=[TopicPartition("orders", 0, offset)])
    with pytest.raises(KafkaException) as raised:
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError._NO_OFFSET
    consumer.close()
    assert values(poll_quiet(make("orders", config=BY_USER))) == list("abcd")


@pytest.mark.parametrize("what", ["complete", "release"])
def test_a_message_of_an_earlier_consumer_changes_nothing(make: Make, send: Send, what: str) -> None:
    """A thread that outlived its consumer ends nothing of the next one's."""
    send(*"abcdef")
    old = make("orders", completion="explicit")
    late = poll_some(old, 4)[3]
    old.close()
    new = make("orders", completion="explicit")
    got = poll_some(new, 1)
    assert not new.holds(late)
    getattr(new, what)(late)
    assert new.counters.stale == 1
    got += poll_quiet(new)
    assert values(got) == list("abcdef")
    new.close()
    assert values(poll_quiet(make("orders"))) == list("abcdef")


def test_a_commit_that_waits_for_another_outlives_a_seek(make: Make, send: Send, kafka: MockKafka) -> None:
    """As with the plain client: a seek takes no commit back."""
    send(*map(str, range(20)))
    consumer = make("orders", config=BY_USER)
    for _ in range(2):
        poll_some(consumer, 5)
        consumer.commit()
    consumer.seek(TopicPartition("orders", 0, 15))
    consumer.close()
    assert committed(kafka.bootstrap, "g", "orders").offset == 10


@pytest.mark.parametrize("offset", [OFFSET_END, 4])
def test_an_assign_that_the_client_refuses_moves_nothing(make: Make, send: Send, offset: int) -> None:
    """The group's protocol is cooperative: the client takes no assignment by hand beside the group's."""
    send(*"abcdef")
    consumer = make("orders", config={"partition.assignment.strategy": "cooperative-sticky"})
    got = values(poll_some(consumer, 2))
    with pytest.raises(KafkaException, match="_STATE"):
        consumer.assign([TopicPartition("orders", 0, offset)])
    while len(got) < 6 or got[-1] != "f":
        got += values(poll_some(consumer, 1))
    assert sorted({*got}) == [*"abcdef"]


def test_a_refused_assign_leaves_a_seek_in_force(make: Make, send: Send) -> None:
    """Nothing has come from the place of the seek yet."""
    send(*"abcdef")
    consumer = make("orders", config={"partition.assignment.strategy": "cooperative-sticky"})
    poll_some(consumer, 4)
    consumer.seek(TopicPartition("orders", 0, 1))
    with pytest.raises(KafkaException, match="_STATE"):
        consumer.assign([TopicPartition("orders", 0, OFFSET_END)])
    assert values(poll_some(consumer, 5)) == [*"bcdef"]
