from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, TopicPartition

from tests.support.consuming import (
    committed,
    committed_metadata,
    lookup,
    numbers,
    poll_quiet,
    poll_some,
    poll_through,
    values,
    wait_for,
)

if TYPE_CHECKING:
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

QUICK = {"auto.commit.interval.ms": 50}
BY_USER = {"enable.auto.commit": False, **QUICK}
AT_THE_END = {"enable.auto.commit": False, "auto.commit.interval.ms": 600_000}
A = '{"id": "a"}'
STORED = {"enable.auto.offset.store": False, **QUICK}


def offset_of(kafka: MockKafka) -> int:
    """The offset that group "g" has committed of orders[0]."""
    return committed(kafka.bootstrap, "g", "orders").offset


@pytest.mark.parametrize("completion", ["on-next-call", "explicit"])
@pytest.mark.parametrize("config", [BY_USER, STORED, {**BY_USER, **STORED}])
def test_hidden_records_behind_a_commit_are_committed(
    make: Make, send: Send, kafka: MockKafka, config: dict[str, Any], completion: Any
) -> None:
    """Duplicates behind the last message that was committed, or stored, are nobody's work.

    The lag goes down, with metadata.
    """
    ids = numbers(0, 10)
    send(*ids, *(ids * 20))
    consumer = make("orders", config=config, completion=completion)
    for message in poll_some(consumer, 10):
        consumer.complete(message)
        consumer.store_offsets(message=message)
        if "enable.auto.commit" in config:
            consumer.commit(message=message, asynchronous=False)

    assert wait_for(consumer, lambda: offset_of(kafka) == 210, "a commit of the duplicates") == []
    assert committed_metadata(kafka.bootstrap, "g", "orders") is not None


def test_closing_commits_hidden_records(make: Make, send: Send, kafka: MockKafka) -> None:
    """Those that came after the last interval."""
    send("a", "b", *("a" * 50))
    consumer = make("orders", config=AT_THE_END)
    consumer.commit(message=poll_some(consumer, 2)[1], asynchronous=False)
    poll_through(consumer, "orders")
    assert offset_of(kafka) == 2

    consumer.close()
    assert offset_of(kafka) == 52


def test_unsubscribing_commits_hidden_records(make: Make, send: Send, kafka: MockKafka) -> None:
    """So does whatever else gives the partition back."""
    send("a", "b", *("a" * 50))
    consumer = make("orders", config=AT_THE_END)
    consumer.commit(message=poll_some(consumer, 2)[1], asynchronous=False)
    poll_through(consumer, "orders")

    consumer.unsubscribe()
    assert offset_of(kafka) == 52


def test_hidden_records_before_the_first_commit_are_committed(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Records without an ID that the settings discard, at the very beginning.

    Up to the first that is delivered, no further.
    """
    send("x", "x", "x", A, "x", "x")
    discarding = lookup(id="json:/id", on_missing_id="discard")
    consumer = make("orders", config=BY_USER, dedup=discarding)

    got = wait_for(consumer, lambda: offset_of(kafka) == 3, "a commit of what is discarded")
    assert values(got + poll_quiet(consumer)) == [A]
    consumer.close()
    assert offset_of(kafka) == 3


def test_hidden_records_behind_an_earlier_consumers_commit_are_committed(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """A consumer that finds nothing but duplicates commits them, without a commit of its own."""
    send("a", "b")
    first = make("orders", config=BY_USER)
    first.commit(message=poll_some(first, 2)[1], asynchronous=False)
    first.close()
    send("a", "b", "a", "b")

    consumer = make("orders", config=BY_USER)
    assert wait_for(consumer, lambda: offset_of(kafka) == 6, "a commit of the duplicates") == []


def test_a_delivered_message_that_is_not_committed_is_never_passed(
    make: Make, send: Send, kafka: MockKafka
) -> None:
    """Neither one in hand, nor one that was completed or stored: their commit is the user's."""
    send("a", "b", "a", "c", "a", "d", "a", "b", "c")
    consumer = make("orders", config={**BY_USER, "enable.auto.offset.store": False})
    a, b, c, d = poll_some(consumer, 4)
    consumer.commit(message=a, asynchronous=False)
    consumer.store_offsets(message=b)
    poll_quiet(consumer)
    assert offset_of(kafka) == 1

    consumer.commit(message=b, asynchronous=False)
    wait_for(consumer, lambda: offset_of(kafka) == 3, "a commit of the duplicate behind b")
    consumer.complete(d)
    consumer.complete(c)
    poll_through(consumer, "orders")
    assert offset_of(kafka) == 3
    consumer.close()
    assert offset_of(kafka) == 3


def test_a_failed_commit_is_not_made_up_for(make: Make, send: Send, kafka: MockKafka) -> None:
    """The user has been told that it failed, and may have undone the work.

    Nothing is committed past it before the next commit.
    """
    send("a", "b", "a", "b")
    consumer = make("orders", config=BY_USER)
    message = poll_some(consumer, 2)[1]
    kafka.push_errors("OffsetCommit", KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        consumer.commit(message=message, asynchronous=False)

    poll_quiet(consumer)
    assert offset_of(kafka) == 0
    consumer.commit(asynchronous=False)
    wait_for(consumer, lambda: offset_of(kafka) == 4, "a commit of the duplicates")


def test_a_failed_commit_of_hidden_records_is_repeated(make: Make, send: Send, kafka: MockKafka) -> None:
    """It was ours to make."""
    send("a", "a", "a")
    consumer = make("orders", config=BY_USER)
    consumer.commit(message=poll_some(consumer, 1)[0], asynchronous=False)
    kafka.push_errors("OffsetCommit", KafkaError.REBALANCE_IN_PROGRESS, 2)

    wait_for(consumer, lambda: offset_of(kafka) == 3, "a commit of the duplicates")


def test_what_a_seek_jumped_over_is_not_committed(make: Make, send: Send, kafka: MockKafka) -> None:
    """Hidden records behind the target are not directly behind the user's commit."""
    send("a", "b", "c", "a", "a", "d")
    consumer = make("orders", config=BY_USER)
    consumer.commit(message=poll_some(consumer, 1)[0], asynchronous=False)
    consumer.seek(TopicPartition("orders", 0, 3))

    (d,) = poll_some(consumer, 1)
    assert values([d]) == ["d"]
    poll_quiet(consumer)
    assert offset_of(kafka) == 1
    consumer.commit(message=d, asynchronous=False)
    assert offset_of(kafka) == 6


def test_observing_commits_nothing_by_itself(make: Make, send: Send, kafka: MockKafka) -> None:
    """There nothing is hidden: each duplicate is the user's."""
    send("a", "a", "a")
    consumer = make("orders", config=BY_USER, mode="observe")
    messages = poll_some(consumer, 3)
    consumer.commit(message=messages[0], asynchronous=False)
    poll_quiet(consumer)
    consumer.close()
    assert offset_of(kafka) == 1


def test_offsets_that_are_kept_elsewhere_are_not_overtaken(make: Make, send: Send, kafka: MockKafka) -> None:
    """Who says where to start may never commit: hidden records count from their first commit on."""
    send("x", "x", A, A)
    discarding = lookup(id="json:/id", on_missing_id="discard")
    consumer = make(config=BY_USER, dedup=discarding)
    consumer.assign([TopicPartition("orders", 0, OFFSET_BEGINNING)])
    (a,) = poll_some(consumer, 1)
    poll_quiet(consumer)
    assert offset_of(kafka) == 0

    consumer.commit(message=a, asynchronous=False)
    wait_for(consumer, lambda: offset_of(kafka) == 4, "a commit of the duplicate")


def test_a_transactional_loop_is_not_overtaken(make: Make, send: Send, kafka: MockKafka) -> None:
    """A transaction's commit is not known here: a commit of hidden records below it would set the group back."""
    send("a", "a", "b")
    consumer = make("orders", config=AT_THE_END)
    consumer.commit(message=poll_some(consumer, 1)[0], asynchronous=False)
    assert consumer.consumer_group_metadata() is not None
    poll_some(consumer, 1)
    consumer.close()
    assert offset_of(kafka) == 1
