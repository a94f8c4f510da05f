"""Partitions that are left, moved or stopped while messages of them lie between the client and the application."""

from __future__ import annotations

from collections import Counter
from threading import Thread
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from dedup_sdk import MemoryStore
from dedup_sdk._kafka.deliver import judge
from dedup_sdk._kafka.recover.scheduler import RecoveryLoop
from tests.support import inside
from tests.support.consuming import (
    PATIENCE_S,
    active,
    committed,
    numbers,
    poll_quiet,
    poll_some,
    progress,
    values,
)

if TYPE_CHECKING:
    from dedup_sdk import DedupConsumer
    from dedup_sdk.testing import MockKafka
    from tests.mock.conftest import Make, Send

ORDERS = TopicPartition("orders", 0)
PAIRS = [TopicPartition("pairs", 0), TopicPartition("pairs", 1)]
BY_COMMIT = {"enable.auto.commit": False}


@pytest.fixture(autouse=True)
def judged_when_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages are judged together, also where they are few: the tests need some that are ready."""
    monkeypatch.setattr(judge, "MOST_ALONE", 0)


def poll_until_some_wait(consumer: DedupConsumer, count: int) -> list[str]:
    """Poll at least so many messages, and until others are ready that the application has not seen."""
    got = poll_some(consumer, count)
    while not inside.ready(consumer):
        got += poll_some(consumer, 1)
    return values(got)


def send_beyond_retention(kafka: MockKafka, topic: str, first: int, end: int, *, partition: int = 0) -> None:
    """Send so much to a partition that the mock broker drops the records from before."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0, "log_level": 0})
    for number in range(first, end):
        headers: dict[str, str | bytes | None] = {"dedup-id": str(number), "pad": "x" * 100_000}
        producer.produce(topic, str(number), headers=headers, partition=partition)
        if number % 20 == 0:
            producer.flush(PATIENCE_S)
    assert producer.flush(PATIENCE_S) == 0


def listen_until(consumer: DedupConsumer, condition: Any) -> None:
    """Let the client work as the polls of a slow handler do. Then messages lie about fetched and not judged."""
    until = monotonic() + PATIENCE_S
    while not condition():
        inside.fetcher_of(consumer).listen(0.1)
        assert monotonic() < until, "it did not come to that"


def test_a_commit_after_unsubscribe_ends_nothing_unseen(make: Make, send: Send, kafka: MockKafka) -> None:
    """Only messages that the application got are committed, not those ready for it."""
    send(*numbers(0, 20))
    consumer = make("orders", config=BY_COMMIT)
    got = poll_until_some_wait(consumer, 3)
    consumer.unsubscribe()
    consumer.commit(asynchronous=False)
    consumer.close()

    assert committed(kafka.bootstrap, "g", "orders").offset == len(got)
    assert got + values(poll_quiet(make("orders", config=BY_COMMIT))) == numbers(0, 20)


@pytest.mark.parametrize("way", ["close", "unsubscribe"])
def test_a_commit_on_revoke_ends_nothing_unseen(make: Make, send: Send, way: str) -> None:
    """The usual callback that commits loses nothing when the consumer leaves in the middle of a batch."""
    send(*numbers(0, 20))
    consumer = make(config=BY_COMMIT)
    consumer.subscribe(["orders"], on_revoke=lambda same, _: same.commit())
    got = poll_until_some_wait(consumer, 3)
    if way == "unsubscribe":
        consumer.unsubscribe()
        for _ in range(10):
            assert consumer.poll(0.05) is None
    consumer.close()

    rest = values(poll_quiet(make("orders", config=BY_COMMIT)))
    assert set(got + rest) == set(numbers(0, 20))


def test_partitions_that_stay_behind_unsubscribe_are_read_on(make: Make, send: Send) -> None:
    """While the group rebalances, the client puts `unsubscribe` off, and forgets it over a new subscription."""
    send(*numbers(0, 20))
    revoked = list[Any]()
    consumer = make(config={"partition.assignment.strategy": "cooperative-sticky"})
    consumer.subscribe(["orders"], on_revoke=lambda _, partitions: revoked.append(partitions))
    got = values(poll_some(consumer, 3))
    consumer.subscribe(["orders", "pairs"], on_revoke=lambda _, partitions: revoked.append(partitions))
    consumer.unsubscribe()
    consumer.subscribe(["orders"], on_revoke=lambda _, partitions: revoked.append(partitions))
    got += values(poll_some(consumer, 18))

    assert revoked == [], "the client has put nothing off"
    assert got == [*numbers(0, 3), *numbers(2, 20)]
    consumer.poll(0)
    assert progress(consumer) == (20, 0)


def test_what_was_completed_behind_unsubscribe_is_committed_whenever_the_consumer_closes(
    make: Make, send: Send
) -> None:
    """The partition stays, is opened again with the next assignment, and has not recovered when it ends."""
    send(*numbers(0, 20))
    assigned = list[Any]()
    consumer = make(config={"partition.assignment.strategy": "cooperative-sticky"}, completion="explicit")
    consumer.subscribe(["orders"])
    in_hand = poll_some(consumer, 3)
    consumer.subscribe(["orders", "pairs"])
    consumer.unsubscribe()
    consumer.subscribe(["orders"], on_assign=lambda _, partitions: assigned.append(partitions))
    for message in in_hand:
        consumer.complete(message)
    while not assigned:
        consumer.poll(0)
    assert active(consumer) == []
    consumer.close()

    with make("orders", store=MemoryStore()) as other:
        assert values(poll_quiet(other)) == numbers(3, 20)


@pytest.mark.parametrize("is_committed", [True, False])
def test_what_an_open_transaction_has_stays_in_hand_behind_unsubscribe(
    make: Make, send: Send, *, is_committed: bool
) -> None:
    """Its partition is opened again when it has ended: if it is committed, its messages do not come again."""
    send(*numbers(0, 20))
    assigned = list[Any]()
    cooperative = {"partition.assignment.strategy": "cooperative-sticky"}
    consumer = make(config={**cooperative, "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    got = poll_some(consumer, 3)
    offsets = consumer.transaction_offsets(got)
    consumer.subscribe(["orders", "pairs"])
    consumer.unsubscribe()
    for topics in (["orders"], ["orders", "pairs"]):
        before = len(assigned)
        consumer.subscribe(topics, on_assign=lambda _, partitions: assigned.append(partitions))
        while len(assigned) == before:
            assert consumer.poll(0.1) is None
    for _ in range(5):
        assert consumer.poll(0.1) is None
    if is_committed:
        consumer.transaction_committed(got, offsets)
    else:
        consumer.transaction_aborted(got)

    first = 3 if is_committed else 0
    assert values(poll_some(consumer, 20 - first)) == numbers(first, 20)


def test_a_seek_beside_a_callback_is_done_in_a_partition_that_stays_behind_unsubscribe(
    make: Make, send: Send
) -> None:
    """It was said after `unsubscribe` had let the messages go."""
    send(*numbers(0, 20))
    consumer = make(config={"partition.assignment.strategy": "cooperative-sticky"})
    consumer.subscribe(["orders"])
    poll_some(consumer, 10)

    def seek(*_: Any) -> None:
        aside = Thread(target=consumer.seek, args=[TopicPartition("orders", 0, 2)])
        aside.start()
        aside.join(PATIENCE_S)

    consumer.subscribe(["orders", "pairs"])
    consumer.unsubscribe()
    consumer.subscribe(["orders"], on_assign=seek)

    assert values(poll_some(consumer, 18)) == numbers(2, 20)


def test_of_two_seeks_the_later_counts(make: Make, send: Send) -> None:
    """One that was noted during a callback, and one that was done at once; or two that were noted."""
    send(*numbers(0, 20))
    consumer = make("orders")
    poll_some(consumer, 3)
    with inside.busy_client(consumer, in_callback=True):
        consumer.seek(TopicPartition("orders", 0, 15))
    consumer.seek(TopicPartition("orders", 0, 5))
    assert values(poll_quiet(consumer)) == numbers(5, 20)

    with inside.busy_client(consumer, in_callback=True):
        consumer.seek(TopicPartition("orders", 0, 15))
        consumer.seek(TopicPartition("orders", 0, 10))
    assert values(poll_quiet(consumer)) == numbers(10, 20)


def test_an_assignment_counts_before_an_older_seek(make: Make, send: Send) -> None:
    """A seek that was noted is of the assignment that it was said in."""
    send(*numbers(0, 20))
    consumer = make()
    consumer.assign([TopicPartition("orders", 0, 0)])
    poll_some(consumer, 3)
    with inside.busy_client(consumer, in_callback=True):
        consumer.seek(TopicPartition("orders", 0, 15))
    consumer.assign([TopicPartition("orders", 0, 5)])

    assert values(poll_quiet(consumer)) == numbers(5, 20)


def test_what_was_assigned_by_hand_outlives_unsubscribe(make: Make, send: Send) -> None:
    """As with the plain client: there is no subscription to end."""
    send(*numbers(0, 20))
    consumer = make()
    consumer.assign([TopicPartition("orders", 0, 0)])
    got = poll_until_some_wait(consumer, 3)
    consumer.unsubscribe()
    send(*numbers(20, 25))

    assert got + values(poll_quiet(consumer)) == numbers(0, 25)


@pytest.fixture
def stopped(make: Make, send: Send, kafka: MockKafka) -> DedupConsumer:
    """A consumer that works on 0 to 9 and has fetched 10.

    Its client has just said that the log begins far behind that.
    """
    send(*numbers(0, 10))
    consumer = make()
    consumer.assign([TopicPartition("orders", 0, 0)])
    poll_until_some_wait(consumer, 1)
    send(*numbers(10, 14))
    listen_until(consumer, lambda: inside.fetcher_of(consumer).messages)
    # As long as the queue of the client is full it asks for nothing.
    Consumer.pause(consumer, [ORDERS])
    send_beyond_retention(kafka, "orders", 14, 110)
    Consumer.resume(consumer, [ORDERS])
    listen_until(
        consumer, lambda: any(message.error() is not None for message in inside.fetcher_of(consumer).messages)
    )
    return consumer


def first_left(consumer: DedupConsumer) -> int:
    """The first offset that the log still has."""
    low, _ = Consumer.get_watermark_offsets(consumer, ORDERS, timeout=PATIENCE_S)
    assert 14 < low < 100
    return int(low)


def lasting(consumer: DedupConsumer) -> list[str]:
    """The records that the logs of both partitions still have, of 110 messages each."""
    lows = [Consumer.get_watermark_offsets(consumer, each, timeout=PATIENCE_S)[0] for each in PAIRS]
    assert all(10 < low < 100 for low in lows)
    return [number for low in lows for number in numbers(low, 110)]


def test_a_stopped_partition_can_be_moved(stopped: DedupConsumer) -> None:
    """A seek while the news of the stop waits behind other messages counts; no error, and no reset after it."""
    first_left(stopped)
    stopped.seek(TopicPartition("orders", 0, 105))
    assert values(poll_quiet(stopped)) == numbers(105, 110)


def test_a_stopped_partition_can_be_paused(stopped: DedupConsumer) -> None:
    """After the pause it goes on where the reset policy says."""
    low = first_left(stopped)
    stopped.pause([ORDERS])
    assert poll_quiet(stopped) == []
    stopped.resume([ORDERS])
    assert values(poll_quiet(stopped))[-(110 - low) :] == numbers(low, 110)


def test_an_interruption_does_not_forget_that_a_partition_stopped(stopped: DedupConsumer) -> None:
    """News of the client that an interrupted poll dropped is found out again."""
    low = first_left(stopped)
    inside.interrupt(stopped)
    assert values(poll_quiet(stopped))[-(110 - low) :] == numbers(low, 110)


def test_a_stop_that_nobody_heard_of_is_found_out(stopped: DedupConsumer) -> None:
    """An interruption in the client's own call takes the news with it."""
    low = first_left(stopped)
    inside.fetcher_of(stopped).rest([])
    inside.interrupt(stopped)
    assert values(poll_quiet(stopped))[-(110 - low) :] == numbers(low, 110)


def test_a_partition_can_be_moved_whose_stop_nobody_heard_of(stopped: DedupConsumer) -> None:
    """The news may still be on its way."""
    first_left(stopped)
    inside.fetcher_of(stopped).rest([])
    stopped.seek(TopicPartition("orders", 0, 105))
    assert values(poll_quiet(stopped)) == numbers(105, 110)


PROTOCOLS = ["range", "cooperative-sticky"]


@pytest.fixture
def both_stopped(make: Make, send: Send, kafka: MockKafka, request: pytest.FixtureRequest) -> DedupConsumer:
    """A consumer that worked on 0 to 9 of both partitions.

    Its client has just said that both logs begin far behind that.
    """
    consumer = make("pairs", config={"partition.assignment.strategy": request.param})
    for partition in range(2):
        send(*numbers(0, 10), topic="pairs", partition=partition)
    assert sorted(values(poll_some(consumer, 20))) == sorted(2 * numbers(0, 10))
    Consumer.pause(consumer, PAIRS)
    for partition in range(2):
        send_beyond_retention(kafka, "pairs", 10, 110, partition=partition)
    Consumer.resume(consumer, PAIRS)
    listen_until(
        consumer, lambda: {m.partition() for m in inside.fetcher_of(consumer).messages if m.error()} == {0, 1}
    )
    return consumer


def both_read_on(consumer: DedupConsumer) -> list[str]:
    """Have one partition placed again while the news of the other waits.

    With `consume` it does so for as long as the call may take.
    """
    assert consumer.consume(1000, 0) == []
    return values(consumer.consume(1000, 3.0))


@pytest.mark.parametrize("both_stopped", PROTOCOLS, indirect=True)
def test_two_partitions_that_stopped_are_both_read_on(both_stopped: DedupConsumer) -> None:
    """To place one of them again does not drop the news of the other."""
    got = both_read_on(both_stopped)
    assert Counter(got + values(poll_quiet(both_stopped))) == Counter(lasting(both_stopped))


@pytest.mark.parametrize("both_stopped", PROTOCOLS, indirect=True)
def test_a_partition_that_reads_again_counts_as_stopped_no_more(
    both_stopped: DedupConsumer, send: Send
) -> None:
    """Whatever news of it came meanwhile: messages that a pause drops are read again."""
    got = both_read_on(both_stopped) + values(poll_quiet(both_stopped))
    for partition in range(2):
        send(*numbers(110, 115), topic="pairs", partition=partition)
    listen_until(
        both_stopped, lambda: {m.partition() for m in inside.fetcher_of(both_stopped).messages} == {0, 1}
    )
    both_stopped.pause(PAIRS)
    both_stopped.resume(PAIRS)
    got += values(poll_quiet(both_stopped))
    assert Counter(got) == Counter(lasting(both_stopped) + 2 * numbers(110, 115))


def test_what_is_read_again_beside_a_stopped_partition_comes_once(
    make: Make, send: Send, kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The eager protocol has all partitions assigned anew for one that stopped.

    Fetched messages of the others do not count twice.
    """
    send(*numbers(0, 10), topic="pairs", partition=0)
    consumer = make("pairs")
    got = poll_until_some_wait(consumer, 1)
    Consumer.pause(consumer, [TopicPartition("pairs", 0)])
    send_beyond_retention(kafka, "pairs", 10, 110)
    Consumer.resume(consumer, [TopicPartition("pairs", 0)])
    listen_until(consumer, lambda: inside.fetcher_of(consumer).messages)
    work = RecoveryLoop.work

    def when_something_is_fetched(recoveries: RecoveryLoop) -> list[Any]:
        begun = work(recoveries)
        return begun if inside.fetcher_of(consumer).messages else []

    # A recovery takes as long as it takes.
    monkeypatch.setattr(RecoveryLoop, "work", when_something_is_fetched)
    sent = [f"other-{number}" for number in range(40)]
    until = monotonic() + PATIENCE_S
    for each in sent:
        send(each, topic="pairs", partition=1)
        message = consumer.poll(0.2)
        if message is not None:
            got += values([message])
        sleep(0.12)
    while len(active(consumer)) < 2:
        send(f"more-{len(sent)}", topic="pairs", partition=1)
        sent.append(f"more-{len(sent)}")
        got += values([each for each in [consumer.poll(0.2)] if each is not None])
        sleep(0.12)
        assert monotonic() < until
    got += values(poll_quiet(consumer))

    assert {each: times for each, times in Counter(got).items() if times > 1} == {}
    assert set(sent) <= set(got)
