from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import TopicPartition

from tests.support.consuming import PATIENCE_S, poll_quiet, poll_some, values

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from dedup_sdk import DedupConsumer, MemoryStore
    from tests.mock.conftest import Make, Send

IDS = [str(number) for number in range(40)]


def test_delivered_messages_add_up_over_lives(make: Make, send: Send) -> None:
    """A message that waits for the next call when a consumer ends is judged twice, and counts as delivered once."""
    send(*IDS, "0", "1")
    got: list[str] = []
    counters = []
    for calls in (7, 5, 28):
        with make("orders") as consumer:
            got += values(poll_some(consumer, calls))
            counters.append(consumer.counters.as_dict())

    assert sorted(got) == sorted(IDS)
    assert [each["delivered"] for each in counters] == [7, 5, 28]
    assert sum(each["fresh"] for each in counters) > len(IDS)


def of_each(consumer: DedupConsumer) -> list[float]:
    """How many messages of each of the two partitions were delivered."""
    return [consumer.metrics().value("delivered", topic="pairs", partition=number) for number in "01"]


@pytest.mark.parametrize("take", ["poll", "consume", "run"])
def test_deliveries_are_counted_by_partition(make: Make, send: Send, take: str) -> None:
    """One by one, a batch at once, and by handlers; those of a closed consumer, too."""
    for number in range(12):
        send(str(number), topic="pairs", partition=int(number % 3 == 0))
    consumer = make("pairs", idle_timeout=1)
    if take == "run":
        consumer.run(lambda _: None)
    elif take == "consume":
        poll_quiet(consumer, 0)
        while sum(of_each(consumer)) < 12:
            consumer.consume(5, 0.5)
    else:
        poll_some(consumer, 12)
    assert of_each(consumer) == [8, 4]
    consumer.close()
    assert of_each(consumer) == [8, 4]


def test_what_is_ready_is_not_delivered(make: Make, send: Send) -> None:
    """Whether its partition is paused, or goes, before the program has it; a released message counts once more."""
    send("a", "b", "c", topic="pairs", partition=0)
    consumer = make("pairs")
    [first] = poll_some(consumer, 1)
    assert of_each(consumer) == [1, 0]
    consumer.pause([TopicPartition("pairs", 0)])
    assert of_each(consumer) == [1, 0]
    consumer.resume([TopicPartition("pairs", 0)])
    assert of_each(consumer) == [1, 0]
    consumer.release(first)
    assert values(poll_some(consumer, 1)) == ["a"]
    assert of_each(consumer) == [2, 0]
    consumer.seek(TopicPartition("pairs", 0, 1))
    assert values(poll_some(consumer, 2)) == ["b", "c"]
    assert of_each(consumer) == [4, 0]
    assert consumer.counters.as_dict()["delivered"] == 4


def test_the_polling_thread_is_counted_from_another_one(make: Make, send: Send) -> None:
    """While it takes ready messages, which it does without a lock."""
    send(*map(str, range(30)), topic="pairs", partition=1)
    consumer = make("pairs")
    with ThreadPoolExecutor(1) as pool:
        for count in range(1, 31):
            assert values(poll_some(consumer, 1)) == [str(count - 1)]
            assert pool.submit(of_each, consumer).result() == [0, count]


def test_events_are_no_delivered_messages(make: Make, send: Send) -> None:
    """The client's events come among the messages, and are not counted."""
    send("a", "b", "a")
    consumer = make("orders", config={"enable.partition.eof": True})
    came: list[Message] = []
    while not any(message.error() for message in came):
        came += consumer.consume(10, 0.5)
    send("c", "d")
    while len(came) < 6:
        if (message := consumer.poll(PATIENCE_S)) is not None:
            came.append(message)

    assert [message.value() for message in came if message.error() is None] == [b"a", b"b", b"c", b"d"]
    assert consumer.counters.delivered == 4


def test_run_counts_the_messages_whose_handler_was_called(
    make: Make, send: Send, memory: MemoryStore
) -> None:
    """Messages that wait for a worker when a run is stopped are not delivered; a second call does not count."""
    send(*IDS)
    handled: list[str] = []
    failed: list[str] = []
    delivered = []
    for most in (3, len(IDS)):
        consumer = make("orders", store=memory, idle_timeout=1)

        def handle(message: Message, most: int = most, stop: Callable[[], None] = consumer.stop) -> None:
            [value] = values([message])
            if value == "1" and not failed:
                failed.append(value)
                raise ValueError("again")
            handled.append(value)
            if len(handled) == most:
                stop()

        consumer.run(handle, on_error="retry", wait_initial=0.01)
        delivered.append(consumer.counters.delivered)
        assert consumer.counters.retried == (most == 3)
        consumer.close()

    assert sorted(handled) == sorted(IDS)
    assert delivered == [3, len(IDS) - 3]
